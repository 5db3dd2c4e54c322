"""The picture of a gate: for each rule the limits as a band and what was measured as a point with its interval."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from anisoscope.report.figures.style import FAINT, WIDE, colour, missing, style
from anisoscope.runs.store import Run
from anisoscope.runs.table import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"holds": colour(2), "fails": colour(1), "cannot say": FAINT}
_RULE = re.compile(f"({'|'.join(_COLOURS)}): (.*)")
_LIMIT = re.compile(r"(moves by at most|at least|at most) (\S+)")


def figure_gate(run: Run) -> Figure:
    """One line for each rule and site, on an axis of its own."""
    import matplotlib.pyplot as plt

    judged = [(found, row) for row in run.rows() if row.value is not None and (found := _RULE.match(row.note))]
    if not judged:
        raise missing(run, "no rule with a value", "anisoscope gate")
    with style():
        height = 0.5 + 0.55 * len(judged)
        figure, panels = plt.subplots(len(judged), 1, figsize=(WIDE, height), squeeze=False, layout="constrained")
        for panel, (found, row) in zip(panels[:, 0], judged, strict=True):
            said, rule = found.groups()
            _line(panel, row, limits_of(rule), _COLOURS[said])
            panel.set_title(f"{row.site}, {rule}: {said}", loc="left")
        figure.supxlabel("grey: what the rule allows; bars: 95 % intervals", fontsize=6.5)
    return figure


def limits_of(words: str) -> tuple[float, float]:
    """The limits of a rule, which its row states in words.

    >>> limits_of("average cosine: moves by at most 0.02"), limits_of("neighbours kept: at least 0.95")
    ((-0.02, 0.02), (0.95, inf))
    """
    found = {name: float(value) for name, value in _LIMIT.findall(words)}
    move = found.get("moves by at most", float("inf"))
    return found.get("at least", -move), found.get("at most", move)


def _line(panel: Axes, row: Row, limits: tuple[float, float], shade: str) -> None:
    value = row.value or 0.0
    low, high = (value if end is None else end for end in (row.low, row.high))
    ends = [end for end in (*limits, low, high) if abs(end) != float("inf")]
    room = 0.08 * (max(ends) - min(ends) or 1.0)
    left, right = min(ends) - room, max(ends) + room
    panel.axvspan(max(limits[0], left), min(limits[1], right), color="#E8E8E8", zorder=0)
    panel.hlines(0, low, high, shade, linewidth=2)
    panel.plot([value], [0], marker="o", color=shade)
    panel.set(xlim=(left, right), yticks=[])


def figures(run: Run) -> dict[str, Callable[[Run], Figure]]:
    """The rules and what was measured."""
    return {"gate": figure_gate}
