"""`anisoscope pretrain`: small models trained from scratch, checkpoint by checkpoint.

    anisoscope pretrain --arch bert --data enwik8 --steps 16384 --seeds 0,1 --out series

The classes and the Trainer are those of transformers. Three things are added: checkpoints on a log grid from step 0 on,
in the published folder format (`OUT/seed-0/checkpoint-1024/`); a log of training and validation loss; and a training
that may be killed at any moment: weights, optimizer, schedule and random state are kept every `save_every` steps under
`OUT/seed-0/resume/`, and since window i of the data depends on (seed, i) alone, going on gives the weights that would
have come without the interruption, bit for bit on the same machine. A signal saves the state first.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from anisoscope.errors import MissingExtra
from anisoscope.runs.progress import track
from anisoscope.runs.stopping import asked_to_stop, patiently
from anisoscope.training.folder import agree, check_folder, writing
from anisoscope.training.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from anisoscope.inputs.files import Stamps

Announce = Callable[[str], None]


class TrainingData(Protocol):
    """What a training needs of its data: `anisoscope.training.data.text` and `.images` make one each."""

    @property
    def sha256(self) -> str: ...

    @property
    def stamps(self) -> Stamps: ...

    @property
    def sizes(self) -> dict[str, int]: ...

    @property
    def processor(self) -> Any: ...

    def training(self, seed: int) -> Any: ...

    def held_out(self) -> Any: ...


def pretrain(
    recipe: Recipe, out: str | Path, *, what: str = "training", announce: Announce = lambda line: None
) -> list[tuple[int, int, Path]]:
    """Train every seed of the recipe into `out`, continuing where an earlier call was interrupted.

    Returns (seed, step, folder) of all published checkpoints. `what` is how the progress bar calls it.
    """
    from anisoscope.models.embedded_series import find_series

    _require_accelerate()
    out = Path(out)
    check_folder(out)
    data = open_data(recipe, out)
    agree(recipe.model_copy(update={"data_sha256": data.sha256}), out)
    with patiently(), writing(out):
        for seed in recipe.seeds:
            if asked_to_stop():
                raise asked_to_stop.error()
            folder = out / f"seed-{seed}"
            if _unpublished(recipe, folder):
                train_seed(recipe, data, seed, folder, what=f"{what}, seed {seed}", announce=announce)
            else:
                announce(f"seed {seed}: complete")
            shutil.rmtree(folder / "resume", ignore_errors=True)
    return [found for found in find_series(out) if found[0] in recipe.seeds]


def open_data(recipe: Recipe, out: Path) -> TrainingData:
    """The text or the images of a recipe."""
    if recipe.vision:
        from anisoscope.training.data.images import ImageData

        return ImageData.open(recipe)
    from anisoscope.training.data.text import TextData

    return TextData.open(recipe, out)


def make_model(recipe: Recipe, data: TrainingData, seed: int) -> PreTrainedModel:
    """The untrained model of a seed; the variant's own weights come last, so all variants share the rest."""
    from anisoscope.models import attention_kinds, final_norm
    from anisoscope.training.architectures import build
    from anisoscope.training.kernels import ask, own_kernel

    model = build(recipe, seed=seed, **data.sizes)
    model = model if recipe.final_norm else final_norm.remove(model)
    return ask(attention_kinds.apply(model, recipe.attention, own_kernel=own_kernel(recipe)), recipe)


def train_seed(recipe: Recipe, data: TrainingData, seed: int, folder: Path, *, what: str, announce: Announce) -> None:
    """Train one seed to its end and publish its checkpoints in `folder`."""
    from anisoscope.models.loading import quiet
    from anisoscope.training.trainer import make_trainer

    start, state = last_state(folder / "resume")
    announce(f"seed {seed}: {'continues' if state else 'starts'} at step {start}")
    folder.mkdir(parents=True, exist_ok=True)
    with quiet(), track(what, total=recipe.steps - start, unit="steps") as bar:
        model = make_model(recipe, data, seed)
        trainer = make_trainer(recipe, model, data, seed=seed, folder=folder, fresh=state is None, what=what, bar=bar)
        trainer.train(resume_from_checkpoint=state)


def last_state(states: Path) -> tuple[int, str | None]:
    """Step and folder of the newest whole state to go on from; what a kill left half-written is removed.

    The Trainer writes `trainer_state.json` last, so a state is whole when that file can be parsed.
    """
    whole: list[tuple[int, str | None]] = [(0, None)]
    for state in states.glob("checkpoint-*"):
        try:
            whole.append((int(json.loads((state / "trainer_state.json").read_text())["global_step"]), str(state)))
        except (OSError, ValueError):
            shutil.rmtree(state)
    return max(whole, key=lambda found: found[0])


def _unpublished(recipe: Recipe, folder: Path) -> bool:
    return any(not (folder / f"checkpoint-{step}").is_dir() for step in recipe.grid())


def _require_accelerate() -> None:
    import importlib.util

    if importlib.util.find_spec("accelerate") is None:
        raise MissingExtra("accelerate", needed_for="training with the Trainer of transformers", extra="train")
