"""What stands in for published checkpoints at the scale `demo`: a mirror of small models, `stand-in/NAME[@stepN]`.

Most are made, with random weights in the shape of their architecture (`models.stand_ins`). Where training matters they
are trained: BERT is the last checkpoint of the series inside the package, GPT-2 and the Pythias are trained on the spot
on the embedded English text, a minute each. The table `stand_ins` of `paper.toml` says which is which.

A mirror is a folder that `--models-dir` understands, so the studies open stand-ins as they open anything else; what is
in it is used again, and what a kill left half-made is not (folders are renamed when they are whole).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

STAND_IN = "stand-in"


def stand_in_name(model: str) -> str:
    """The name of what stands in for a model.

    >>> stand_in_name("google/canine-s")
    'stand-in/canine-s'
    """
    return f"{STAND_IN}/{model.rpartition('/')[2]}"


def prepare(
    models: Sequence[str],
    recipes: Mapping[str, Mapping[str, Any]],
    mirror: Path,
    *,
    announce: Callable[[str], None] = lambda line: None,
) -> None:
    """Make the stand-ins of these models in the mirror, unless they are there."""
    for model in models:
        name = model.rpartition("/")[2]
        recipe, folder = recipes[name], mirror / STAND_IN / name
        if folder.exists():
            continue
        folder.parent.mkdir(parents=True, exist_ok=True)
        if "trained" in recipe:
            announce(f"training a stand-in for {model}")
            _train(recipe["trained"], folder, work=mirror / "trained" / name, announce=announce)
            continue
        partial = folder.with_name(f"{name}.{os.getpid()}.partial")
        if "embedded" in recipe:
            from anisoscope.models.embedded_series import embedded_series

            shutil.copytree(max((step, place) for seed, step, place in embedded_series() if seed == 0)[1], partial)
        else:
            from anisoscope.models.loading import quiet
            from anisoscope.models.stand_ins.specimens import save

            with quiet():
                save(recipe["made"], partial, recipe.get("seed", 0))
        partial.rename(folder)


def steps_of_stand_in(model: str, mirror: Path) -> list[int]:
    """The steps of a trained stand-in, in order."""
    folder = mirror / stand_in_name(model)
    return sorted(int(place.name.rpartition("@step")[2]) for place in folder.parent.glob(f"{folder.name}@step*"))


def _train(recipe: Mapping[str, Any], folder: Path, *, work: Path, announce: Callable[[str], None]) -> None:
    """Train, then put every checkpoint into the mirror as a revision; the last one, without revision, comes last."""
    from anisoscope.training.pretrain import pretrain
    from anisoscope.training.recipe import Recipe

    checkpoints = pretrain(Recipe(**recipe, data=[str(_embedded_text(work.parent))]), work, announce=announce)
    for _, step, place in checkpoints:
        there = folder.with_name(f"{folder.name}@step{step}")
        if not there.exists():
            os.symlink(os.path.relpath(place, there.parent), there, target_is_directory=True)
    os.symlink(os.path.relpath(checkpoints[-1][2], folder.parent), folder, target_is_directory=True)


def _embedded_text(folder: Path) -> Path:
    """The embedded English text as one file to train on."""
    from anisoscope.inputs.embedded import embedded
    from anisoscope.runs.writing import atomic

    path = folder / "embedded-text.txt"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic(path) as partial:
            partial.write_text("\n\n".join(document.text for document in embedded("text")), encoding="utf-8")
    return path
