"""A model that is spread over devices, or left on disk in part, has the states of the one that is not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2Model

import anisoscope
from anisoscope.errors import MissingExtra, UsageError
from anisoscope.models import devices
from anisoscope.models.devices import parse_device_map
from anisoscope.models.open import open_model

pytest.importorskip("accelerate")
TEXTS = ["a few words of text", "and some others that follow", "the third is a little longer than the rest"]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in several files with an index."""
    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    GPT2Model(GPT2Config(n_embd=32, n_layer=3, n_head=2, vocab_size=300, n_positions=64)).save_pretrained(
        folder, max_shard_size="60KB"
    )
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    return folder


def measured(folder: Path, **options: str) -> dict[tuple[str | None, str], float | None]:
    found = anisoscope.measure(str(folder), TEXTS, tokenizer="bytes", neighbours=False, **options)
    return {(row.site, row.metric): row.value for row in found.rows if row.positions == "all" and row.at is None}


def test_a_model_left_on_disk_in_part_measures_alike(
    sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANISOSCOPE_OFFLOAD", str(tmp_path / "offload"))
    spread = {"wte": "cpu", "wpe": "cpu", "h.0": "cpu", "h.1": "disk", "h.2": "cpu", "ln_f": "disk"}
    (tmp_path / "map.json").write_text(json.dumps(spread))
    opened = open_model(sharded, tokenizer=bytes, device_map=str(tmp_path / "map.json"))
    assert {weight.device.type for weight in opened.module.parameters()} == {"cpu", "meta"}
    whole, found = measured(sharded), measured(sharded, device_map=json.dumps(spread))
    assert whole.keys() == found.keys()
    assert len({site for site, _ in found}) > 4
    for key, value in whole.items():
        assert found[key] is None if value is None else np.isclose(found[key] or 0.0, value, rtol=1e-5, atol=1e-7), key


def test_auto_opens_a_model_where_it_fits(sharded: Path) -> None:
    opened = open_model(sharded, tokenizer=bytes, device_map="auto")
    assert all(weight.device.type == "cpu" for weight in opened.module.parameters())


def test_states_in_half_precision_are_summed_in_float64(sharded: Path) -> None:
    whole, half = measured(sharded), measured(sharded, dtype="bfloat16")
    site = ("block.2", "mean_cosine")
    assert half[site] == pytest.approx(whole[site], abs=0.02)
    assert half[site] != whole[site]


@pytest.mark.parametrize("written", ["nowhere.json", "{broken", "[1, 2]", '{"h.0": [1]}'])
def test_what_is_no_map_is_refused(written: str) -> None:
    with pytest.raises(UsageError, match="not a device map"):
        parse_device_map(written)


def test_without_accelerate_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"anisoscope\[large\]"):
        parse_device_map("auto")
