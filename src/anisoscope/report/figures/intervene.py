"""What interventions change, from a run of `anisoscope intervene`: one panel per quantity, one line per intervention.

Filled: the intervention. Hollow: its control, as much in random directions. Bars are 95 % intervals by sequence, the
dotted line is no change. Axes are linear near 0 and logarithmic beyond, because removals differ by orders of magnitude.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from anisoscope.report.figures.style import NULL, WIDE, colour, missing, side_by_side, style
from anisoscope.runs.store import Run
from anisoscope.runs.table import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS = {
    "loss_change": ("loss (nats)", 0.01),
    "entropy_normalised_change": ("entropy / log n", None),
    "sink_share_change": ("share of first key", None),
    "last_cosine_change": ("cosine, last block", None),
}
"""Metric to what its panel is called, and where its logarithmic axis begins (None: a linear one)."""


def figures(run: Run) -> dict[str, Callable[[Run], Figure]]:
    return {"interventions": figure_interventions}


def figure_interventions(run: Run) -> Figure:
    """The changes, side by side."""

    found = {metric: {row.site: row for row in run.rows(metric=metric) if row.value is not None} for metric in _PANELS}
    found = {metric: rows for metric, rows in found.items() if rows}
    if not found:
        raise missing(run, "no changes", "intervene")
    names = [
        name
        for name in dict.fromkeys(site for rows in found.values() for site in rows)
        if name != "untouched" and not name.endswith(".control")
    ]
    with style():
        figure, panels = side_by_side(len(found), 0.95 + 0.24 * len(names), WIDE)
        for axes, (metric, rows) in zip(panels, found.items(), strict=True):
            label, linear = _PANELS[metric]
            _draw(axes, [rows.get(name) for name in names], place=-0.13, filled=True)
            _draw(axes, [rows.get(f"{name}.control") for name in names], place=0.13, filled=False)
            axes.axvline(0, color=NULL, linestyle=":", linewidth=1)
            axes.set_title(label)
            axes.margins(x=0.12)
            _scale(axes, linear)
        panels[0].set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
        panels[0].set_ylim(len(names) - 0.5, -0.5)
        model = next(iter(found.values()))["untouched"].model
        figure.supxlabel(
            f"change against the untouched model; {model}; hollow: control in random directions",
            fontsize=6.5,
            color=NULL,
        )
    return figure


def _scale(axes: Axes, linear: float | None) -> None:
    """A linear axis, or one that is logarithmic beyond ±`linear`, with few enough ticks for a narrow panel."""
    if linear is None:
        axes.locator_params(axis="x", nbins=3)
        return
    axes.set_xscale("symlog", linthresh=linear, linscale=0.4)
    low, high = axes.get_xlim()
    reach = [sign * linear * 10.0**k for k in range(1, 6) for sign in (-1, 1)]
    ticks = sorted([0.0, *(tick for tick in reach if low <= tick <= high)])
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def _draw(axes: Axes, rows: Sequence[Row | None], *, place: float, filled: bool) -> None:
    """Points with their intervals, one per line; a line without one stays empty."""
    for line, row in enumerate(rows):
        if row is None or row.value is None:
            continue
        ends = None if row.low is None or row.high is None else [[row.value - row.low], [row.high - row.value]]
        axes.errorbar(
            row.value,
            line + place,
            xerr=ends,
            fmt="o",
            color=colour(0) if filled else NULL,
            markersize=3.6,
            markerfacecolor=colour(0) if filled else "white",
            elinewidth=0.9,
            capsize=1.5,
        )
