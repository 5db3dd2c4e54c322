"""Sharp attention without drift? Attention variants (or objectives) trained side by side, then measured alike.

    anisoscope variants --data enwik8 --steps 4096 --seeds 0,1,2 --out variants

Each **arm** is one way to train: a variant of attention (`anisoscope.models.attention_kinds`), or an objective
(`mlm` and `headless` on a BERT, `clm` and `headless_clm` on a GPT-2, at the same number of tokens). All arms share
data, seeds, sizes and steps; all variants of a seed share their initial weights and every window of text. The last
checkpoint of each is measured on the same documents: mean cosine by layer, sharpness of attention, drift of queries and
keys. Intervals are Student's t over seeds, which is what differs between two trainings; the jackknife over sequences is
in the rows of each seed. What an arm changes is said by differences to the control, the first arm, seed by seed
(`anisoscope.studies.variants.rows`).

The study can be done in pieces: trainings go on where they were killed (seed by seed, so that all arms of the first
seed are there first), and what has been measured is kept as a run of its own under `measured/`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from anisoscope.errors import ModelError, UsageError
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.plan import Settings, default_folder, reuse_or_begin
from anisoscope.runs.store import Existing, open_run, write_run
from anisoscope.runs.table import Row
from anisoscope.studies.variants.rows import alignment_rows, averages, block_rows, differences, verdict
from anisoscope.training.recipe import Recipe, make_recipe
from anisoscope.training.series import log_rows

if TYPE_CHECKING:
    from anisoscope.models.open import OpenModel

ARMS: dict[str, dict[str, dict[str, str]]] = {
    "attention": {
        variant: {"attention": variant}
        for variant in ("softmax", "softmax_one", "sigmoid", "cosine", "query_centred", "gated", "no_bias")
    },
    "objectives": {
        "mlm": {"arch": "bert", "objective": "mlm"},
        "clm": {"arch": "gpt2", "objective": "clm"},
        "headless": {"arch": "bert", "objective": "headless"},
        "headless_clm": {"arch": "gpt2", "objective": "headless"},
    },
}

HIDDEN = ("mean_cosine", "drift_ratio")
ATTENTION = (
    "query_key_cosine", "query_drift_ratio", "key_drift_ratio", "query_mean_cosine", "key_mean_cosine",
    "entropy", "entropy_normalised", "max_probability", "salience_share", "sink_share",
)  # fmt: skip


class VariantsSettings(Settings):
    """What `anisoscope variants` does. `data` is trained on; `texts` are measured (embedded English without)."""

    command = "variants"

    compare: Literal["attention", "objectives"] = "attention"
    arms: list[str] = Field(default_factory=list)
    data: list[str] = Field(min_length=1)
    seeds: list[int] = Field(default_factory=lambda: [0, 1, 2], min_length=1)
    steps: int = 4096
    recipe: dict[str, Any] = Field(default_factory=dict)
    texts: list[str] = Field(default_factory=list)
    limit: int | None = 64

    def chosen(self) -> dict[str, Recipe]:
        """The recipe of each arm, for all seeds."""
        known = ARMS[self.compare]
        unknown = [arm for arm in self.arms if arm not in known]
        if unknown:
            raise UsageError("unknown arm", got=", ".join(unknown), expected=", ".join(known))
        common = {**self.recipe, "data": self.data, "seeds": self.seeds, "steps": self.steps}
        return {arm: make_recipe(**{**common, **known[arm]}) for arm in self.arms or known}


def run_variants(
    settings: VariantsSettings,
    *,
    out: Path | None = None,
    existing: Existing = "resume",
    announce: Callable[[str], None] = lambda line: None,
) -> Measurement:
    """Train what is not trained, measure what is not measured, and put all arms into one run."""
    recipes = settings.chosen()
    folder = out or default_folder(settings, name=settings.compare)
    finished = reuse_or_begin(folder, settings, existing=existing)
    if finished is not None:
        return Measurement.of_run(finished)
    started = time.monotonic()
    train_arms(recipes, folder, announce=announce)
    rows = [row for arm, recipe in recipes.items() for row in arm_rows(arm, recipe, folder, settings)]
    control = next(iter(recipes))
    rows = [*block_rows(rows), *rows]
    changes = differences(rows, control=control)
    if settings.compare == "objectives":  # losses of different tasks cannot be subtracted
        changes = [row for row in changes if not row.metric.startswith("validation")]
    rows = [*averages(rows), *changes, *rows]
    run = write_run(
        folder,
        command=settings.command,
        settings=settings.as_dict(),
        rows=rows,
        protocol={"intervals": "Student's t over seeds", "measured": f"checkpoint of step {settings.steps}"},
        model={arm: {"recipe": recipe.model_dump(mode="json")} for arm, recipe in recipes.items()},
        seconds=time.monotonic() - started,
        verdict=verdict(rows, control=control),
    )
    return Measurement.of_run(run)


def train_arms(recipes: dict[str, Recipe], folder: Path, *, announce: Callable[[str], None]) -> None:
    """Train every arm for every seed, the first seed of all arms first."""
    from anisoscope.training.pretrain import pretrain

    for seed in next(iter(recipes.values())).seeds:
        for arm, recipe in recipes.items():
            speak = lambda line, arm=arm: announce(f"{arm}, {line}")  # noqa: E731
            pretrain(recipe.model_copy(update={"seeds": (seed,)}), folder / "training" / arm, announce=speak)


def arm_rows(arm: str, recipe: Recipe, folder: Path, settings: VariantsSettings) -> Iterator[Row]:
    """The rows of every seed of an arm: its last losses and what its last checkpoint measures."""
    training = folder / "training" / arm
    for seed in recipe.seeds:
        for row in log_rows(training, seed):
            if row.step == recipe.steps and row.metric.startswith("validation"):
                yield replace(row, model=arm)
        kept = folder / "measured" / arm / f"seed-{seed}"
        if not (kept / "manifest.json").is_file():
            checkpoint = training / f"seed-{seed}" / f"checkpoint-{recipe.steps}"
            rows = measure_checkpoint(checkpoint, settings, like=Row(model=arm, seed=seed, step=recipe.steps))
            write_run(kept, command="variants-arm", settings=settings.as_dict(), rows=rows, protocol={})
        yield from (replace(row, run="") for row in open_run(kept).rows())


def measure_checkpoint(checkpoint: Path, settings: VariantsSettings, *, like: Row) -> list[Row]:
    """Hidden states, queries, keys and attention of one checkpoint on the texts of the study."""
    from anisoscope.models.batches.plan import make_batches
    from anisoscope.models.open import open_model
    from anisoscope.studies.attention.rows import attention_rows, measure_attention
    from anisoscope.studies.measure.study import Machine, MeasureSettings, measure_opened, open_data

    model = open_model(checkpoint)
    plan = MeasureSettings(
        models=[str(checkpoint)], data=settings.texts, limit=settings.limit, spectrum=False, neighbours=False
    )
    source = open_data(plan, model.modality)
    batches = list(make_batches(model, source, limit=settings.limit))
    check_capture(model, batches[0][1].inputs)
    hidden = measure_opened(model, source, plan, Machine()).rows
    sums = measure_attention(model, batches)
    protocol = next(row.protocol for row in hidden)
    attention = attention_rows(sums.heads, sums.rows, like=Row(protocol=protocol))
    kept = [row for row in hidden if row.metric in HIDDEN and row.positions == "all"]
    kept += [row for row in attention if row.metric in ATTENTION]
    kept += alignment_rows(attention, width=next(iter(sums.heads.values())).queries.d)
    return [replace(row, model=like.model, seed=like.seed, step=like.step) for row in kept]


def check_capture(model: OpenModel, inputs: dict[str, Any]) -> None:
    """Watching must not change what a variant computes: its last hidden state is the same with and without."""
    import torch

    from anisoscope.capture.attention.capture import AttentionCapture

    with torch.inference_mode():
        free = model.module(**inputs).last_hidden_state
        with AttentionCapture(model.module, lambda site, call: None):
            watched = model.module(**inputs).last_hidden_state
    valid = inputs["attention_mask"].bool() if "attention_mask" in inputs else ...
    difference = (free - watched)[valid].abs().max().item()
    if difference > 1e-3 * free[valid].abs().max().item():
        raise ModelError(
            "the attention of this model cannot be watched without changing it",
            where=model.name,
            got=f"hidden states that differ by {difference:.2g}",
        )
