"""Average cosine by layer (figures 1–4 of the paper) and the drift tests (figures 5 and 16).

One line a model over its sites in order of computation: embeddings, blocks, and what the final norm makes of the last
block, set apart by an open marker. The band is the 95 % interval, the dotted line the 95 % quantile of the cosine of an
isotropic pair in the model's dimension (the loosest line where models differ).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from anisoscope.geometry.null import cosine_quantile
from anisoscope.report.figures.style import COLUMN, WIDE, colour, label_ends, marker, null_line, stand_in, style
from anisoscope.runs.store import Run
from anisoscope.runs.table import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIGNIFICANT = 0.05


def figures_of_layers(run: Run) -> dict[str, Callable[[Run], Figure]]:
    """The figures that a measured run has: cosine by layer; the drift tests once there are layers to correlate."""
    figures: dict[str, Callable[[Run], Figure]] = {"cosine-by-layer": figure_layers}
    if any(row.value is not None for row in run.rows(metric="spearman_drift_norm_p")):
        figures["drift-tests"] = figure_drift_tests
    return figures


def figure_layers(run: Run, *, title: str = "", stands_in: str | None = None) -> Figure:
    """Average cosine by site, one line a model."""
    import matplotlib.pyplot as plt

    rows = [row for row in run.rows(metric="mean_cosine", positions="all") if row.value is not None]
    with style():
        figure, axes = plt.subplots(figsize=(COLUMN, 2.4), layout="constrained")
        draw_layers(axes, rows, run.rows(metric="dimension", positions="all"))
        axes.set(title=title, xlabel="depth (site in order of computation)", ylabel="average cosine")
        if stands_in:
            stand_in(figure, stands_in)
    return figure


def draw_layers(axes: Axes, rows: Sequence[Row], dimensions: Sequence[Row]) -> None:
    """The lines, bands and null of figures 1–4, into a panel."""
    models = list(dict.fromkeys(row.model for row in rows))
    ends = []
    for i, model in enumerate(models):
        mine = [row for row in rows if row.model == model]
        x, y = np.arange(len(mine)), np.array([row.value for row in mine], float)
        low = np.array([row.value if row.low is None else row.low for row in mine], float)
        high = np.array([row.value if row.high is None else row.high for row in mine], float)
        axes.fill_between(x, low, high, color=colour(i), alpha=0.2, linewidth=0)
        axes.plot(x, y, color=colour(i))
        for k, row in enumerate(mine):
            face = "white" if row.site.endswith("norm") else colour(i)
            axes.plot(x[k], y[k], marker=marker(i), color=colour(i), markerfacecolor=face, markeredgewidth=0.9)
        split = next((k for k, row in enumerate(mine) if row.site.startswith("decoder.")), None)
        if split is not None:
            axes.axvline(split - 0.5, color=colour(i), linewidth=0.5, linestyle="--", alpha=0.6)
        ends.append((x[-1] + 0.25, float(y[-1]), model.rpartition("/")[2], colour(i)))
    d = min((int(row.value) for row in dimensions if row.value), default=0)
    top = max([float(row.high or row.value or 0) for row in rows] + [0.1])
    bottom = min([float(row.low or row.value or 0) for row in rows] + [0.0])
    axes.set_ylim(min(bottom - 0.03, -0.03), min(1.02, top * 1.12 + 0.02))
    longest = max(sum(row.model == model for row in rows) for model in models)
    axes.set_xlim(-0.4, longest - 0.6)
    axes.axhline(0, color="#BBBBBB", linewidth=0.7)
    if d > 1:
        null_line(axes, float(cosine_quantile(0.95, d)), f"95 % of isotropic pairs, d = {d}")
    label_ends(axes, ends)
    if any(row.site.endswith("norm") for row in rows):
        axes.text(0.01, 0.98, "open marker: after the final norm", transform=axes.transAxes, fontsize=6, va="top")


def figure_drift_tests(run: Run, *, method: str = "spearman") -> Figure:
    """p-values of the correlation of average cosine with drift, one point a model (figure 5; Pearson: figure 16)."""
    import matplotlib.pyplot as plt

    models = list(dict.fromkeys(row.model for row in run.rows(metric=f"{method}_drift_norm_p")))
    kinds = (("drift_norm", "‖x̄‖ (paper)", "o"), ("drift_ratio", "‖x̄‖²/E‖x‖² (ours)", "D"))
    with style():
        figure, axes = plt.subplots(figsize=(WIDE * 0.62, 0.75 + 0.24 * max(len(models), 2)), layout="constrained")
        for k, (against, label, shape) in enumerate(kinds):
            found = {row.model: row.value for row in run.rows(metric=f"{method}_{against}_p")}
            shown = [(model, found[model]) for model in models if found.get(model) is not None]
            places = [models.index(model) + 0.12 * (2 * k - 1) for model, _ in shown]
            axes.scatter(
                [max(p or 0, 1e-4) for _, p in shown], places, marker=shape, s=18, color=colour(k), label=label
            )
        axes.axvline(SIGNIFICANT, color="#C00000", linestyle=":", linewidth=1.1)
        axes.set_yticks(range(len(models)), [model.rpartition("/")[2] for model in models])
        axes.set_ylim(len(models) - 0.5, -0.5)
        axes.set(
            xscale="log", xlim=(5e-5, 1.5), xlabel=f"p-value of {method.capitalize()}'s test over layers (permutation)"
        )
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.0), ncols=2, borderaxespad=-1.6)
    return figure
