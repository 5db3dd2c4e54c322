"""`measure --logits --parts` from a folder, in one process and in shards, against the library's own forward pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import ByT5Tokenizer, GPT2Config, GPT2LMHeadModel

import anisoscope
from anisoscope.errors import UsageError
from anisoscope.runs.merging import merge_runs
from anisoscope.runs.perform import perform
from anisoscope.runs.settings import Machine

TEXTS = [f"text number {k} drifts {'far ' * (k % 4)}away" for k in range(14)]


def _saved(folder: Path) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=384, n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.3)
    model = GPT2LMHeadModel(config).eval()
    model.save_pretrained(folder / "model")
    ByT5Tokenizer().save_pretrained(folder / "model")
    (folder / "texts.txt").write_text("\n".join(TEXTS))
    return model


def test_logits_and_parts_equal_the_librarys_and_shards_add_up(tmp_path: Path) -> None:
    model = _saved(tmp_path)
    settings = {"models": [str(tmp_path / "model")], "data": [str(tmp_path / "texts.txt")], "documents": "lines"}
    settings |= {"logits": True, "parts": True, "neighbours": False}
    found = perform("measure", settings)
    added: list[torch.Tensor] = []
    hook = model.transformer.h[1].mlp.register_forward_hook(lambda _, __, out: added.append(out[0]))
    levels = []
    for text in TEXTS:
        with torch.no_grad():
            ids = ByT5Tokenizer()(text, return_tensors="pt")["input_ids"]
            levels.append(model(ids).logits[0].double().logsumexp(-1))
    hook.remove()
    norms = torch.cat(added).double().norm(dim=1)
    assert found.value("logsumexp") == pytest.approx(torch.cat(levels).mean().item(), rel=1e-5)
    assert found.value("mean_norm", site="block.1.mlp") == pytest.approx(norms.mean().item(), rel=1e-5)
    assert {"loss", "head_gradient_share", "kurtosis", "massive_activation"} <= {row.metric for row in found.rows}
    assert "block.1.mlp" not in {row.site for row in found.rows if row.layer is not None}

    shards = [tmp_path / f"shard-{k}" for k in range(2)]
    for k, out in enumerate(shards):
        perform("measure", settings, machine=Machine(shard=f"{k}/2"), out=out)
    joined = merge_runs(shards, tmp_path / "joined")
    for name in ("logsumexp", "loss", "head_gradient_share", "gradient_top_energy"):
        assert joined.value(name) == pytest.approx(found.value(name), rel=1e-5), name
    for name in ("kurtosis", "massive_activation", "massive_activation_ratio", "norm_growth"):
        one, other = (
            {r.site: r.value for r in m.rows if (r.metric, r.positions) == (name, "all")} for m in (joined, found)
        )
        np.testing.assert_allclose([one[site] for site in other], list(other.values()), rtol=1e-5)


def test_a_model_without_a_head_has_no_logits(tmp_path: Path) -> None:
    model = _saved(tmp_path)
    with pytest.raises(UsageError, match="no language-model head"):
        anisoscope.measure(model.transformer, TEXTS, processor=ByT5Tokenizer(), logits=True)
