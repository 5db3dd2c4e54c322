"""The arms of the study on disk: trained under `training/ARM`, each last checkpoint measured in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from anisoscope.capture.attention.capture import AttentionCapture
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.capture.inputs import model_inputs
from anisoscope.errors import ModelError, UsageError
from anisoscope.inputs.sources import open_places
from anisoscope.models.devices import sums_device
from anisoscope.runs.job import Job
from anisoscope.runs.table import Row
from anisoscope.runs.work.observers import AttentionSums, HiddenSums
from anisoscope.studies.attention import attention_context
from anisoscope.studies.attention.rows import attention_rows
from anisoscope.studies.measure.hidden import site_rows
from anisoscope.studies.variants.rows import alignment_rows
from anisoscope.training.pretrain import pretrain
from anisoscope.training.recipe import Recipe
from anisoscope.training.series import log_rows

if TYPE_CHECKING:
    from anisoscope.models.open import OpenModel

HIDDEN = ("mean_cosine", "drift_ratio")
ATTENTION = (
    *("query_key_cosine", "query_drift_ratio", "key_drift_ratio", "query_mean_cosine", "key_mean_cosine"),
    *("entropy", "entropy_normalised", "max_probability", "salience_share", "sink_share"),
)


def train_arms(job: Job, recipes: Mapping[str, Recipe]) -> Path:
    """Train every arm for every seed, the first seed of all arms first; the folder of the trainings."""
    if job.folder is None:
        raise UsageError("the trainings need a folder", do="give `out`")
    if not any(recipe.vision for recipe in recipes.values()):
        text = open_places(job.settings.data, "text")
        job.remember("data text", kind="data", modality="text", name=text.name, fingerprint=text.fingerprint())
    job.begin()
    folder = job.folder / "training"
    for seed in job.settings.seeds:
        for arm, recipe in recipes.items():
            pretrain(recipe.model_copy(update={"seeds": [seed]}), folder / arm, what=f"training {arm}")
    return folder


def arm_rows(job: Job, arm: str, recipe: Recipe, folder: Path) -> Iterator[Row]:
    """The rows of every seed of an arm: its last losses and what its last checkpoint measures."""
    for seed in recipe.seeds:
        for row in log_rows(folder / arm, seed):
            if row.step == recipe.steps and row.metric.startswith("validation"):
                yield replace(row, model=arm)
        checkpoint = folder / arm / f"seed-{seed}" / f"checkpoint-{recipe.steps}"
        for row in measure_checkpoint(job, checkpoint, f"{arm}, seed {seed}"):
            yield replace(row, model=arm, seed=seed, step=recipe.steps)


def measure_checkpoint(job: Job, checkpoint: Path, label: str) -> list[Row]:
    """Hidden states, queries, keys and attention of one checkpoint on the texts of the study, in one pass."""
    model = job.open_model(str(checkpoint), label=label)
    job.inputs.pop(f"model {label}")  # made by this run, and nothing that it was given
    check_capture(model, next(iter(job.batches(model, field="texts")))[1].inputs)
    device = sums_device(job.machine.device)

    def observers() -> dict[str, Any]:
        hidden = HiddenSums(HiddenCapture(model.module), spectrum=False, sample=0, device=device)
        return {"hidden": hidden, "attention": AttentionSums()}

    part = job.run(label, model, observers, field="texts")
    heads: Any = part.sums["attention"]
    attention = attention_rows(heads.heads, heads.rows, like=attention_context(label, part))
    rows = site_rows(part, label, spectrum="none", neighbours=False).rows
    kept = [row for row in rows if row.metric in HIDDEN and row.positions == "all"]
    kept += [row for row in attention if row.metric in ATTENTION]
    return kept + alignment_rows(attention, width=next(iter(heads.heads.values())).queries.d)


def check_capture(model: OpenModel, inputs: Mapping[str, torch.Tensor]) -> None:
    """Watching must not change what a variant computes: its last hidden state is the same with and without."""
    given = model_inputs(model.module, inputs)
    with torch.inference_mode():
        free = model.module(**given).last_hidden_state
        with AttentionCapture(model.module, lambda site, call: None):
            watched = model.module(**given).last_hidden_state
    valid = given["attention_mask"].bool() if "attention_mask" in given else ...
    difference = (free - watched)[valid].abs().max().item()
    if difference > 1e-3 * free[valid].abs().max().item():
        raise ModelError(
            "the attention of this model cannot be watched without changing it",
            where=model.name,
            got=f"hidden states that differ by {difference:.2g}",
        )
