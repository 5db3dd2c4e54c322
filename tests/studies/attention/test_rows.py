"""One pass over a model's attention, and the rows that it becomes, against the library's own attention matrices."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import transformers

import anisoscope
import zoo
from anisoscope.accumulate.keys import group_of, sequence_keys
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.errors import ModelError
from anisoscope.inference.jackknife import jackknife
from anisoscope.inputs.sources import MemorySource
from anisoscope.models.batches.plan import make_batches
from anisoscope.runs.table import Row
from anisoscope.runs.work.observers import AttentionSums
from anisoscope.studies.attention.rows import attention_rows
from studies.attention.passes import batches_of, by_metric, measure_attention, measured, model_of, source_of

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()

METRICS = {
    "query_key_cosine",
    "query_key_dot",
    "query_drift_ratio",
    "key_drift_ratio",
    "query_mean_cosine",
    "key_mean_cosine",
    "entropy",
    "entropy_normalised",
    "max_probability",
    "median_probability",
    "min_probability",
    "sequence_max",
    "sequence_min",
    "sink_share",
    "self_share",
    "sink_alpha",
    "sink_epsilon",
    "score_mean",
    "score_sd",
    "score_variance",
    "salience_variance",
    "content_variance",
    "cross_variance",
    "salience_share",
    "entropy_collapse",
    "one_key_share",
    "output_value_cosine",
    *(f"{side}_norm" for side in ("query", "key", "value")),
}
PEAKS = {"max_logit", *(f"max_logit_{part}" for part in ("means", "query", "salience", "content"))}


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_every_metric_of_every_head_and_layer(name: str) -> None:
    _, rows = measured(name)
    sites = [f"block.{k}{head}" for k in range(3) for head in ("", *(f".head.{h}" for h in range(4)))]
    assert {row.site for row in rows} == set(sites)
    for site in sites:
        found = by_metric(rows, site)
        assert set(found) == METRICS | PEAKS
        found = {metric: row for metric, row in found.items() if metric in METRICS}  # a maximum has no interval
        assert all(row.value is not None and np.isfinite(row.value) for row in found.values())
        assert all(row.low is not None and row.high is not None for row in found.values())
        assert all(row.low <= row.value <= row.high for row in found.values())  # type: ignore[operator]
        assert all(row.layer == int(site.split(".")[1]) and row.model == name for row in found.values())
    assert by_metric(rows, "block.1.head.3")["entropy"].head == 3
    assert "reads key head 1" in by_metric(rows, "block.1.head.3")["entropy"].note or name != "llama"


def test_a_layer_is_the_mean_of_its_heads() -> None:
    _, rows = measured("llama")
    for metric, layer in by_metric(rows, "block.2").items():
        if metric in PEAKS:
            continue
        heads = [by_metric(rows, f"block.2.head.{h}")[metric].value for h in range(4)]
        assert layer.value == pytest.approx(np.mean(heads))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_rows_equal_the_librarys_attention_matrices(name: str) -> None:
    _, rows = measured(name)
    model, module = model_of(name), zoo.module(name)
    module.set_attn_implementation("eager")
    found: dict[str, list[np.ndarray]] = {metric: [] for metric in ("entropy", "max_probability", "min_probability")}
    found |= {metric: [] for metric in ("median_probability", "sink_share", "self_share", "entropy_normalised")}
    alphas: list[np.ndarray] = []
    for _, batch in batches_of(model):
        with torch.no_grad():
            attention = module(**batch.inputs, output_attentions=True).attentions[1].double().numpy()
        for sequence, valid in zip(attention, batch.valid.numpy(), strict=True):
            n = int(valid.sum())
            alphas.append(sequence[:, :n, 0].mean(1))
            for i in range(n):
                p = sequence[:, i, : i + 1] if name == "gpt2" else sequence[:, i, :n]  # (heads, visible)
                if p.shape[1] < 2:
                    continue
                entropy = -np.sum(p * np.log(p), axis=1)
                values = (entropy, p.max(1), p.min(1), np.median(p, 1), p[:, 0], p[:, i], entropy / np.log(p.shape[1]))
                for metric, value in zip(found, values, strict=True):
                    found[metric].append(value)
    for head in range(4):
        site = by_metric(rows, f"block.1.head.{head}")
        for metric, values in found.items():
            assert site[metric].value == pytest.approx(np.mean(values, axis=0)[head], rel=1e-5), metric
            assert site[metric].n == len(values)
        assert site["sink_alpha"].value == pytest.approx(np.mean(alphas, axis=0)[head], rel=1e-5)
        assert site["sink_epsilon"].value == pytest.approx(np.mean(np.array(alphas) > 0.3, axis=0)[head])
        assert site["sink_alpha"].n == len(alphas)


def test_means_of_queries_and_keys_equal_the_projections() -> None:
    _, rows = measured("bert")
    module, model = zoo.module("bert"), model_of("bert")
    kept: dict[str, list[torch.Tensor]] = {"query": [], "key": []}
    for side, store in kept.items():
        part = getattr(module.encoder.layer[2].attention.self, side)
        part.register_forward_hook(lambda _, __, out, store=store: store.append(out))
    clouds: dict[str, list[np.ndarray]] = {"query": [], "key": []}
    for _, batch in batches_of(model):
        with torch.no_grad():
            module(**batch.inputs)
        for side, store in kept.items():
            clouds[side].append(store.pop()[batch.valid].double().unflatten(-1, (4, 8)).numpy())
    query, key = (np.concatenate(clouds[side]) for side in ("query", "key"))  # (n, heads, d)
    for head in range(4):
        site = by_metric(rows, f"block.2.head.{head}")
        q, k = query[:, head], key[:, head]
        dot = q.mean(0) @ k.mean(0)
        cosine = dot / np.linalg.norm(q.mean(0)) / np.linalg.norm(k.mean(0))
        unit = q / np.linalg.norm(q, axis=1, keepdims=True)
        pairs = unit @ unit.T
        assert site["query_key_dot"].value == pytest.approx(dot, rel=1e-5)
        assert site["query_key_cosine"].value == pytest.approx(cosine, rel=1e-5)
        assert site["query_drift_ratio"].value == pytest.approx(np.sum(q.mean(0) ** 2) / np.mean(np.sum(q**2, 1)))
        assert site["key_drift_ratio"].value == pytest.approx(np.sum(k.mean(0) ** 2) / np.mean(np.sum(k**2, 1)))
        mean = (pairs.sum() - len(q)) / len(q) / (len(q) - 1)
        assert site["query_mean_cosine"].value == pytest.approx(mean, rel=1e-5)
        assert site["query_mean_cosine"].n == len(q)


def test_nulls_are_uniform_attention_and_unrelated_directions() -> None:
    _, rows = measured("gpt2")
    site = by_metric(rows, "block.0.head.0")
    lengths = np.concatenate([np.arange(2, n + 1) for n in _lengths("gpt2")])  # of causal rows
    assert site["entropy"].null == pytest.approx(np.log(lengths).mean())
    assert site["max_probability"].null == pytest.approx((1 / lengths).mean())
    assert site["entropy"].n == len(lengths)
    assert site["entropy"].note == f"{len(_lengths('gpt2'))} rows of one key left out"
    assert site["query_key_cosine"].null == 0
    assert site["query_key_cosine"].null_sd == pytest.approx(8**-0.5)  # heads of 8 dimensions
    assert site["query_drift_ratio"].null == pytest.approx(1 / sum(_lengths("gpt2")))


def _lengths(name: str) -> list[int]:
    return [int(n) for _, batch in batches_of(model_of(name)) for n in batch.valid.sum(1)]


def test_shards_merge_to_the_whole() -> None:
    model = model_of("llama")
    whole, rows = measured("llama")
    shards = [measure_attention(model, [pair]) for pair in batches_of(model)]
    assert len(shards) > 2
    merged = AttentionSums()
    merged.load(shards[-1].state())
    for shard in shards[:-1]:
        merged.merge(shard)
    for name, expected in whole.state().items():
        np.testing.assert_allclose(merged.state()[name], expected, rtol=1e-12, atol=1e-12, err_msg=name)
    for found, row in zip(attention_rows(merged.heads, merged.rows), rows, strict=True):
        assert found.value == pytest.approx(row.value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("metric", "groups"), [("entropy", 32), ("query_key_cosine", 32), ("salience_share", 8)])
def test_intervals_are_those_of_leaving_groups_of_sequences_out(metric: str, groups: int) -> None:
    group = _groups() % groups
    sizes = [sum(sums.rows["block.1"].sums["rows"].sum().item() for sums in _chosen(group == g)) for g in range(groups)]
    left = [found[metric].value for found in _without_each(groups)]
    full = by_metric(measured("bert")[1], "block.1.head.2")[metric]
    low, high = jackknife(np.array(left, float), full.value, np.array(sizes, float))  # type: ignore[arg-type]
    assert (full.low, full.high) == (pytest.approx(low), pytest.approx(high))


@cache
def _by_document() -> dict[str, AttentionSums]:
    model = model_of("bert")
    sources = {item.key: MemorySource([item], modality="text", name="one") for item in source_of("text")}
    return {key: measure_attention(model, make_batches(model, one, length=24)) for key, one in sources.items()}


def _chosen(kept: np.ndarray) -> list[AttentionSums]:
    return [sums for sums, keep in zip(_by_document().values(), kept, strict=True) if keep]


def _groups() -> np.ndarray:
    return group_of(sequence_keys(_by_document()))


@cache
def _without_each(groups: int) -> list[dict[str, Row]]:
    """The rows of one head without each group of documents in turn; of its layer alone, which spares the others."""
    found = []
    for left_out in range(groups):
        merged = AttentionSums()
        for sums in _chosen(_groups() % groups != left_out):
            merged.load(sums.state())
        rows = attention_rows({"block.1": merged.heads["block.1"]}, {"block.1": merged.rows["block.1"]})
        found.append(by_metric(rows, "block.1.head.2"))
    return found


def test_layers_come_in_their_order_however_their_sums_were_kept() -> None:
    sums, _ = measured("bert")
    (name, cloud), *_ = sums.heads.items()
    kept = ("block.0", "block.1", "block.10", "block.2", "decoder.block.0", "encoder.block.1")  # as files list them
    rows = attention_rows(dict.fromkeys(kept, cloud), dict.fromkeys(kept, sums.rows[name]))
    found = list(dict.fromkeys(row.site for row in rows if row.head is None and row.metric == "entropy"))
    assert found == ["block.0", "block.1", "encoder.block.1", "block.2", "block.10", "decoder.block.0"]


@pytest.mark.parametrize("name", ["bert", "t5"])  # t5: layers of other keys and other counts
def test_layers_that_are_read_together_have_the_rows_that_each_has_alone(name: str) -> None:
    sums, rows = measured(name)
    for site, cloud in sums.heads.items():
        alone = attention_rows({site: cloud}, {site: sums.rows[site]})
        together = [row for row in rows if row.site == site or row.site.startswith(f"{site}.head.")]
        for one, other in zip(alone, together, strict=True):
            assert (one.metric, one.head, one.n, one.note) == (other.metric, other.head, other.n, other.note)
            for number in ("value", "low", "high", "null"):
                mine, theirs = getattr(one, number), getattr(other, number)
                assert mine == (theirs if theirs is None else pytest.approx(theirs, rel=1e-12, abs=1e-14))


def test_few_sequences_have_no_interval() -> None:
    model = model_of("bert")
    batches = make_batches(model, source_of("text"), length=24, limit=2)
    sums = measure_attention(model, batches)
    rows = attention_rows(sums.heads, sums.rows)
    assert all(row.value is not None for row in rows)
    assert {(row.low, row.high) for row in rows} == {(None, None)}


@pytest.mark.parametrize(
    "name", ["t5", "whisper", "canine", "mpnet", "cvt", "segformer", "vit", "wav2vec2", "modernbert"]
)
def test_other_architectures(name: str) -> None:
    sums, rows = measured(name)
    assert set(sums.heads) == set(sums.rows)
    finite = [row for row in rows if row.value is not None and np.isfinite(row.value)]
    assert len(finite) == len(rows) > 0
    for row in rows:
        if row.metric == "entropy_normalised":
            assert 0 < row.value <= 1 + 1e-6  # type: ignore[operator]
        if row.metric == "salience_share":
            assert 0 <= row.value <= 1  # type: ignore[operator]


def test_sites_and_layers_of_stages_and_cross_attention() -> None:
    layers = {row.site: row.layer for row in measured("segformer")[1] if row.head is None}
    assert layers == {
        "stage.0.block.0": 0,
        "stage.0.block.1": 1,
        "stage.1.block.0": 2,
        "stage.1.block.1": 3,
        "stage.2.block.0": 4,
        "stage.3.block.0": 5,
    }
    crossed = by_metric(measured("t5")[1], "decoder.block.1.cross")
    assert crossed["entropy"].layer == 1
    assert "self_share" not in crossed
    local = by_metric(measured("canine")[1], "char.block.0")
    assert "sink_share" not in local  # windows have no first key
    assert "self_share" in local


def test_whisper_counts_the_positions_that_hear_speech() -> None:
    sums, _ = measured("whisper")
    encoder, model = sums.heads["encoder.block.0"], model_of("whisper")
    hidden = HiddenCapture(model.module, sites="encoder.block.0")
    n = 0
    for _, batch in batches_of(model):
        counted: list[int] = []
        hidden.run(batch, lambda _, vectors, __, counted=counted: counted.append(len(vectors)))
        n += sum(counted)
    assert encoder.queries.n.sum() == encoder.keys.n.sum() == n < 4 * 100
    assert sums.rows["encoder.block.0"].sums["rows"].sum() == n
    visible = sums.rows["encoder.block.0"].sums["inverse_visible"].sum() / n
    assert float(visible) == pytest.approx(1 / 100)  # rows see the whole window


def test_padding_that_the_model_is_not_told_of_is_left_out() -> None:
    model = model_of("t5")
    _, batch = next(iter(batches_of(model)))
    shorter = batch.decoder_valid.clone()  # type: ignore[union-attr]
    shorter[:, 4:] = False
    inputs = {name: tensor for name, tensor in batch.inputs.items() if name != "decoder_attention_mask"}
    sums = measure_attention(model, [(0, replace(batch, inputs=inputs, decoder_valid=shorter))])
    n = int(shorter.sum())
    for site in ("decoder.block.0", "decoder.block.0.cross"):
        assert sums.heads[site].queries.n.sum() == n
        assert sums.rows[site].sums["rows"].sum() + sums.rows[site].sums["one_key_rows"].sum() == n
    assert sums.heads["decoder.block.0"].keys.n.sum() == n


def test_before_rotation_heads_change_and_rows_do_not() -> None:
    model = model_of("llama")
    after, rows = measured("llama")
    before = measure_attention(model, batches_of(model), before_rotary=True)
    table = attention_rows(before.heads, before.rows)
    assert "before rotation" in before.about()["protocol"]["attention"]
    one, other = by_metric(rows, "block.0.head.1"), by_metric(table, "block.0.head.1")
    assert one["query_key_cosine"].value != pytest.approx(other["query_key_cosine"].value, abs=1e-3)
    assert one["query_drift_ratio"].value != pytest.approx(other["query_drift_ratio"].value, abs=1e-3)
    for metric in ("entropy", "salience_share", "score_variance"):
        assert one[metric].value == pytest.approx(other[metric].value)
    np.testing.assert_allclose(before.heads["block.0"].queries.norm2, after.heads["block.0"].queries.norm2, rtol=1e-5)


def test_attention_and_hidden_states_in_one_pass() -> None:
    model = model_of("bert")
    whole, _ = measured("bert")
    hidden, sums, sites = HiddenCapture(model.module), AttentionSums(), set()
    for _, batch in batches_of(model):
        with sums.watch(model, batch):
            hidden.run(batch, lambda site, *_: sites.add(site))
    assert sites == {"embeddings", *(f"block.{k}" for k in range(3))}
    for name, expected in whole.state().items():
        np.testing.assert_allclose(sums.state()[name], expected, err_msg=name)


def test_no_data_and_no_attention_are_errors() -> None:
    assert measure_attention(model_of("bert"), []).heads == {}
    with pytest.raises(ModelError, match="no queries and keys here"):
        measure_attention(model_of("resnet"), batches_of(model_of("resnet")))


def test_a_model_whose_scores_cannot_be_rebuilt_says_why_it_has_no_rows() -> None:
    config = transformers.GPTNeoConfig(
        vocab_size=384, hidden_size=16, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]]
    )
    found = anisoscope.attention(transformers.GPTNeoModel(config), ["some text", "and another one"], tokenizer="bytes")
    assert "entropy" not in {row.metric for row in found.rows}
    assert any("no attention rows at any site" in note for note in found.notes)
    known = anisoscope.attention(zoo.module("gpt2"), ["some text", "more"], processor=zoo.processor("gpt2"))
    assert not any("no attention rows" in note for note in known.notes)
