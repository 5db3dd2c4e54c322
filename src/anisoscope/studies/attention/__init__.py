"""Queries, keys and attention rows of a model, by layer and head.

One pass; everything is a sum or a running maximum (`runs.work.observers.AttentionSums`). `arrays` of the run hold the
drift directions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anisoscope.runs.job import Job
from anisoscope.runs.settings import LARGEST_SEED, Data, Model, Settings, option
from anisoscope.runs.study import Findings, Study, words_of
from anisoscope.runs.table import Row
from anisoscope.runs.work.collected import Collected, Part
from anisoscope.studies.attention.story import attention_verdict, story

if TYPE_CHECKING:
    from anisoscope.models.batches.plan import Batch
    from anisoscope.models.open import OpenModel
    from anisoscope.runs.measurement import Measurement


class Heads(Settings):
    """How queries and keys are looked at."""

    before_rotary: bool = option("Queries and keys before rotation (default: as they are scored).", False)
    sample: int = option("How many queries and keys of each head are kept for drawing clouds.", 128, ge=1, le=2**20)
    seed: int = option("Seed of the sample.", 0, ge=0, le=LARGEST_SEED)


class AttentionSettings(Model, Data, Heads):
    """What `anisoscope attention` is asked."""

    export_key_means: str | None = option(
        "Write the mean key of every head to this safetensors file, and measure whether subtracting it helps a cache.",
        None,
        writes="safetensors",
    )


def attention_sums(settings: Any) -> Any:
    """The observer of attention, as the settings say."""
    from anisoscope.runs.work.observers import AttentionSums

    return AttentionSums(before_rotary=settings.before_rotary, sample=settings.sample, seed=settings.seed)


def collect(job: Job) -> Collected:
    """One pass, and on one window what taking the mean key or query away does."""
    ((label, model),) = job.models()
    part = job.run(label, model, lambda: {"attention": attention_sums(job.settings)})
    if job.first_share:
        from anisoscope.studies.attention.removal import removal_effects

        window = _first_window(job, model)
        part.about["removal"] = removal_effects(model, window)
        if job.settings.export_key_means is not None and not job.settings.before_rotary:
            from anisoscope.studies.attention.key_codes import key_errors, key_means

            sums: Any = part.sums["attention"]
            part.about["key_codes"] = key_errors(model, window, key_means(sums.heads))
    return {label: part}


def _first_window(job: Job, model: OpenModel) -> Batch:
    """The first window of the first document that has one."""
    from anisoscope.errors import InputError

    limit = 1
    while True:
        try:
            return next(iter(job.batches(model, batch_tokens=1, limit=limit)))[1]
        except InputError:  # documents without a token
            if limit > 2**20:
                raise
            limit *= 2


def conclude(settings: AttentionSettings, collected: Collected) -> Findings:
    """The rows of every layer and head, and the drift directions."""
    from anisoscope.errors import ModelError
    from anisoscope.studies.attention.key_codes import key_means, key_verdict
    from anisoscope.studies.attention.rows import attention_rows, drift_directions

    ((label, part),) = collected.items()
    sums: Any = part.sums["attention"]
    if not sums.heads:
        raise ModelError("no attention was seen", where=label, do="name a model with attention, and data")
    like = attention_context(label, part)
    rows = attention_rows(sums.heads, sums.rows, like=like)
    note = "greatest change of a probability in one window"
    rows += [
        replace(like, site=site, metric=metric, value=value, null=0.0, note=note)
        for site, metric, value in part.about.get("removal", ())
    ]
    rows += [
        replace(like, site=site, metric=metric, at=float(bits), value=value, null=0.0, note="one window")
        for site, metric, bits, value in part.about.get("key_codes", ())
    ]
    arrays = drift_directions(sums.heads)
    if settings.export_key_means is not None:
        arrays = {**arrays, **key_means(sums.heads)}
    said = " ".join(filter(None, (attention_verdict(rows), key_verdict(rows))))
    unscored = [site for site in sums.heads if site not in sums.rows]
    where = "any site" if len(unscored) == len(sums.heads) else ", ".join(unscored)
    told = "its scores cannot be rebuilt from queries and keys, which are taken as its projections return them"
    notes = [f"no attention rows at {where}: {told}"] if unscored else []
    return Findings(rows, said, arrays=arrays, notes=notes)


def attention_context(label: str, part: Part) -> Row:
    """The columns that all rows of a part share."""
    about = part.about
    return Row(model=label, revision=about["model"]["revision"], protocol=words_of(about["protocol"]))


def _export(settings: AttentionSettings, measurement: Measurement) -> None:
    from anisoscope.studies.attention.key_codes import export_key_means

    export_key_means(settings, measurement)


STUDY = Study(
    AttentionSettings,
    collect=collect,
    conclude=conclude,
    story=story,
    export=_export,
    help="""
How queries and keys drift, how sharp attention is, and what makes its scores vary: every layer, every head.

Examples:
  anisoscope attention bert-base-uncased --data wikitext/valid.txt --limit 128
  anisoscope attention EleutherAI/pythia-70m --revision step1000 --before-rotary
  anisoscope attention ./checkpoint-500 --json
  anisoscope attention ./model --data texts/ --export-key-means means.safetensors
""",
)
