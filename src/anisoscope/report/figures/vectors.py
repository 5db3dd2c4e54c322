"""The picture of two clouds: cosines within, between and of partners, and what they share, beside chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from anisoscope.inference.metrics import METRICS
from anisoscope.report.figures.style import NULL, WIDE, bars_told, colour, style, subplots
from anisoscope.runs.store import Run
from anisoscope.runs.table import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AGAINST, PAIR = "against", "pair"
_COSINES = ("cosine_between", "partner_cosine")
_SHARED = ("axes_overlap", "linear_cka", "neighbour_overlap")


def figure_two_clouds(run: Run) -> Figure:
    """Points with intervals; a vertical mark is the value by chance."""
    rows = [row for row in run.rows() if row.value is not None and row.positions == "all"]
    within = {"vectors": "within the first", AGAINST: "within the second"}
    cosines = [(words, row) for row in rows for site, words in within.items() if _is(row, site, ("mean_cosine",))]
    cosines += [(METRICS[row.metric].label, row) for row in rows if _is(row, PAIR, _COSINES)]
    shared = [
        (METRICS[row.metric].label + ("" if row.at is None else f", {row.at:.0f}"), row)
        for row in rows
        if _is(row, PAIR, _SHARED)
    ]
    with style():
        height = 0.9 + 0.24 * max(len(cosines), len(shared))
        figure, (left, right) = subplots(1, 2, size=(WIDE, height))
        _points(left, cosines, 0)
        _points(right, shared, 1)
        left.set(title="average cosine")
        right.set(title="what they share", xlim=(-0.03, 1.03))
        told = bars_told((row.low, row.high) for _, row in (*cosines, *shared))
        figure.supxlabel(f"vertical marks: by chance{told}", fontsize=6.5)
    return figure


def _is(row: Row, site: str, metrics: Sequence[str]) -> bool:
    return row.site == site and row.metric in metrics


def _points(panel: Axes, named: Sequence[tuple[str, Row]], index: int) -> None:
    for place, (_, row) in enumerate(named):
        if row.low is not None and row.high is not None:
            panel.hlines(place, row.low, row.high, colour(index), linewidth=2)
        panel.plot([row.value or 0.0], [place], marker="o", color=colour(index))
        if row.null is not None:
            panel.plot([row.null], [place], marker="|", markersize=9, color=NULL)
    panel.set_yticks(range(len(named)), [words for words, _ in named])
    panel.set_ylim(len(named) - 0.5, -0.5)
    panel.margins(x=0.08)


def figures(run: Run) -> dict[str, Callable[[Run], Figure]]:
    """Of two clouds; one cloud alone has no picture."""
    return {"two_clouds": figure_two_clouds} if any(row.site == PAIR for row in run.rows()) else {}
