"""`anisoscope pretrain`: small models trained from scratch, checkpoint by checkpoint.

    anisoscope pretrain --arch bert --data enwik8 --steps 16384 --seeds 0,1 --out series

The classes and the Trainer are those of transformers. Three things are added: checkpoints on a log grid from step 0 on,
in the published folder format (`OUT/seed-0/checkpoint-1024/`); a log of training and validation loss; and a training
that may be killed at any moment: weights, optimizer, schedule and random state are kept every `save_every` steps under
`OUT/seed-0/resume/`, and since window i of the data depends on (seed, i) alone, going on gives the weights that would
have come without the interruption, bit for bit on the same machine.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from anisoscope.errors import MissingExtra, StoreError
from anisoscope.training.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Announce = Callable[[str], None]


class TrainingData(Protocol):
    """What a training needs of its data: `anisoscope.training.text` and `.images` make one each."""

    @property
    def sha256(self) -> str: ...

    @property
    def sizes(self) -> dict[str, int]: ...

    @property
    def processor(self) -> Any: ...

    def training(self, seed: int) -> Any: ...

    def held_out(self) -> Any: ...


def pretrain(recipe: Recipe, out: str | Path, *, announce: Announce = lambda line: None) -> list[tuple[int, int, Path]]:
    """Train every seed of the recipe into `out`, going on where an earlier call was interrupted.

    Returns (seed, step, folder) of all published checkpoints.
    """
    from anisoscope.models.embedded_series import find_series

    _require_accelerate()
    out = Path(out)
    data = open_data(recipe, out)
    agree(recipe.model_copy(update={"data_sha256": data.sha256}), out)
    for seed in recipe.seeds:
        if _unpublished(recipe, out / f"seed-{seed}"):
            train_seed(recipe, data, seed, out / f"seed-{seed}", announce=announce)
        else:
            announce(f"seed {seed}: complete")
    return [found for found in find_series(out) if found[0] in recipe.seeds]


def agree(recipe: Recipe, out: Path) -> None:
    """Write `recipe.toml`, or hold the recipe against the one that is there: a folder holds one training."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "recipe.toml"
    if path.exists():
        there = Recipe.read(path)
        if differences := there.differences(recipe):
            raise StoreError(
                "this folder holds another training",
                where=out,
                got="; ".join(differences),
                expected="the recipe that the folder was begun with",
                do=f"choose another --out, or go on with --recipe {path}",
            )
        recipe = there.model_copy(update={"seeds": tuple(sorted({*there.seeds, *recipe.seeds}))})
    partial = path.with_suffix(f".{os.getpid()}")  # seeds may be trained by processes of their own
    partial.write_text(recipe.to_toml(), encoding="utf-8")
    partial.replace(path)


def open_data(recipe: Recipe, out: Path) -> TrainingData:
    """The text or the images of a recipe."""
    if recipe.vision:
        from anisoscope.training.images import ImageData

        return ImageData.open(recipe)
    from anisoscope.training.text import TextData

    return TextData.open(recipe, out)


def make_model(recipe: Recipe, data: TrainingData, seed: int) -> PreTrainedModel:
    """The untrained model of a seed; the variant's own weights come last, so all variants share the rest."""
    from anisoscope.models import attention_kinds as attention_variants
    from anisoscope.training.architectures import build

    return attention_variants.apply(build(recipe, seed=seed, **data.sizes), recipe.attention)


def train_seed(recipe: Recipe, data: TrainingData, seed: int, folder: Path, *, announce: Announce) -> None:
    """Train one seed to its end and publish its checkpoints in `folder`."""
    from anisoscope.training.trainer import make_trainer, quiet_transformers

    states = folder / "resume"
    resume = last_state(states)
    with quiet_transformers():
        trainer = make_trainer(
            recipe, make_model(recipe, data, seed), data, seed=seed, folder=folder, fresh=not resume, announce=announce
        )
        trainer.train(resume_from_checkpoint=resume)
    shutil.rmtree(states, ignore_errors=True)


def last_state(states: Path) -> str | None:
    """The newest whole state to go on from; what a kill left half-written is removed.

    The Trainer writes `trainer_state.json` last, so a state is whole when that file can be parsed.
    """
    whole: list[tuple[int, Path]] = []
    for state in states.glob("checkpoint-*"):
        try:
            whole.append((int(json.loads((state / "trainer_state.json").read_text())["global_step"]), state))
        except (OSError, ValueError):
            shutil.rmtree(state)
    return str(max(whole)[1]) if whole else None


def _unpublished(recipe: Recipe, folder: Path) -> bool:
    return any(not (folder / f"checkpoint-{step}").is_dir() for step in recipe.grid())


def _require_accelerate() -> None:
    import importlib.util

    if importlib.util.find_spec("accelerate") is None:
        raise MissingExtra("accelerate", needed_for="training with the Trainer of transformers", extra="train")
