"""Attention by layer and head, from a run of `anisoscope attention`: heat maps of cos(Q̄, K̄), entropy, salience, sinks.

A row of cells is a layer, a cell a head. A pointer on the colour bar says what the null is. A cell with a small circle
cannot be distinguished from it: its 95 % interval contains the null, or its cosine lies within ±1.96/√d_head, where
unrelated means do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from anisoscope.report.figures.style import COLUMN, INK, NULL, missing, style, subplots
from anisoscope.runs.store import Run
from anisoscope.runs.table import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw = Callable[[Run], "Figure"]
_MAPS = {
    "query_key_cosine": ("cos(Q̄, K̄)", "RdBu_r", (-1.0, 1.0)),
    "entropy_normalised": ("entropy / log n", "viridis", (0.0, 1.0)),
    "salience_share": ("salience share", "cividis", (0.0, 1.0)),
    "sink_share": ("share of the first key", "magma", (0.0, 1.0)),
}


def figures(run: Run) -> dict[str, Draw]:
    """A heat map for each of the four that the run holds."""
    return {metric: partial(figure_heads, metric=metric) for metric in _MAPS if run.rows(metric=metric)}


def figure_heads(run: Run, *, metric: str) -> Figure:
    """The heat map of one metric."""
    rows = [row for row in run.rows(metric=metric) if row.head is not None]
    if not rows:
        raise missing(run, f"no {metric} of any head", "attention")
    layers = list(dict.fromkeys(_layer(row) for row in rows))
    heads = 1 + max(row.head for row in rows if row.head is not None)
    label, palette, limits = _MAPS[metric]
    with style():
        height = 0.95 + 0.17 * max(len(layers), 4)
        figure, axes = subplots(size=(max(COLUMN, 1.6 + 0.2 * heads), height))
        cells = np.full((len(layers), heads), np.nan)
        for row in rows:
            cells[layers.index(_layer(row)), row.head] = np.nan if row.value is None else row.value
        image = axes.imshow(cells, cmap=palette, vmin=limits[0], vmax=limits[1], aspect="auto", interpolation="none")
        unsure = _within_null(run, rows)
        if unsure:
            edge = INK if metric == "query_key_cosine" else "white"
            places = zip(*((row.head or 0, layers.index(_layer(row))) for row in unsure), strict=True)
            axes.scatter(*places, s=6, facecolors="none", edgecolors=edge, linewidths=0.7)
        _name_cells(axes, layers, heads)
        bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=18)
        bar.set_label(label)
        null = next((row.null for row in rows if row.null is not None), None)
        if null is not None:
            at = bar.ax.get_yaxis_transform()
            bar.ax.text(-0.05, null, "▶", transform=at, ha="right", va="center", fontsize=6, color=INK)
        circled = f"; circles: {len(unsure)} heads within the null" if unsure else ""
        figure.supxlabel(f"{rows[0].model}\npointer on the bar: null{circled}", fontsize=6.5, color=NULL)
    return figure


def _layer(row: Row) -> str:
    return row.site.rpartition(".head.")[0]


def _within_null(run: Run, rows: Sequence[Row]) -> list[Row]:
    """The heads that cannot be distinguished from the null."""
    if rows[0].metric != "query_key_cosine":
        return [row for row in rows if None not in (row.low, row.high, row.null) and row.low <= row.null <= row.high]  # pyright: ignore
    d = {
        name.removesuffix(".query"): array.shape[-1] for name, array in run.arrays().items() if name.endswith(".query")
    }
    return [row for row in rows if row.value is not None and abs(row.value) < 1.96 * d[_layer(row)] ** -0.5]


def _name_cells(axes: Axes, layers: Sequence[str], heads: int) -> None:
    every = max(1, len(layers) // 16)
    axes.set_yticks(range(0, len(layers), every), layers[::every])
    axes.set_xticks(range(0, heads, 1 if heads <= 16 else 4))
    axes.set_xlabel("head")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
