"""Fit a correction of embeddings, to apply and to export.

`remedy fit` is this study: sums of the vectors in four folds, candidates fitted on some and judged on the others, the
chosen one fitted on everything. Its run holds the map; `apply` and `export` take it from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from anisoscope.runs.job import Job
from anisoscope.runs.settings import option
from anisoscope.runs.story import Story, Table, interval
from anisoscope.runs.study import RUNS_MODEL, SHARED, Findings, Study, words_of
from anisoscope.runs.table import Row
from anisoscope.runs.work.collected import Collected
from anisoscope.studies.folds import Embeddings, collect_folds, kinds, split_folds

_COLUMNS = ("floor_mean", "threshold", "nearest_gap", "nearest_gap_difference", "neighbour_overlap")


class RemedySettings(Embeddings):
    """What `anisoscope remedy fit` is asked."""

    method: Literal["best", "centre", "standardise", "all-but-the-top", "whiten", "whiten-k", "soft-zca"] = option(
        "The correction; best is chosen on held-out groups.", "best", short="-m"
    )
    dims: int | None = option("Dimensions to end in (default: all; whiten-k: 256).", None, ge=2)


def collect(job: Job) -> Collected:
    """One pass over the vectors, or over the texts of a model."""
    return {"": collect_folds(job)}


def conclude(settings: RemedySettings, collected: Collected) -> Findings:
    """The map, what it does to held-out pairs, and what the other methods would do."""
    from anisoscope.studies.remedy.choice import choose
    from anisoscope.studies.remedy.estimator import LEVELS

    part = collected[""]
    split = split_folds(part)
    found = choose(split, settings.method, settings.dims)
    d, k = found.map.dims
    protocol = {
        "method": found.method,
        "map": f"y = (x − mean)·matrix, then y/‖y‖; {d} to {k} dimensions",
        "judged on": f"{len(split.held.rows)} rows of groups apart, fitted on {split.n_fit} others",
        "fitted on": f"all {split.n} rows",
        **part.about.get("protocol", {}),
    }
    rows = [
        Row(
            site=name, metric=one.metric, value=one.value, low=one.low, high=one.high, null=one.null, n=one.n,
            note=one.note, at=one.at, protocol=words_of(protocol),
        )
        for name, estimates in found.estimates.items()
        for one in estimates
    ]  # fmt: skip
    arrays = {"mean": found.map.mean, "matrix": found.map.matrix, "floor.levels": LEVELS, "floor.values": found.floor}
    few = [] if split.n_fit >= 10 * d else [f"{split.n_fit} vectors in {d} dimensions: whitening needs ten times d"]
    notes = [*split.left_out, *few]
    data = {**part.about.get("data", {}), "rows": split.n}
    return Findings(rows, found.sentence, arrays=arrays, notes=notes, protocol=protocol, data=data)


def story(rows: Sequence[Row]) -> Story:
    """One line for each method."""
    cells = {(row.site, row.metric): row for row in rows if row.at is None or row.at == 0.01}
    body = []
    for site in dict.fromkeys(row.site for row in rows):
        found = [cells.get((site, metric)) for metric in _COLUMNS]
        values = ["–" if row is None or row.value is None else f"{row.value:.3f}" for row in found]
        body.append([site, *values[:4], interval(found[3]), values[4]])
    columns = ("", "floor", "threshold", "gap", "gain", "95 % interval", "kept")
    caption = (
        "Threshold: 1 % of unrelated pairs lie above it. Gap: the best match above the floor, in sds of the floor. "
        "Kept: share of the ten nearest neighbours."
    )
    return Story([Table(columns, body, caption=caption)])


STUDY = Study(
    RemedySettings,
    collect=collect,
    conclude=conclude,
    kinds=kinds,
    story=story,
    subject=lambda settings: Path(settings.files[0]).name,
    machine=RUNS_MODEL + SHARED,
    help="""
Fit a correction of embeddings: one affine map and a norm, from one pass in constant memory.

Without --method the best one is chosen on groups that none was fitted on; where nothing is worth doing, it says so.

Examples:
  anisoscope remedy fit embeddings.npy -o remedy/
  anisoscope remedy fit documents.parquet --column embedding --method whiten-k --dims 128 -o remedy/
  anisoscope remedy fit sentence-transformers/all-MiniLM-L6-v2 --data texts/ -o remedy/
""",
)
