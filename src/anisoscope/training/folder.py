"""The folder of a training holds one training: whatever else is there is refused, and nothing of it is touched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anisoscope.errors import ModelError, StoreError
from anisoscope.runs.writing import atomic, check_local
from anisoscope.training.recipe import Recipe

RECIPE = "recipe.toml"
_OURS = re.compile(r"(held-out-)?tokens-\w+(\.partial)?\.npy|\..*")  # written before the recipe is


class Diverged(ModelError):
    """A training whose loss is not a finite number any more, at `step`."""

    step: int = 0


def check_folder(out: Path) -> None:
    """Refuse a file, and a folder that holds something else than a training."""
    if out.exists() and not out.is_dir():
        raise StoreError("a training needs a folder, and this is a file", where=out, do="choose another --out")
    if not out.is_dir() or (out / RECIPE).exists():
        return
    foreign = sorted(entry.name for entry in out.iterdir() if not _OURS.fullmatch(entry.name))
    if foreign:
        what = "a run" if "run.toml" in foreign else "something that is not a training"
        names = ", ".join(foreign[:4])
        raise StoreError(f"the folder holds {what}", where=out, got=names, do="choose another --out")


def agree(recipe: Recipe, out: Path) -> None:
    """Write `recipe.toml`, or compare the recipe with the one already there: a folder holds one training."""
    path = out / RECIPE
    if path.exists():
        there = Recipe.read(path)
        if differences := there.differences(recipe):
            raise StoreError(
                "this folder holds another training",
                where=out,
                got="; ".join(differences),
                expected="the recipe that the folder was begun with",
                do=f"choose another --out, or continue with --recipe {path}",
            )
        recipe = there.model_copy(update={"seeds": sorted({*there.seeds, *recipe.seeds})})
    check_local(out)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        with atomic(path) as partial:  # seeds may be trained by processes of their own
            partial.write_text(recipe.to_toml(), encoding="utf-8")


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """What keeps a training from being written, as one error: a full disk, a folder that is read-only."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "inline_container" not in str(error):  # the mark of torch.save
            raise
        raise StoreError(
            "the training could not be written",
            where=out,
            got=str(error).splitlines()[0],
            do="free some space or choose another --out; the same command continues",
        ) from error
