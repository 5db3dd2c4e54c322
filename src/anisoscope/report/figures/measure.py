"""Average cosine by layer (figures 1–4 of the paper) and the drift tests (figures 5 and 16).

One line per model over its sites in order of computation: embeddings, blocks, and what the final norm makes of the last
block, set apart by an open marker. The band is the 95 % interval, the dotted line the average of isotropic pairs,
which is 0 in any dimension; around it, in the model's colour, how far it strays at this n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from anisoscope.geometry.nulls.isotropic import mean_cosine_sd
from anisoscope.inference.correlation import correlate
from anisoscope.report.figures.style import (
    COLUMN,
    NULL,
    WIDE,
    colour,
    glyph,
    heading,
    marker,
    null_line,
    style,
    subplots,
)
from anisoscope.report.figures.style.curves import label_lines, with_ends
from anisoscope.report.figures.style.names import shown_name
from anisoscope.runs.store import Run
from anisoscope.runs.table import Row, is_embedding, is_part, listed_by_library

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

SIGNIFICANT = 0.05
_NORMAL = 1.96  # what 95 % of a normal variable stay within, in standard deviations


def figures(run: Run) -> dict[str, Callable[[Run], Figure]]:
    """The figures that a measured run has: cosine by layer; the drift tests once there are layers to correlate."""
    figures: dict[str, Callable[[Run], Figure]] = {"cosine-by-layer": figure_layers} if _layers(run) else {}
    if any(row.value is not None for row in run.rows(metric="spearman_drift_norm_p")):
        figures["drift-tests"] = figure_drift_tests
    return figures


def figure_layers(runs: Run | Sequence[Run], *, title: str = "") -> Figure:
    """Average cosine by site, one line per model of a run or of several."""
    several = [runs] if isinstance(runs, Run) else runs
    rows = [row for run in several for row in _layers(run)]
    models = {shown_name(row.model) for row in rows}
    with style():
        narrow = len(models) < 6 and max(map(len, models), default=0) < 18
        size = (COLUMN if narrow else WIDE * 0.75, max(2.4, 1.0 + 0.15 * len(models)))
        figure, axes = subplots(size=size)
        draw_layers(axes, rows)
        axes.set(xlabel=depth_label(rows), ylabel="average cosine", title=title)
    return figure


def _layers(run: Run) -> list[Row]:
    """The average cosine of every layer; the vector of a whole text and what parts of blocks add are not layers."""
    rows = run.rows(metric="mean_cosine", positions="all")
    rows = [row for row in rows if row.value is not None and not (is_embedding(row.site) or is_part(row.site))]
    d = {(row.model, row.site): int(row.value or 0) for row in run.rows(metric="dimension", positions="all")}
    known = [d.get((row.model, row.site), 0) for row in rows]
    sds = [mean_cosine_sd(row.n or 0, dim) if dim >= 2 else None for row, dim in zip(rows, known, strict=True)]
    return [replace(row, null_sd=sd) for row, sd in zip(rows, sds, strict=True)]


def depth_label(rows: Sequence[Row]) -> str:
    """What the horizontal axis counts, and what its marks mean."""
    words = "depth (0: embeddings, then block by block)"
    if any(row.site.startswith("decoder.") for row in rows):
        words = "depth (embeddings first; dashed: where a decoder begins)"
    return words + ("\nopen marker: after a norm" if any(_after_norm(row) for row in rows) else "")


def _after_norm(row: Row) -> bool:
    return row.site.endswith("norm")


def draw_layers(axes: Axes, rows: Sequence[Row]) -> None:
    """The lines, bands and nulls of figures 1–4, into a panel; each model's null strays within a band of its colour."""
    models = list(dict.fromkeys(row.model for row in rows))
    lines, strays = [], []
    for i, model in enumerate(models):
        mine = [row for row in rows if row.model == model]
        x, y = np.arange(len(mine), dtype=float), np.array([row.value for row in mine], float)
        _draw_line(axes, mine, x, y, i)
        reach = np.array([_NORMAL * (row.null_sd or 0.0) for row in mine])
        axes.fill_between(x, -reach, reach, color=colour(i), alpha=0.3, linewidth=0)
        lines.append((x, y))
        strays.append(float(reach.max()))
    top = max([float(row.high or row.value or 0) for row in rows] + [0.1])
    bottom = min([float(row.low or row.value or 0) for row in rows] + [0.0])
    axes.set_ylim(min(bottom - 0.03, -0.12 * top), min(1.02, top * 1.12 + 0.02))  # room for the name of the null
    right = max(len(x) for x, _ in lines) - 0.6
    axes.set_xlim(-0.4, right)
    axes.locator_params(axis="x", integer=True)
    null_line(axes, 0, "isotropic: 0" + (f" ± {max(strays):.1g}" if any(strays) else ""), above=False)
    glyphs = [f"{glyph(i)} " for i in range(len(models))] if len(models) > 1 else [""]
    names = [mark + shown_name(model) for mark, model in zip(glyphs, models, strict=True)]
    ends = [(float(y[-1]), name, colour(i)) for i, (name, (_, y)) in enumerate(zip(names, lines, strict=True))]
    label_lines(axes, ends, gap=min(0.062, 0.9 / len(ends)))


def _draw_line(axes: Axes, rows: Sequence[Row], x: Array, y: Array, i: int) -> None:
    """One model: line, interval, one marker per site (open after a norm), and where its decoder begins."""
    _, low, high = with_ends(rows)
    split = next((k for k, row in enumerate(rows) if k and row.site.startswith("decoder.")), None)
    for part in (slice(None, split), slice(split, None)) if split else (slice(None),):
        axes.fill_between(x[part], low[part], high[part], color=colour(i), alpha=0.2, linewidth=0)
        axes.plot(x[part], y[part], color=colour(i))
    for k, row in enumerate(rows):
        face = "white" if _after_norm(row) else colour(i)
        axes.plot(x[k], y[k], marker=marker(i), color=colour(i), markerfacecolor=face, markeredgewidth=0.9)
    if split:
        axes.axvline(split - 0.5, color=colour(i), linewidth=0.5, linestyle="--", alpha=0.6)


def figure_drift_tests(runs: Run | Sequence[Run], *, method: str = "spearman", protocol: str = "ours") -> Figure:
    """p-values of the correlation of average cosine with drift, by group and sign (figure 5; Pearson: figure 16).

    By permutation over raw states or, by the protocol of the `paper`, asymptotic over what the library lists as layers.
    Several runs are grouped by the folders that hold them, as `paper` lays them out.
    """
    several = [runs] if isinstance(runs, Run) else runs
    of = _paper_tests if protocol == "paper" else _kept_tests
    tests = [row for run in several for row in of(run, method)]
    groups = {row.model: run.folder.parent.name for run in several for row in run.rows(metric=f"{method}_drift_norm_p")}
    models = list(groups)
    kinds = (("drift_norm", "‖x̄‖ (paper)", "o"), ("drift_ratio", "‖x̄‖²/E‖x‖² (ours)", "D"))
    with style():
        figure, axes = subplots(size=(WIDE * 0.68, 0.95 + 0.24 * max(len(models), 2)))
        for k, (against, label, shape) in enumerate(kinds):
            _draw_tests(axes, tests, models, f"{method}_{against}", shape, colour(k), shift=0.12 * (2 * k - 1))
            axes.scatter([], [], marker=shape, s=18, color=colour(k), label=label)
        axes.scatter([], [], marker="o", s=18, facecolors="white", edgecolors=NULL, label="open: negative")
        axes.axvline(SIGNIFICANT, color="#C00000", linestyle=":", linewidth=1.1)
        axes.annotate("0.05", (SIGNIFICANT, 1), xycoords=("data", "axes fraction"), fontsize=6, color="#C00000")
        axes.set_yticks(range(len(models)), [shown_name(model) for model in models])
        axes.set(ylim=(len(models) - 0.5, -0.5), xscale="log", xlim=(1e-5, 1.5))
        which = "asymptotic, layers as the library lists them" if protocol == "paper" else "permutation, raw states"
        axes.set_xlabel(f"p-value of {method.capitalize()}'s test over layers ({which})")
        if len(several) > 1:
            _name_groups(axes, list(groups.values()))
        figure.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=3)
        number = {"spearman": "5", "pearson": "16"}[method]
        heading(figure, f"{number}  Does the average cosine go with the drift? ({method.capitalize()})")
    return figure


def _kept_tests(run: Run, method: str) -> list[Row]:
    return [row for row in run.rows() if row.metric.startswith(method)]


def _paper_tests(run: Run, method: str) -> list[Row]:
    """The tests of each model of a run as the paper makes them."""
    found = []
    for model in dict.fromkeys(row.model for row in _layers(run)):
        layers = listed_by_library([row for row in _layers(run) if row.model == model and row.at is None])
        for against in ("drift_norm", "drift_ratio"):
            drift = {row.site: row.value for row in run.rows(metric=against, positions="all", model=model)}
            pairs = [(row.value, drift[row.site]) for row in layers if drift.get(row.site) is not None]
            test = correlate([float(a or 0) for a, _ in pairs], [float(b or 0) for _, b in pairs], method=method)
            name = f"{method}_{against}"
            found += [Row(model=model, metric=name, value=test.value)]
            found += [Row(model=model, metric=f"{name}_p", value=test.p_asymptotic)]
    return found


def _draw_tests(
    axes: Axes, tests: Sequence[Row], models: Sequence[str], metric: str, shape: str, shade: str, *, shift: float
) -> None:
    """One point per model at its p-value, filled where the correlation is positive."""
    signs = {row.model: row.value for row in tests if row.metric == metric}
    found = {row.model: row.value for row in tests if row.metric == f"{metric}_p" and row.value is not None}
    shown = [(k, found[model], signs.get(model)) for k, model in enumerate(models) if model in found]
    faces = ["white" if sign is not None and sign < 0 else shade for _, _, sign in shown]
    x, y = [max(p or 0, 2e-5) for _, p, _ in shown], [k + shift for k, _, _ in shown]
    axes.scatter(x, y, marker=shape, s=18, facecolors=faces, edgecolors=shade)


def _name_groups(axes: Axes, groups: Sequence[str]) -> None:
    """A line between groups, and each one's name at the right."""
    for name in dict.fromkeys(groups):
        first, last = groups.index(name), len(groups) - 1 - groups[::-1].index(name)
        if first:
            axes.axhline(first - 0.5, color="#BBBBBB", linewidth=0.7)
        middle, at = (first + last) / 2, ("axes fraction", "data")
        axes.annotate(name, (1.01, middle), xycoords=at, va="center", fontsize=6.5, color=NULL)
