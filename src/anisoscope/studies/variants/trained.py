"""The trainings of the study on disk, under `training/ARM`: each trained, its last checkpoint measured in one pass."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from anisoscope.runs.work.collected import Collected, Part, counting
from anisoscope.runs.work.engines import Local
from anisoscope.runs.work.observers import AttentionSums, HiddenSums
from anisoscope.runs.writing import atomic
from anisoscope.studies.attention import attention_context
from anisoscope.studies.attention.rows import attention_rows
from anisoscope.studies.measure.hidden import site_rows
from anisoscope.studies.variants.rows import alignment_rows
from anisoscope.training.folder import Diverged
from anisoscope.training.pretrain import pretrain
from anisoscope.training.recipe import Recipe
from anisoscope.training.series import log_rows

if TYPE_CHECKING:
    from anisoscope.models.open import OpenModel

HIDDEN = ("mean_cosine", "drift_ratio", "isoscore")
ATTENTION = (
    *("query_key_cosine", "query_drift_ratio", "key_drift_ratio", "query_mean_cosine", "key_mean_cosine"),
    *("entropy", "entropy_normalised", "max_probability", "salience_share", "sink_share"),
)


DIVERGED = "diverged.json"


def collect_trainings(job: Job, wanted: Mapping[str, tuple[str, int]]) -> Collected:
    """Train and measure arm and seed of every label; a training that diverges is there without sums."""
    if job.folder is None:
        raise UsageError("the trainings need a folder", do="give `out`")
    recipes = job.settings.chosen()
    if not any(recipe.vision for recipe in recipes.values()):
        text = open_places(job.settings.data, "text")
        job.remember("data text", kind="data", modality="text", name=text.name, fingerprint=text.fingerprint())
    job.begin()
    own = replace(job, engine=Local())  # each training and its measurement are the work of one process

    def train(label: str) -> Part:
        arm, seed = wanted[label]
        return _training(own, label, arm, recipes[arm], seed)

    return job.engine.each(list(wanted), train, _nothing)


def _nothing() -> dict[str, Any]:
    return counting(lambda: {"hidden": HiddenSums(), "attention": AttentionSums()})()


def _training(job: Job, label: str, arm: str, recipe: Recipe, seed: int) -> Part:
    assert job.folder is not None
    folder = job.folder / "training" / arm
    failed = _train(recipe.model_copy(update={"seeds": [seed]}), folder, arm)
    if failed is None:
        part = measure_checkpoint(job, folder / f"seed-{seed}" / f"checkpoint-{recipe.steps}", label)
        logged = [row for row in log_rows(folder, seed) if row.step == recipe.steps]
        logged = [replace(row, model=arm) for row in logged if row.metric.startswith("validation")]
    else:
        part = Part(_nothing(), {"notes": [f"{label}: {failed['words']}"]})
        step = failed["step"]
        logged = [Row(model=arm, step=step, seed=seed, metric="diverged_at", value=step, note=failed["words"])]
    column = {"model": arm, "seed": seed, "step": recipe.steps}
    part.about["training"] = {"arm": arm, "column": column, "rows": [row.as_dict() for row in logged]}
    return part


def _train(recipe: Recipe, folder: Path, arm: str) -> dict[str, Any] | None:
    """Train one seed, unless it is known to diverge; when it did, if so."""
    mark = folder / f"seed-{recipe.seeds[0]}" / DIVERGED
    if not mark.exists():
        try:
            pretrain(recipe, folder, what=f"training {arm}")
            return None
        except Diverged as error:
            with atomic(mark) as partial:
                partial.write_text(json.dumps({"step": error.step, "words": error.what}), encoding="utf-8")
    return json.loads(mark.read_text(encoding="utf-8"))


def training_rows(label: str, part: Part) -> list[Row]:
    """What one training measured, and its last losses."""
    about = part.about["training"]
    logged = [Row(**row) for row in about["rows"]]
    if not part.keys("attention"):
        return logged
    heads: Any = part.sums["attention"]
    attention = attention_rows(heads.heads, heads.rows, like=attention_context(label, part))
    rows = site_rows(part, label, neighbours=False).rows
    kept = [row for row in rows if row.metric in HIDDEN and row.positions == "all"]
    kept += [row for row in attention if row.metric in ATTENTION]
    kept += alignment_rows(attention, width=next(iter(heads.heads.values())).queries.d)
    return logged + [replace(row, **about["column"]) for row in kept]


def measure_checkpoint(job: Job, checkpoint: Path, label: str) -> Part:
    """Hidden states, queries, keys and attention of one checkpoint on the texts of the study, in one pass."""
    model = job.open_model(str(checkpoint), label=label)
    job.inputs.pop(f"model {label}")  # made by this run, and nothing that it was given
    check_capture(model, next(iter(job.batches(model, field="texts")))[1].inputs)
    device = sums_device(job.machine.device)

    def observers() -> dict[str, Any]:
        hidden = HiddenSums(HiddenCapture(model.module), sample=0, device=device)
        return {"hidden": hidden, "attention": AttentionSums()}

    return job.run(label, model, observers, field="texts")


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
