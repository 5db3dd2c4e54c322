"""The picture of advice: the neighbours that stay against the bytes of a vector, one panel for each correction."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from anisoscope.report.figures.style import WIDE, colour, marker, style, subplots
from anisoscope.runs.store import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLES = {"raw": "as they are, leading", "centred": "centred, principal", "whitened": "whitened, principal"}
_CODES = ("float32", "int8", "int4", "binary")


def figure_advice(run: Run) -> Figure:
    """Overlap with its interval (solid) and its forecast (dotted) by bytes; one line for each code."""
    with style():
        figure, panels = subplots(1, 3, size=(WIDE, 2.5), sharex=True, sharey=True)
        for panel, (name, title) in zip(panels, _TITLES.items(), strict=True):
            for index, code in enumerate(_CODES):
                _line(panel, run, f"{name}.{code}", index)
            panel.set(title=title, xlabel="bytes per vector", xscale="log", ylim=(0, 1.03))
        panels[0].set_ylabel("neighbours kept")
        panels[0].legend(loc="upper left")
        figure.supxlabel("dotted: forecast from mean and covariance", fontsize=6.5)
    return figure


def _line(panel: Axes, run: Run, site: str, index: int) -> None:
    saved = {row.at: row.value for row in run.rows(site=site, metric="memory_per_million")}
    for metric in ("neighbour_overlap", "overlap_forecast"):
        rows = [row for row in run.rows(site=site, metric=metric) if row.value is not None and saved.get(row.at)]
        x, y = [1000 * (saved[row.at] or 0) for row in rows], [row.value or 0.0 for row in rows]
        if metric == "overlap_forecast":
            panel.plot(x, y, color=colour(index), linestyle=":", linewidth=1)
            continue
        panel.plot(x, y, color=colour(index), marker=marker(index), label=site.partition(".")[2])
        ends = [(at, row.low, row.high) for at, row in zip(x, rows, strict=True)]
        for at, low, high in ends:
            if low is not None and high is not None:
                panel.vlines(at, low, high, colour(index))


def figures(run: Run) -> dict[str, Callable[[Run], Figure]]:
    """What dimensions, bits and corrections keep."""
    return {"advice": figure_advice}
