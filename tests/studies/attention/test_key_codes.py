"""Mean keys: exported as they are, and their effect on quantised scores against a loop in double precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from transformers import AutoTokenizer, GPT2Model

import anisoscope
import zoo
from anisoscope.capture.attention.call import AttentionCall
from anisoscope.errors import UsageError
from anisoscope.runs.table import Row
from anisoscope.studies.attention.key_codes import _energies, key_verdict

TEXTS = ["the cat sat on the mat and looked at the small bird", "the bird sang in the old tree by the river"]


def coded(key: np.ndarray, bits: int) -> np.ndarray:
    scale = max(abs(entry) for entry in key) / (2 ** (bits - 1) - 1)
    return np.array([round(entry / scale) * scale for entry in key])


def test_errors_of_scores_are_those_of_a_loop() -> None:
    draw = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 2, 6, 8, generator=draw), torch.randn(1, 1, 6, 8, generator=draw) + 3
    visible, valid = torch.ones(1, 6, 6, dtype=torch.bool).tril(), torch.ones(1, 6, dtype=torch.bool)
    call = AttentionCall(q, k, "self", valid, valid, visible, 1.0, q, k)
    mean = k[0].double().mean(1).numpy()  # (1, 8)
    found = _energies(call, mean)
    expected = np.zeros(5)
    for h in range(2):
        for i in range(6):
            query, keys = q[0, h, i].double().numpy(), k[0, 0, : i + 1].double().numpy()
            cases = [keys @ query]
            for bits in (4, 8):
                for centre in (np.zeros(8), mean[0]):
                    cases.append(np.array([(coded(key - centre, bits) + centre - key) @ query for key in keys]))
            expected += [float(((case - case.mean()) ** 2).sum()) for case in cases]
    assert found == pytest.approx(expected, rel=1e-9)
    assert found[2] < 0.5 * found[1]  # a mean of 3 eats the range


def test_the_mean_keys_are_written_and_told_of(tmp_path: Path) -> None:
    zoo.save("gpt2", tmp_path / "gpt2")
    file, out = tmp_path / "means.safetensors", tmp_path / "run"
    settings = {"length": 16, "export_key_means": str(file), "out": out}
    found = anisoscope.attention(str(tmp_path / "gpt2"), TEXTS, **settings)
    means = load_file(file)
    plain = anisoscope.attention(str(tmp_path / "gpt2"), TEXTS, length=16)
    assert "Subtracting the mean key" in str(found.verdict)
    assert "Subtracting" not in str(plain.verdict)
    assert {row.at for row in found.rows if row.metric == "key_code_error_centred"} == {4.0, 8.0}
    with safe_open(file, "np") as opened:
        assert opened.metadata()["keys"] == "after rotation"
    file.unlink()
    again = anisoscope.attention(str(tmp_path / "gpt2"), TEXTS, **settings)
    assert again.run is not None
    np.testing.assert_array_equal(load_file(file)["block.0.key_mean"], means["block.0.key_mean"])


def test_the_exported_mean_is_that_of_the_keys_that_the_layer_makes(tmp_path: Path) -> None:
    zoo.save("gpt2", tmp_path / "gpt2")
    model: Any = GPT2Model.from_pretrained(tmp_path / "gpt2")
    tokens = AutoTokenizer.from_pretrained(tmp_path / "gpt2")
    made: list[torch.Tensor] = []
    model.h[0].attn.c_attn.register_forward_hook(lambda layer, given, output: made.append(output.detach()))
    file = tmp_path / "means.safetensors"
    anisoscope.attention(model, TEXTS[:1], processor=tokens, length=128, export_key_means=str(file))
    heads, width = model.config.n_head, model.config.n_embd
    keys = made[-1][0, :, width : 2 * width].double().numpy().reshape(-1, heads, width // heads)  # one text, no padding
    assert load_file(file)["block.0.key_mean"] == pytest.approx(keys.mean(0), abs=1e-5)


def test_a_file_of_another_kind_is_not_overwritten(tmp_path: Path) -> None:
    zoo.save("gpt2", tmp_path / "gpt2")
    (tmp_path / "notes.txt").write_text("precious words, not tensors")
    with pytest.raises(UsageError, match="another kind"):
        anisoscope.attention(
            str(tmp_path / "gpt2"), TEXTS, length=16, export_key_means=str(tmp_path / "notes.txt"), out=tmp_path / "run"
        )
    assert (tmp_path / "notes.txt").read_text().startswith("precious")


@pytest.mark.parametrize("target", ["gpt2/model.safetensors", "bert/model.safetensors", "run/moments.safetensors"])
def test_weights_are_not_overwritten_by_mean_keys(target: str, tmp_path: Path) -> None:
    for name in ("gpt2", "bert"):
        zoo.save(name, tmp_path / name)
    file = tmp_path / target
    before = file.read_bytes() if file.exists() else None
    with pytest.raises(UsageError, match="would overwrite"):
        anisoscope.attention(str(tmp_path / "gpt2"), TEXTS, length=16, export_key_means=str(file), out=tmp_path / "run")
    assert (file.read_bytes() if file.exists() else None) == before
    assert not (tmp_path / "run").exists()  # before any work


@pytest.mark.parametrize(("after", "words"), [(0.1, "will help"), (0.2, "will not help")])
def test_the_verdict_follows_the_errors_at_four_bits(after: float, words: str) -> None:
    errors = {"key_code_error": 0.2, "key_code_error_centred": after}
    rows = [Row(site=f"block.{k}", metric=m, at=4.0, value=v) for k in range(3) for m, v in errors.items()]
    assert words in key_verdict(rows)
