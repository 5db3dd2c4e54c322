"""Put a series that `anisoscope pretrain` made into the package, in half precision.

    anisoscope pretrain --recipe src/anisoscope/embedded_series/recipe.toml --data enwik8 --seeds 0,1,2 --out SERIES
    python scripts/embed_series.py SERIES --seeds 0,1

The series that is there is replaced once the new one is whole and within its size; the recipe names its data without
folders, and holds their hash.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from anisoscope.models.embedded_series import EMBEDDED, find_series
from anisoscope.runs.settings import parse_seeds
from anisoscope.training.recipe import Recipe

LARGEST = 16_000_000
"""Bytes that the embedded series may take."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("series", type=Path)
    parser.add_argument("--seeds", type=parse_seeds, default=[0, 1])
    parser.add_argument("--into", type=Path, default=EMBEDDED, help="the folder to replace (default: the package's)")
    asked = parser.parse_args()
    check_whole(asked.series, asked.seeds)
    partial = asked.into.with_name(f"{asked.into.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    size = publish_half(asked.series, partial, seeds=asked.seeds)
    if size > LARGEST:
        raise SystemExit(f"{partial} takes {size:,} bytes, more than {LARGEST:,}: nothing was replaced")
    shutil.rmtree(asked.into, ignore_errors=True)
    partial.rename(asked.into)
    print(f"{len(find_series(asked.into))} checkpoints, {size:,} bytes, in {asked.into}")


def publish_half(out: Path, target: Path, *, seeds: list[int]) -> int:
    """Copy a series with its weights in half precision; returns the bytes that it takes.

    Recipe and logs go along, the recipe with the name of each data file alone: its hash says which file it was.
    """
    from safetensors.torch import load_file, save_file

    out = out.resolve()
    recipe = Recipe.read(out / "recipe.toml")
    names = [Path(file).name for file in recipe.data]
    target.mkdir(parents=True, exist_ok=True)
    (target / "recipe.toml").write_text(
        recipe.model_copy(update={"data": names, "seeds": seeds}).to_toml(), encoding="utf-8"
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


def check_whole(series: Path, seeds: list[int]) -> None:
    """Every seed must have every checkpoint of the recipe's grid."""
    found = {(seed, step) for seed, step, _ in find_series(series)}
    grid = Recipe.read(series / "recipe.toml").grid()
    if missing := [f"seed-{seed}/checkpoint-{step}" for seed in seeds for step in grid if (seed, step) not in found]:
        raise SystemExit(f"{series} is not whole: no {', '.join(missing)}")


if __name__ == "__main__":
    main()
