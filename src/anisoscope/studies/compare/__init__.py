"""Differences between two runs by site, with intervals.

Did the geometry survive a port, a quantisation, a fine-tuning? See `differences`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from anisoscope.inference.metrics import lookup
from anisoscope.runs.job import Job
from anisoscope.runs.settings import Settings, option
from anisoscope.runs.story import Story, Table, interval, number
from anisoscope.runs.study import Findings, Study
from anisoscope.runs.table import Row

_FEW = 12  # lines of tables on the first screen
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
    """Before, after, difference, changed?: as many tables as a screen holds, the others on request."""
    apart = [row for row in rows if row.metric not in _TOGETHER]
    metrics = [row.metric for row in apart if not row.metric.endswith(("_before", "_after"))]
    tables = {metric: _table(apart, metric) for metric in dict.fromkeys(metrics)}
    told = [*(tables.pop(m) for m in _TOLD if m in tables), *tables.values()]
    told.insert(1, _alike([row for row in rows if row.metric in _TOGETHER]))
    told = [table for table in told if table.cells]
    ends = list(accumulate(len(table.cells) for table in told))
    few = max(1, sum(end <= _FEW for end in ends[: len(_TOLD) + 1]))
    return Story(told[:few], more=told[few:])


def _alike(rows: Sequence[Row]) -> Table:
    """How alike the vectors are that both runs sampled, one line for each site."""
    cells = {(f"{row.model} {row.site}".strip(), row.metric): number(row.value) for row in rows}
    known = [metric for metric in _TOGETHER if any(row.metric == metric for row in rows)]
    body = [[at, *(cells.get((at, name), "–") for name in known)] for at in dict.fromkeys(at for at, _ in cells)]
    title = "vector by vector, on those that both runs sampled"
    return Table(("site", *(_TOGETHER[name] for name in known)), body, title=title)


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
    """Whether the interval of a difference excludes 0; nothing where there is none."""
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
