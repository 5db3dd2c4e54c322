"""No number depends on how many texts share a batch, also where the model hides its padding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import anisoscope
import zoo

SIDES = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
PLACED = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
BOTH = {"d_model": 16, "vocab_size": 60, "max_position_embeddings": 64, **SIDES, **PLACED}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mvp": ("Mvp", BOTH),
    "led": ("LED", {**BOTH, "attention_window": 4}),
    "longformer": ("Longformer", {**zoo.sizes(), "vocab_size": 60, "attention_window": 4}),
    "bart": ("Bart", BOTH),
    "xlm": ("XLM", {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "vocab_size": 60, "pad_index": 1, **PLACED}),
    "bigbird": ("BigBird", {**zoo.sizes(), "vocab_size": 60, "block_size": 2, "num_random_blocks": 1}),
}


def _world(name: str, folder: Path) -> tuple[str, str]:
    kind, options = MODELS[name]
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(getattr(transformers, f"{kind}Config")(**options))
    model.save_pretrained(folder / name)
    rng = np.random.default_rng(0)
    texts = [rng.integers(5, 60, size).tolist() for size in (7, 40, 8, 3, 40, 5, 36, 4)]
    (folder / "ids.jsonl").write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in texts))
    return str(folder / name), str(folder / "ids.jsonl")


@pytest.mark.parametrize(
    ("study", "name"),
    [*(("measure", name) for name in MODELS), ("attention", "mvp"), ("attention", "led"), ("attention", "xlm")],
)
def test_batches_of_any_size_give_the_same(study: str, name: str, tmp_path: Path) -> None:
    model, data = _world(name, tmp_path)
    chosen = {"column": "input_ids", "dtype": "float64", "length": 40}
    found = [getattr(anisoscope, study)(model, data, batch_tokens=size, **chosen) for size in (1, 90, 4000)]
    alone = {(row.site, row.metric, row.positions, row.at): row.value for row in found[0].rows if row.value is not None}
    assert alone
    for other in found[1:]:
        for row in other.rows:
            if row.value is not None:
                expected = alone[row.site, row.metric, row.positions, row.at]
                assert row.value == pytest.approx(expected, rel=1e-5, abs=1e-7), (row.site, row.metric)
