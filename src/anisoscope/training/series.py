"""What a training leaves beside its checkpoints: its log, and a copy of the series in half precision."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anisoscope.models.embedded_series import find_series
from anisoscope.runs.table import Row


def read_log(out: str | Path, seed: int) -> list[dict[str, Any]]:
    """The training log of one seed: one record per logged step."""
    lines = (Path(out) / f"seed-{seed}" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def log_rows(out: str | Path, seed: int) -> list[Row]:
    """The training log of one seed as measurements, in nats where they are losses."""
    return [
        Row(model=Path(out).name, step=record["step"], seed=seed, metric=name, value=value)
        for record in read_log(out, seed)
        for name, value in record.items()
        if name != "step"
    ]


def publish_half(out: str | Path, target: str | Path, *, seeds: Sequence[int]) -> int:
    """Copy a series with its weights in half precision; returns the bytes that it takes.

    Recipe and logs go along, the recipe with the name of each data file alone: its hash says which file it was.
    """
    from safetensors.torch import load_file, save_file

    from anisoscope.training.recipe import Recipe

    out, target = Path(out).resolve(), Path(target)
    recipe = Recipe.read(out / "recipe.toml")
    names = [Path(file).name for file in recipe.data]
    target.mkdir(parents=True, exist_ok=True)
    (target / "recipe.toml").write_text(
        recipe.model_copy(update={"data": names, "seeds": list(seeds)}).to_toml(), encoding="utf-8"
    )
    for seed, _, folder in find_series(out):
        if seed not in seeds:
            continue
        copy = target / folder.relative_to(out)
        copy.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            if file.suffix != ".safetensors":
                (copy / file.name).write_bytes(file.read_bytes())
        half = {name: tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()}
        save_file(half, copy / "model.safetensors", metadata={"format": "pt"})
        (copy.parent / "log.jsonl").write_bytes((folder.parent / "log.jsonl").read_bytes())
    return sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
