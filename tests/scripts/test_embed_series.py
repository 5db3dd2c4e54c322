"""The script replaces a series by a whole one, in half precision, and leaves what it replaces alone otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from anisoscope.models.embedded_series import find_series
from anisoscope.training.pretrain import pretrain
from anisoscope.training.recipe import Recipe
from anisoscope.training.series import read_log

SCRIPT = Path(__file__).parents[2] / "scripts" / "embed_series.py"


def embed(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_series_is_embedded_whole_or_not_at_all(tmp_path) -> None:
    torch.set_num_threads(1)
    (tmp_path / "text").write_bytes(b"abcdefghijklmnopqrstuvwxyz\n" * 100)
    sizes = {"layers": 1, "hidden": 16, "heads": 2, "length": 16, "batch": 4, "validation_batches": 1}
    recipe = Recipe(data=[str(tmp_path / "text")], steps=3, first_checkpoint=2, seeds=[0, 1], **sizes)
    series, into = tmp_path / "series", tmp_path / "embedded"
    pretrain(recipe, series)
    into.mkdir()
    (into / "older").write_text("")

    refused = embed(series, "--seeds", "0,2", "--into", into)
    assert refused.returncode == 1
    assert "seed-2/checkpoint-0" in refused.stderr
    assert [path.name for path in tmp_path.glob("embedded*/*")] == ["older"]

    done = embed(series, "--seeds", "1", "--into", into)
    assert done.returncode == 0, done.stderr
    found = find_series(into)
    assert [(seed, step) for seed, step, _ in found] == [(1, 0), (1, 2), (1, 3)]
    assert (
        f"3 checkpoints, {sum(file.stat().st_size for file in into.rglob('*') if file.is_file()):,} bytes"
        in done.stdout
    )
    whole = load_file(series / "seed-1/checkpoint-3/model.safetensors")
    half = load_file(found[-1][2] / "model.safetensors")
    assert all(torch.equal(half[name], whole[name].half()) for name in whole)
    assert (Recipe.read(into / "recipe.toml").data, Recipe.read(into / "recipe.toml").seeds) == (["text"], [1])
    assert read_log(into, 1) == read_log(series, 1)
    assert not (into / "older").exists()
