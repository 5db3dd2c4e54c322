"""The Trainer of transformers, made to publish a series.

`Publisher` is the callback that does it. It decides when to save, to evaluate and to log. It publishes checkpoints with
a finite loss, under a hidden name that is renamed when they are whole. It rewrites `log.jsonl` from the Trainer's own
history, which is part of the state for resuming, so that the log of an interrupted training reads as if nothing had
happened.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments, default_data_collator
from transformers.trainer_callback import PrinterCallback

from anisoscope.inputs.files import check_all
from anisoscope.runs.progress import Progress
from anisoscope.runs.stopping import asked_to_stop
from anisoscope.runs.writing import atomic
from anisoscope.training.folder import Diverged
from anisoscope.training.kernels import QKClip, rounded_loss
from anisoscope.training.objectives import headless_loss, isotropy_penalty
from anisoscope.training.optimisers import BETAS, CentreOutput, make_optimiser

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
        """The mean over the batch, with the penalty of the recipe while training."""
        weight = self.recipe.isotropy_weight if model.training else 0.0
        loss, output = self._task_loss(model, {**inputs, "output_hidden_states": True} if weight else inputs)
        if weight:
            loss = loss + weight * isotropy_penalty(output.hidden_states)
        return (loss, output) if return_outputs else loss

    def _task_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> Any:
        """The loss of the objective, and the output. The Trainer's own count of items is not used: it counts one label
        too many per causal sequence, the first, which nothing predicts."""
        if self.recipe.logits != "float32":
            output = model(**{name: value for name, value in inputs.items() if name != "labels"})
            return rounded_loss(output.logits, inputs["labels"], getattr(torch, self.recipe.logits)), output
        if self.recipe.objective != "headless":
            return super().compute_loss(model, inputs, return_outputs=True)
        return headless_loss(self.accelerator.unwrap_model(model), inputs, causal=self.recipe.causal)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None and self.recipe.optimiser != "adamw":
            trained: Any = self.model
            names = self.get_decay_parameter_names(trained)
            self.optimizer = make_optimiser(trained, self.recipe, decayed=names)
        return super().create_optimizer(model)

    def save_running_loss(self, path: Path) -> None:
        """Keep the sum of losses since the last log: the Trainer begins a new one when it continues from a state."""
        kept = {"sum": self._tr_loss.item(), "since": self._globalstep_last_logged}
        path.write_text(json.dumps(kept), encoding="utf-8")

    def load_running_loss(self, path: Path) -> None:
        """Continue with the sum that a state was saved with, if it has one."""
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            self._tr_loss.fill_(kept["sum"])
            self._globalstep_last_logged = kept["since"]


class Publisher(TrainerCallback):
    """Publishes checkpoints on the grid of the recipe, keeps the log, and stops when a signal asks for it.

    Nothing is published or saved of a training whose data changed while it was read.
    """

    def __init__(self, recipe: Recipe, *, what: str, folder: Path, data: TrainingData, bar: Progress) -> None:
        self.recipe, self.what, self.folder, self.data, self.bar = recipe, what, folder, data, bar
        self.grid = frozenset(recipe.grid())
        self.trainer: SeriesTrainer | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for partial in self.folder.glob(".checkpoint-*"):
            shutil.rmtree(partial)
        assert self.trainer is not None
        self.trainer.load_running_loss(self._running_loss(state))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.advance()
        whole = state.global_step % self.recipe.save_every == 0
        if state.global_step in self.grid or whole:
            control.should_log = control.should_evaluate = True
            whole = whole or self.recipe.checkpoint_every is None  # dense checkpoints are not states to go on from
            control.should_save = whole and state.global_step < self.recipe.steps  # after the last nothing is left
        elif asked_to_stop():
            control.should_save = True
        if control.should_save or control.should_evaluate:
            check_all(self.data.stamps)

    def on_log(self, args: Any, state: Any, control: Any, *, logs: dict[str, Any], **kwargs: Any) -> None:
        for name in ("loss", "eval_loss"):
            self._check_finite(logs.get(name, 0.0), state.global_step)
        records = merge_history(state.log_history)
        with atomic(self.folder / "log.jsonl") as partial:
            partial.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        if "eval_loss" in logs:
            self.bar.describe(f"{self.what}, validation loss {logs['eval_loss']:.4f}")

    def on_evaluate(self, args: Any, state: Any, control: Any, *, model: PreTrainedModel, **kwargs: Any) -> None:
        if state.global_step in self.grid:  # its loss is known to be finite
            self.publish(model, state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if asked_to_stop():
            assert self.trainer is not None
            self.trainer.save_running_loss(self._running_loss(state))
            raise asked_to_stop.error()

    def _running_loss(self, state: Any) -> Path:
        return self.folder / "resume" / f"checkpoint-{state.global_step}" / "running_loss.json"

    def _check_finite(self, loss: float, step: int) -> None:
        if not math.isfinite(loss):
            error = Diverged(
                f"the training diverged: loss is {'NaN' if math.isnan(loss) else 'infinite'} at step {step}",
                where=self.what,
                do="lower --learning-rate or lengthen --warmup, in another --out; the last state before that is kept",
            )
            error.step = step
            raise error

    def publish(self, model: PreTrainedModel, step: int) -> None:
        """Write the checkpoint of a step as it would be published; an existing one is the same."""
        folder = self.folder / f"checkpoint-{step}"
        if folder.is_dir():
            return
        partial = self.folder / f".checkpoint-{step}"
        model.save_pretrained(partial)
        self.data.processor.save_pretrained(partial)
        partial.rename(folder)


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
    what: str,
    bar: Progress,
) -> SeriesTrainer:
    """A Trainer for one seed of a recipe; its only callback that prints is the Publisher."""
    publisher = Publisher(recipe, what=what, folder=folder, data=data, bar=bar)
    trainer = SeriesTrainer(
        recipe,
        model=model,
        args=training_arguments(recipe, seed=seed, states=folder / "resume", fresh=fresh),
        data_collator=default_data_collator,
        train_dataset=data.training(seed),
        eval_dataset=data.held_out(),
        processing_class=data.processor,
        compute_metrics=accuracy if recipe.objective == "classify" else None,
        callbacks=[publisher, *after_steps(recipe)],
    )
    publisher.trainer = trainer  # a Trainer does not tell its callbacks who it is
    trainer.remove_callback(PrinterCallback)
    return trainer


def after_steps(recipe: Recipe) -> list[TrainerCallback]:
    """What a recipe does to the weights after each step."""
    clip = [] if recipe.qk_clip is None else [QKClip(recipe.qk_clip)]
    return [*clip, *([CentreOutput()] if recipe.centre_output else [])]


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
        adam_beta2=BETAS[1],
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
