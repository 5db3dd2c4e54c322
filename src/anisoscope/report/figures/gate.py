"""The picture of a gate: for each rule the limits as a band and what was measured as a point with its interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from anisoscope.report.figures.style import FAINT, WIDE, bars_told, colour, style, subplots
from anisoscope.runs.store import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"holds": colour(2), "fails": colour(1), "cannot say": FAINT}


def figure_gate(run: Run) -> Figure:
    """One line for each rule and site, on an axis of its own."""
    judged = _judged(run)
    with style():
        height = 0.5 + 0.55 * len(judged)
        figure, panels = subplots(len(judged), 1, size=(WIDE, height), squeeze=False)
        for panel, one in zip(panels[:, 0], judged, strict=True):
            _line(panel, one)
            panel.set_title(f"{one['site']}, {one['rule']}: {one['outcome']}", loc="left")
        told = bars_told((one["low"], one["high"]) for one in judged)
        figure.supxlabel(f"grey: what the rule allows{told}", fontsize=6.5)
    return figure


def _judged(run: Run) -> list[Mapping[str, Any]]:
    """The verdicts on what was measured; none in a run of an earlier version."""
    return [one for one in run.manifest.get("verdicts") or () if one["value"] is not None]


def _line(panel: Axes, verdict: Mapping[str, Any]) -> None:
    value, shade, limits = verdict["value"], _COLOURS[verdict["outcome"]], verdict["limits"]
    low, high = (value if end is None else end for end in (verdict["low"], verdict["high"]))
    ends = [end for end in (*limits, low, high) if end is not None]
    room = 0.08 * (max(ends) - min(ends) or 1.0)
    left, right = min(ends) - room, max(ends) + room
    inside = (edge if limit is None else limit for limit, edge in zip(limits, (left, right), strict=True))
    panel.axvspan(*inside, color="#E8E8E8", zorder=0)
    panel.hlines(0, low, high, shade, linewidth=2)
    panel.plot([value], [0], marker="o", color=shade)
    panel.set(xlim=(left, right), yticks=[])


def figures(run: Run) -> dict[str, Callable[[Run], Figure]]:
    """The rules and what was measured."""
    return {"gate": figure_gate} if _judged(run) else {}
