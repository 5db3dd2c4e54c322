"""Differences between two runs by site, with intervals.

Did the geometry survive a port, a quantisation, a fine-tuning? See `differences`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anisoscope.inference.metrics import lookup
from anisoscope.runs.job import Job
from anisoscope.runs.settings import Settings, option
from anisoscope.runs.story import Story, Table, interval, number, pivot
from anisoscope.runs.study import Findings, Study
from anisoscope.runs.table import Row

_TOLD = ("mean_cosine", "drift_ratio", "participation_ratio_unbiased")
_TOGETHER = {
    "partner_cosine": "cosine",
    "linear_cka": "linear CKA",
    "procrustes_distance": "Procrustes distance",
    "neighbour_overlap": "neighbours kept",
}


class CompareSettings(Settings):
    """What `anisoscope compare` is asked."""

    first: str = option("Run folder of the original.", argument=True, paths=True)
    second: str = option("Run folder of the port, the quantised or the fine-tuned model.", argument=True, paths=True)
    aligned: bool = option("Runs of two vector files whose rows are the same things in the same order.", False)


def measure(job: Job) -> Findings:
    """Second minus first."""
    from anisoscope.studies.compare.differences import compare_runs

    settings = job.settings
    return compare_runs(job.open_run(settings.first), job.open_run(settings.second), aligned=settings.aligned)


def story(rows: Sequence[Row]) -> Story:
    """Before, after, difference, changed?: a table for each metric that matters, the others on request."""
    apart = [row for row in rows if row.metric not in _TOGETHER]
    metrics = [row.metric for row in apart if not row.metric.endswith(("_before", "_after"))]
    tables = {metric: _table(apart, metric) for metric in dict.fromkeys(metrics)}
    alike = pivot(rows, ("model", "site"), _TOGETHER, title="vector by vector, on those that both runs sampled")
    first = [*(tables[m] for m in _TOLD if m in tables), *([alike] if alike.cells else [])]
    return Story(first, more=[t for m, t in tables.items() if m not in _TOLD])


def _table(rows: Sequence[Row], metric: str) -> Table:
    cells = {(row.model, row.site, row.metric): row for row in rows}
    body = []
    for row in (row for row in rows if row.metric == metric and row.value is not None):
        sides = [cells.get((row.model, row.site, f"{metric}_{side}")) for side in ("before", "after")]
        values = [number(side.value if side else None) for side in sides]
        body.append([f"{row.model} {row.site}".strip(), *values, f"{row.value:+.4g}", interval(row), changed(row)])
    columns = ("site", "before", "after", "difference", "95 % interval", "changed?")
    return Table(columns, body, title=lookup(metric).label)


def changed(row: Row) -> str:
    """Whether the interval of a difference leaves out 0; nothing where there is none."""
    if row.low is None or row.high is None:
        return "cannot say"
    return "yes" if row.low > 0 or row.high < 0 else "no"


STUDY = Study(
    CompareSettings,
    measure=measure,
    story=story,
    subject=lambda settings: f"{Path(settings.first).name}-{Path(settings.second).name}",
    machine=(),
    help="""
Did the geometry survive? Differences between two runs by site, with intervals paired by sequence group.

Examples:
  anisoscope compare runs/original runs/quantised
  anisoscope compare runs/base runs/tuned --out runs/difference --json
""",
)
