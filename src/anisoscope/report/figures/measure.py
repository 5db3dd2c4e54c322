"""Average cosine by layer (figures 1–4 of the paper) and the drift tests (figures 5 and 16).

One line per model over its sites in order of computation: embeddings, blocks, and what the final norm makes of the last
block, set apart by an open marker. The band is the 95 % interval, the dotted line the 95 % quantile of the cosine of an
isotropic pair in the model's dimension (the loosest line where models differ, one step per site where sites do).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from anisoscope.geometry.nulls.isotropic import cosine_quantile
from anisoscope.report.figures.style import COLUMN, NULL, WIDE, Side, beside, colour, glyph, heading, marker, style
from anisoscope.report.figures.style.curves import label_lines
from anisoscope.report.figures.style.names import shown_name
from anisoscope.runs.store import Run
from anisoscope.runs.table import Row, is_embedding, is_part

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

SIGNIFICANT = 0.05


def figures(run: Run) -> dict[str, Callable[[Run], Figure]]:
    """The figures that a measured run has: cosine by layer; the drift tests once there are layers to correlate."""
    figures: dict[str, Callable[[Run], Figure]] = {"cosine-by-layer": figure_layers} if _layers(run) else {}
    if any(row.value is not None for row in run.rows(metric="spearman_drift_norm_p")):
        figures["drift-tests"] = figure_drift_tests
    return figures


def figure_layers(runs: Run | Sequence[Run], *, title: str = "") -> Figure:
    """Average cosine by site, one line per model of a run or of several."""
    import matplotlib.pyplot as plt

    several = [runs] if isinstance(runs, Run) else runs
    rows = [row for run in several for row in _layers(run)]
    models = {shown_name(row.model) for row in rows}
    with style():
        narrow = len(models) < 6 and max(map(len, models), default=0) < 18
        size = (COLUMN if narrow else WIDE * 0.75, max(2.4, 1.0 + 0.15 * len(models)))
        figure, axes = plt.subplots(figsize=size, layout="constrained")
        draw_layers(axes, rows, [row for run in several for row in run.rows(metric="dimension", positions="all")])
        axes.set(xlabel=depth_label(rows), ylabel="average cosine")
        axes.set_title(title, pad=13)  # above the name of a null that follows the sites
    return figure


def _layers(run: Run) -> list[Row]:
    """The average cosine of every layer; the vector of a whole text and what parts of blocks add are no layers."""
    rows = run.rows(metric="mean_cosine", positions="all")
    return [row for row in rows if row.value is not None and not (is_embedding(row.site) or is_part(row.site))]


def depth_label(rows: Sequence[Row]) -> str:
    """What the horizontal axis counts, and what its marks mean."""
    words = "depth (0: embeddings, then block by block)"
    if any(row.site.startswith("decoder.") for row in rows):
        words = "depth (embeddings first; dashed: where a decoder begins)"
    return words + ("\nopen marker: after a norm" if any(_after_norm(row) for row in rows) else "")


def _after_norm(row: Row) -> bool:
    return row.site.endswith("norm")


def draw_layers(axes: Axes, rows: Sequence[Row], dimensions: Sequence[Row]) -> None:
    """The lines, bands and null of figures 1–4, into a panel."""
    models = list(dict.fromkeys(row.model for row in rows))
    lines = []
    for i, model in enumerate(models):
        mine = [row for row in rows if row.model == model]
        x, y = np.arange(len(mine), dtype=float), np.array([row.value for row in mine], float)
        _draw_line(axes, mine, x, y, i)
        lines.append((x, y))
    top = max([float(row.high or row.value or 0) for row in rows] + [0.1])
    bottom = min([float(row.low or row.value or 0) for row in rows] + [0.0])
    axes.set_ylim(min(bottom - 0.03, -0.03), min(1.02, top * 1.12 + 0.02))
    right = max(len(x) for x, _ in lines) - 0.6
    axes.set_xlim(-0.4, right)
    axes.locator_params(axis="x", integer=True)
    axes.axhline(0, color="#BBBBBB", linewidth=0.7)
    widths = {(row.model, row.site): int(row.value) for row in dimensions if row.value}
    by_model = {model: {d for (of, _), d in widths.items() if of == model} for model in models}
    if any(len(some) > 1 for some in by_model.values()):
        _draw_null_by_site(axes, [[widths[row.model, row.site] for row in rows if row.model == m] for m in models])
    elif widths and (d := min(widths.values())) > 1:
        _draw_null(axes, float(cosine_quantile(0.95, d)), f"95 % of isotropic pairs, d = {d}", lines)
    glyphs = [f"{glyph(i)} " for i in range(len(models))] if len(models) > 1 else [""]
    names = [mark + shown_name(model) for mark, model in zip(glyphs, models, strict=True)]
    ends = [(float(y[-1]), name, colour(i)) for i, (name, (_, y)) in enumerate(zip(names, lines, strict=True))]
    label_lines(axes, ends, gap=min(0.062, 0.9 / len(ends)))


def _draw_line(axes: Axes, rows: Sequence[Row], x: Array, y: Array, i: int) -> None:
    """One model: line, interval, one marker per site (open after a norm), and where its decoder begins."""
    low = np.array([row.value if row.low is None else row.low for row in rows], float)
    high = np.array([row.value if row.high is None else row.high for row in rows], float)
    split = next((k for k, row in enumerate(rows) if k and row.site.startswith("decoder.")), None)
    for part in (slice(None, split), slice(split, None)) if split else (slice(None),):
        axes.fill_between(x[part], low[part], high[part], color=colour(i), alpha=0.2, linewidth=0)
        axes.plot(x[part], y[part], color=colour(i))
    for k, row in enumerate(rows):
        face = "white" if _after_norm(row) else colour(i)
        axes.plot(x[k], y[k], marker=marker(i), color=colour(i), markerfacecolor=face, markeredgewidth=0.9)
    if split:
        axes.axvline(split - 0.5, color=colour(i), linewidth=0.5, linestyle="--", alpha=0.6)


def _draw_null_by_site(axes: Axes, widths: Sequence[Sequence[int]]) -> None:
    """The null of staged networks, whose dimension grows: one step per site, named in the panel."""
    longest = max(widths, key=len)
    narrowest = [min(some[k] for some in widths if k < len(some)) for k in range(len(longest))]
    null = [float(cosine_quantile(0.95, d)) for d in narrowest]
    axes.plot(np.arange(len(null)), null, color=NULL, linestyle=":", linewidth=1, drawstyle="steps-mid")
    axes.set_ylim(top=min(1.02, max(axes.get_ylim()[1], max(null) + 0.05)))
    axes.annotate(
        f"dotted: 95 % of isotropic pairs, d = {min(narrowest)} … {max(narrowest)}",
        (1, 1),
        fontsize=6,
        color=NULL,
        xycoords="axes fraction",
        xytext=(0, 2),
        textcoords="offset points",
        ha="right",
        va="bottom",
    )


def _draw_null(axes: Axes, value: float, text: str, lines: Sequence[tuple[Array, Array]]) -> None:
    """The null's line, named at the place along it that the curves leave free."""
    axes.axhline(value, color=NULL, linestyle=":", linewidth=1)
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    wide, high = 0.64 * (right - left), 0.09 * (top - bottom)  # what the text takes, markers allowed for
    starts: dict[Side, float] = {"right": right - wide, "left": left, "center": (left + right - wide) / 2}
    fine = [np.linspace(x[0], x[-1], 40 * len(x)) for x, _ in lines]
    along = np.concatenate(fine)
    curve = np.concatenate([np.interp(at, x, y) for at, (x, y) in zip(fine, lines, strict=True)])

    def covered(place: tuple[Side, bool]) -> int:
        side, above = place
        low = value - 0.01 * (top - bottom) if above else value - high
        near = (along > starts[side]) & (along < starts[side] + wide)
        return int((near & (curve > low) & (curve < low + high)).sum())

    places: list[tuple[Side, bool]] = [(side, above) for above in (True, False) for side in starts]
    side, above = min(places, key=covered)
    box = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.4}
    beside(axes, text, value, side=side, above=above, bbox=box)


def figure_drift_tests(runs: Run | Sequence[Run], *, method: str = "spearman") -> Figure:
    """p-values of the correlation of average cosine with drift, by group and sign (figure 5; Pearson: figure 16).

    Several runs are grouped by the folders that hold them, as `paper` lays them out.
    """
    import matplotlib.pyplot as plt

    several = [runs] if isinstance(runs, Run) else runs
    tests = [row for run in several for row in run.rows() if row.metric.startswith(method)]
    groups = {row.model: run.folder.parent.name for run in several for row in run.rows(metric=f"{method}_drift_norm_p")}
    models = list(groups)
    kinds = (("drift_norm", "‖x̄‖ (paper)", "o"), ("drift_ratio", "‖x̄‖²/E‖x‖² (ours)", "D"))
    with style():
        figure, axes = plt.subplots(figsize=(WIDE * 0.68, 0.95 + 0.24 * max(len(models), 2)), layout="constrained")
        for k, (against, label, shape) in enumerate(kinds):
            _draw_tests(axes, tests, models, f"{method}_{against}", shape, colour(k), shift=0.12 * (2 * k - 1))
            axes.scatter([], [], marker=shape, s=18, color=colour(k), label=label)
        axes.scatter([], [], marker="o", s=18, facecolors="white", edgecolors=NULL, label="open: negative")
        axes.axvline(SIGNIFICANT, color="#C00000", linestyle=":", linewidth=1.1)
        axes.annotate("0.05", (SIGNIFICANT, 1), xycoords=("data", "axes fraction"), fontsize=6, color="#C00000")
        axes.set_yticks(range(len(models)), [shown_name(model) for model in models])
        axes.set(ylim=(len(models) - 0.5, -0.5), xscale="log", xlim=(1e-5, 1.5))
        axes.set_xlabel(f"p-value of {method.capitalize()}'s test over layers (permutation)")
        if len(several) > 1:
            _name_groups(axes, list(groups.values()))
        figure.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=3)
        number = {"spearman": "5", "pearson": "16"}[method]
        heading(figure, f"{number}  Does the average cosine go with the drift? ({method.capitalize()})")
    return figure


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
