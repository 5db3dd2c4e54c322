"""Curves over training steps: read them from the rows of a run, and give them an axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anisoscope.runs.table import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
TICKS = 6


@dataclass(frozen=True)
class Line:
    """One metric at one site over steps; missing ends of the interval fall on the value."""

    steps: Array
    value: Array
    low: Array
    high: Array


def lines_of(rows: Iterable[Row]) -> dict[str, Line]:
    """The rows of one metric and seed as lines by site, in the order of the sites.

    >>> found = lines_of([Row(site="block.0", step=8, value=0.5), Row(site="block.0", step=0, value=0.1, low=0.0)])
    >>> found["block.0"].steps.tolist(), found["block.0"].low.tolist()
    ([0.0, 8.0], [0.0, 0.5])
    """
    by_site: dict[str, list[Row]] = {}
    for row in rows:
        if row.value is not None and row.step is not None:
            by_site.setdefault(row.site, []).append(row)
    return {site: _line(sorted(mine, key=lambda row: row.step or 0)) for site, mine in by_site.items()}


def _line(rows: list[Row]) -> Line:
    return Line(np.array([row.step for row in rows], float), *with_ends(rows))


def with_ends(rows: Sequence[Row]) -> tuple[Array, Array, Array]:
    """The values of rows and the ends of their intervals; missing ends fall on the value.

    >>> [column.tolist() for column in with_ends([Row(value=0.5, low=0.25, high=0.75), Row(value=0.1)])]
    [[0.5, 0.1], [0.25, 0.1], [0.75, 0.1]]
    """
    ends = [(row.value if row.low is None else row.low, row.value if row.high is None else row.high) for row in rows]
    low, high = np.array(ends, float).reshape(-1, 2).T
    return np.array([row.value for row in rows], float), low, high


def short(step: float) -> str:
    """A step as a label.

    >>> short(512), short(20_000), short(1_500_000)
    ('512', '20k', '1500k')
    """
    return f"{step / 1000:g}k" if step >= 10_000 else f"{step:.0f}"


def step_axis(axes: Axes, steps: Array, *, most: int = TICKS) -> None:
    """A linear axis, or one that is logarithmic from the first step on where checkpoints get sparser in training."""
    steps = np.asarray(steps, dtype=np.float64)
    positive = steps[steps > 0]
    sparser = len(positive) > 2 and positive[1] - positive[0] < (positive[-1] - positive[-2]) / 8
    if sparser:
        axes.set_xscale("symlog", linthresh=positive[0], linscale=0.5)
    at = np.unique(np.linspace(0, len(steps) - 1, min(most, len(steps))).round().astype(int))
    whole = [tick for tick in axes.get_xticks() if steps[0] <= tick <= steps[-1] and tick == round(tick)]
    ticks = steps[at] if sparser or len(steps) <= most else whole
    axes.set_xticks(ticks, [short(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(steps[0], steps[-1] if len(steps) > 1 else None)


def ramp(n: int) -> list[str]:
    """n colours from light to dark, for depth: viridis without its yellows, in which a thin line is lost on white."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis_r"](0.42 + 0.56 * i / max(n - 1, 1))) for i in range(n)]


def label_lines(axes: Axes, labels: Sequence[tuple[float, str, str]], *, gap: float) -> None:
    """Write (y, text, colour) right of the panel at the height of y, apart by `gap` of the panel's height.

    To be called once the scale and the limits of the axis are set.
    """
    if not labels:
        return
    labels = sorted(labels)
    heights = (axes.transScale + axes.transLimits).transform([(axes.get_xlim()[1], y) for y, _, _ in labels])[:, 1]
    for height, (_, text, shade) in zip(spread(heights, gap), labels, strict=True):
        axes.annotate(
            text,
            (1, height),
            xycoords="axes fraction",
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=6.5,
            color=shade,
            annotation_clip=False,
        )


def spread(heights: Array, gap: float) -> Array:
    """Rising heights moved apart, as many up as down: the mean of pushing all up and of pushing all down.

    >>> spread(np.array([0.5, 0.5, 0.9]), 0.2).round(6).tolist()
    [0.4, 0.6, 0.9]
    """
    place = gap * np.arange(len(heights))
    up = np.maximum.accumulate(heights - place) + place
    down = np.minimum.accumulate((heights - place)[::-1])[::-1] + place
    return (up + down) / 2
