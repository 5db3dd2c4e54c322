"""The greatest logit of real attention modules, against scores computed by hand from their projections."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import zoo
from anisoscope.accumulate.attention.rows import Rows
from anisoscope.capture.attention.call import AttentionCall
from anisoscope.inputs.sources import Document, MemorySource
from anisoscope.models.batches.plan import make_batches
from anisoscope.models.open import open_model
from anisoscope.runs.table import Row
from anisoscope.runs.work.observers import AttentionSums
from anisoscope.runs.work.passes import observe
from anisoscope.studies.attention.rows import attention_rows

WORDS = (
    "queries",
    "and",
    "keys",
    "drift",
    "together",
    "while",
    "attention",
    "grows",
    "sharp",
    "its",
    "entropy",
    "falls",
)


def _measured() -> tuple[list[Row], list[tuple[np.ndarray, ...]]]:
    """Rows of a small BERT, and queries, keys and values (heads, n, d) of its last layer, sequence by sequence."""
    model = open_model(zoo.module("bert"), processor=zoo.processor("bert"))
    documents = [Document(str(k), " ".join(WORDS[k % 5 : 4 + k])) for k in range(1, 9)]
    sums, kept, clouds = AttentionSums(), {}, []
    hooks = [
        model.module.get_submodule(f"encoder.layer.2.attention.self.{side}").register_forward_hook(
            lambda _, __, out, side=side: kept.__setitem__(side, out)
        )
        for side in ("query", "key", "value")
    ]
    for place, (_, batch) in enumerate(make_batches(model, MemorySource(documents, modality="text", name="t"))):
        with torch.inference_mode():
            observe(model, batch, {"attention": sums}, first=place == 0)
        for row, valid in enumerate(batch.valid):
            sides = (kept[side][row][valid].double().unflatten(-1, (4, 8)) for side in ("query", "key", "value"))
            clouds.append(tuple(side.transpose(0, 1).numpy() for side in sides))
    for hook in hooks:
        hook.remove()
    return attention_rows(sums.heads, sums.rows), clouds


def test_peaks_norms_and_outputs_equal_those_of_the_projections() -> None:
    rows, clouds = _measured()
    for head in range(4):
        found = {row.metric: row for row in rows if row.site == f"block.2.head.{head}"}
        q, k, v = ([cloud[side][head] for cloud in clouds] for side in range(3))
        scores = [a @ b.T / 8**0.5 for a, b in zip(q, k, strict=True)]
        best = max(range(len(scores)), key=lambda s: scores[s].max())
        i, j = np.unravel_index(scores[best].argmax(), scores[best].shape)
        mean_q, mean_k = np.concatenate(q).mean(0), np.concatenate(k).mean(0) / 8**0.5
        dq, dk = q[best][i] - mean_q, k[best][j] / 8**0.5 - mean_k
        assert found["max_logit"].value == pytest.approx(scores[best].max(), rel=1e-5)
        assert found["max_logit"].note == f"query at position {i} of its sequence, key at {j}"
        expected = {"means": mean_q @ mean_k, "query": dq @ mean_k, "salience": mean_q @ dk, "content": dq @ dk}
        for part, value in expected.items():
            assert found[f"max_logit_{part}"].value == pytest.approx(value, rel=1e-4, abs=1e-6), part
        assert found["max_logit"].n == sum(s.size for s in scores)
        for side, cloud in (("query", q), ("key", k), ("value", v)):
            norm = np.linalg.norm(np.concatenate(cloud), axis=1).mean()
            assert found[f"{side}_norm"].value == pytest.approx(norm, rel=1e-5), side
        weights = [np.exp(s) / np.exp(s).sum(1, keepdims=True) for s in scores]
        outputs = np.concatenate([w @ values for w, values in zip(weights, v, strict=True)])
        own = np.concatenate(v)
        cosines = (outputs * own).sum(1) / np.linalg.norm(outputs, axis=1) / np.linalg.norm(own, axis=1)
        assert found["output_value_cosine"].value == pytest.approx(cosines.mean(), rel=1e-4)


def test_a_layer_has_the_peak_of_its_greatest_head() -> None:
    rows, _ = _measured()
    layer = next(row for row in rows if row.site == "block.2" and row.metric == "max_logit")
    heads = {
        row.head: row.value for row in rows if row.layer == 2 and row.metric == "max_logit" and row.head is not None
    }
    assert layer.value == max(value for value in heads.values() if value is not None)
    assert layer.note.startswith(f"of head {max(heads, key=lambda h: heads[h] or 0)}; ")
    assert layer.null is not None


def test_sums_of_earlier_versions_have_no_peaks() -> None:
    state = Rows(query_heads=2, key_heads=2, d=4).state()
    later = {"collapsed", "one_key", "output", "output_rows", "value", "values"}
    kept = {name: tensor for name, tensor in state.items() if name not in later and not name.startswith("peak.")}
    old = Rows.from_state(kept)
    assert "one_key" not in old.sums
    assert not np.isfinite(old.peaks.arrays["greatest"]).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keys_that_do_not_count_but_are_seen_stay_as_the_model_made_them(dtype: torch.dtype) -> None:
    """Whisper's encoder sees all of its window. Before, its keys of silence became 0 in float64, and so did logits."""
    draw = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(2, 3, 6, 4, generator=draw, dtype=dtype) for _ in range(2))
    keys[:, :, 5] *= 10
    before, counts = (queries.clone(), keys.clone()), torch.arange(6).expand(2, 6) < 4
    call = AttentionCall(queries, keys, "self", counts, counts, None, 0.5, queries, keys)
    rows = Rows.like(call)
    rows.update(call, np.arange(2, dtype=np.uint64))
    assert queries.equal(before[0])
    assert keys.equal(before[1])
    scores = 0.5 * torch.einsum("bhqd,bhkd->hbqk", *(x.double() for x in before))[:, :, :4]
    np.testing.assert_allclose(rows.peaks.arrays["greatest"], scores.flatten(1).amax(1), rtol=1e-6)
