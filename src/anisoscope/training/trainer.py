"""The Trainer of transformers, made to publish a series.

`Publisher` is the callback that does it: it decides when to save, to evaluate and to log; it publishes checkpoints
under a hidden name that is renamed when they are whole; it rewrites `log.jsonl` from the Trainer's own history, which
is part of the state for resuming, so that the log of an interrupted training reads as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments, default_data_collator
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging

from anisoscope.errors import ModelError
from anisoscope.training.objectives import headless_loss

if TYPE_CHECKING:
    from anisoscope.training.pretrain import TrainingData
    from anisoscope.training.recipe import Recipe

LOGGED = {
    "loss": "training_loss",
    "eval_loss": "validation_loss",
    "eval_accuracy": "validation_accuracy",
    "learning_rate": "learning_rate",
    "grad_norm": "gradient_norm",
}
"""What the Trainer calls what the log holds."""


class SeriesTrainer(Trainer):
    """The Trainer with the loss of the recipe's objective."""

    def __init__(self, recipe: Recipe, **options: Any) -> None:
        super().__init__(**options)
        self.recipe = recipe

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The mean over the batch. The Trainer's own count of items is not used: it counts one label too many per
        causal sequence, the first, which nothing predicts."""
        if self.recipe.objective != "headless":
            return super().compute_loss(model, inputs, return_outputs)
        loss, output = headless_loss(self.accelerator.unwrap_model(model), inputs, causal=self.recipe.causal)
        return (loss, output) if return_outputs else loss


class Publisher(TrainerCallback):
    """Publishes checkpoints on the grid of the recipe and keeps the log."""

    def __init__(
        self, recipe: Recipe, *, seed: int, folder: Path, processor: Any, announce: Callable[[str], None]
    ) -> None:
        self.recipe, self.seed, self.folder, self.processor, self.announce = recipe, seed, folder, processor, announce
        self.grid = frozenset(recipe.grid())
        self.started_at, self.started_from = 0.0, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: PreTrainedModel, **kwargs: Any) -> None:
        for partial in self.folder.glob(".checkpoint-*"):
            shutil.rmtree(partial)
        self.started_at, self.started_from = time.monotonic(), state.global_step
        verb = "goes on" if state.global_step else "starts"
        self.announce(f"seed {self.seed}: {verb} at step {state.global_step}")
        if state.global_step == 0:
            self.publish(model, 0)

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: PreTrainedModel, **kwargs: Any) -> None:
        on_grid = state.global_step in self.grid
        if on_grid or state.global_step % self.recipe.save_every == 0:
            control.should_log = control.should_evaluate = control.should_save = True
        if on_grid:
            self.publish(model, state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, *, logs: dict[str, Any], **kwargs: Any) -> None:
        if not math.isfinite(logs.get("loss", 0.0)):
            raise ModelError(
                "the training diverged",
                where=f"seed {self.seed}, step {state.global_step}",
                got=f"loss {logs['loss']}",
                do="lower --learning-rate or lengthen --warmup, in another --out",
            )
        records = merge_history(state.log_history)
        partial = self.folder / ".log.partial"
        partial.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        partial.replace(self.folder / "log.jsonl")
        if "eval_loss" in logs:
            self.announce(self.status(records[-1]))

    def publish(self, model: PreTrainedModel, step: int) -> None:
        """Write the checkpoint of a step as it would be published; one that is there is the same one."""
        folder = self.folder / f"checkpoint-{step}"
        if folder.is_dir():
            return
        partial = self.folder / f".checkpoint-{step}"
        model.save_pretrained(partial)
        self.processor.save_pretrained(partial)
        partial.rename(folder)

    def status(self, record: dict[str, Any]) -> str:
        """One line: where the training is, how well it does, and the time left at the speed of this process."""
        step, losses = record["step"], []
        for name in ("training_loss", "validation_loss", "validation_accuracy"):
            losses += [f"{name.replace('_', ' ')} {record[name]:.4f}"] if name in record else []
        done = step - self.started_from
        seconds = (self.recipe.steps - step) * (time.monotonic() - self.started_at) / done if done else None
        left = "" if seconds is None else f", {math.ceil(seconds / 60)} min left"
        return f"seed {self.seed}: step {step}/{self.recipe.steps}, {', '.join(losses)}{left}"


def merge_history(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The Trainer's history, which has several entries per step, as one record per step in the words of the log.

    >>> merge_history([{"eval_loss": 5.5, "step": 0}, {"loss": 3.0, "step": 8}, {"eval_loss": 2.9, "step": 8}])
    [{'step': 0, 'validation_loss': 5.5}, {'step': 8, 'training_loss': 3.0, 'validation_loss': 2.9}]
    """
    records: dict[int, dict[str, Any]] = {}
    for entry in history:
        record = records.setdefault(entry["step"], {"step": entry["step"]})
        record |= {name: entry[key] for key, name in LOGGED.items() if key in entry}
    return [record for record in records.values() if len(record) > 1]


def make_trainer(
    recipe: Recipe,
    model: PreTrainedModel,
    data: TrainingData,
    *,
    seed: int,
    folder: Path,
    fresh: bool,
    announce: Callable[[str], None],
) -> SeriesTrainer:
    """A Trainer for one seed of a recipe, whose only callback that speaks is the Publisher."""
    publisher = Publisher(recipe, seed=seed, folder=folder, processor=data.processor, announce=announce)
    trainer = SeriesTrainer(
        recipe,
        model=model,
        args=training_arguments(recipe, seed=seed, states=folder / "resume", fresh=fresh),
        data_collator=default_data_collator,
        train_dataset=data.training(seed),
        eval_dataset=data.held_out(),
        processing_class=data.processor,
        compute_metrics=accuracy if recipe.objective == "classify" else None,
        callbacks=[publisher],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def training_arguments(recipe: Recipe, *, seed: int, states: Path, fresh: bool) -> TrainingArguments:
    schedules = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}
    return TrainingArguments(
        output_dir=str(states),
        max_steps=recipe.steps,
        per_device_train_batch_size=recipe.batch,
        per_device_eval_batch_size=recipe.batch,
        train_sampling_strategy="sequential",  # the order is in the numbering of the windows
        learning_rate=recipe.learning_rate,
        lr_scheduler_type=schedules[recipe.schedule],
        warmup_steps=recipe.warmup,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip,
        optim="adamw_torch",
        adam_beta2=0.98,
        seed=seed,
        label_names=["labels"],
        prediction_loss_only=recipe.objective != "classify",
        eval_on_start=fresh,
        save_strategy="no",  # the Publisher says when
        save_total_limit=2,  # the one before stays until the next is whole
        logging_strategy="no",
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        use_cpu=not torch.cuda.is_available(),
    )


def accuracy(prediction: Any) -> dict[str, float]:
    """The share of images whose label has the highest score."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Only errors from transformers, and none of its progress bars, inside the block."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
