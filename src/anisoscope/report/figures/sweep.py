"""Queries, keys and attention along a training: figures 11–15 and 19–23 of the paper, from a run of `anisoscope sweep`.

Clouds and paths (11, 12; 19–22 on the planes of keys or of queries alone) show two heads of the first seed: the one
whose cos(Q̄, K̄) is greatest at the last step, and the one where it is least; the figures name them. Clouds are a sample,
means are exact with their 95 % intervals, and the cross at the origin is where clouds without drift would stay. The
curves (13, 14, 15, 23) have the null drawn: ±1.96/√d_head for unrelated means, log n for uniform attention.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from anisoscope.report.figures.style import (
    COLUMN,
    FAINT,
    INK,
    NULL,
    WIDE,
    colour,
    heading,
    missing,
    null_line,
    style,
    subplots,
)
from anisoscope.report.figures.style.curves import Line, label_lines, lines_of, ramp, short, step_axis
from anisoscope.runs.store import Run
from anisoscope.runs.table import is_part

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw = Callable[[Run], "Figure"]
Label = tuple[float, str, str]
_QUERY, _KEY = colour(0), colour(1)
_BASIS = {"union": "queries and keys", "keys": "keys alone", "queries": "queries alone"}


def figures(run: Run) -> dict[str, Draw]:
    """The figures that the run holds: paths need two steps, figure 23 two seeds."""
    figures: dict[str, Draw] = {}
    steps = {row.step for row in run.rows(metric="query_key_cosine")}
    if steps:
        figures |= {"alignment-by-step": figure_13, "mean-product-by-step": figure_14, "query-key-clouds": figure_11}
    if len(steps) > 1:
        figures |= {"mean-path-common": figure_12a, "mean-path-opposite": figure_12b}
        figures |= {"query-key-clouds-on-keys": figure_19, "query-key-clouds-on-queries": figure_20}
        figures |= {"mean-paths-on-keys": figure_21, "mean-paths-on-queries": figure_22}
    if run.rows(metric="entropy"):
        figures["entropy-by-step"] = figure_15
    if len(_seeds(run)) > 1 and steps:
        figures["alignment-by-seed"] = figure_23
    if any(row.layer is not None for row in run.rows(metric="mean_cosine", positions="all")):
        figures["cosine-by-step"] = figure_hidden
    return figures


def _seeds(run: Run) -> list[int | None]:
    return list(dict.fromkeys(row.seed for row in run.rows() if row.step is not None))


# -- which heads -------------------------------------------------------------------------------------------------------


class Head(NamedTuple):
    """A head that a figure shows, and why."""

    kind: str
    cosine: float
    site: str
    head: int

    @property
    def reason(self) -> str:
        return f"{self.site} head {self.head}, cos(Q̄, K̄) = {self.cosine:+.2f} at the last step"


def chosen_heads(run: Run, seed: int | None) -> list[Head]:
    """The head of most common and that of most opposite direction: greatest and least cos(Q̄, K̄) at the last step."""
    rows = [row for row in run.rows(metric="query_key_cosine", seed=seed) if row.head is not None]
    last = max((row.step for row in rows if row.step is not None), default=None)
    known = [
        (row.value, row.site.rpartition(".head.")[0], row.head)
        for row in rows
        if row.step == last and row.value is not None and row.head is not None
    ]
    if not known:
        raise missing(run, "no cos(Q̄, K̄) of any head", "sweep --sites attention")
    common, opposite = max(known), min(known)
    return [Head("most common direction", *common), Head("most opposite direction", *opposite)]


# -- clouds and paths --------------------------------------------------------------------------------------------------


def figure_11(run: Run, *, plane: str = "union", number: str = "11") -> Figure:
    """Clouds of queries and keys of two heads at up to four steps, on one plane for all steps."""
    import matplotlib.pyplot as plt

    seed = _seeds(run)[0]
    heads, arrays = chosen_heads(run, seed), run.arrays()
    steps = arrays[f"seed-{seed}/steps"]
    shown = np.unique(np.linspace(0, len(steps) - 1, min(4, len(steps))).round().astype(int))
    with style():
        figure = plt.figure(figsize=(WIDE, 4.1), layout="constrained")
        figure.get_layout_engine().set(rect=(0, 0.04, 1, 0.96))  # pyright: ignore  # room for the caption
        parts = np.ravel(np.asarray(figure.subfigures(2, 1), dtype=object))
        for part, head in zip(parts, heads, strict=True):
            base = f"seed-{seed}/{head.site}/{plane}"
            panels = part.subplots(1, len(shown), sharex=True, sharey=True, squeeze=False)[0]
            for axes, step in zip(panels, shown, strict=True):
                _origin(axes)
                for side, shade in (("query", _QUERY), ("key", _KEY)):
                    points = arrays[f"{base}/{side}_points"][step, head.head]
                    axes.scatter(*points.T, s=3, color=shade, alpha=0.35, linewidths=0)
                    _mean(axes, arrays[f"{base}/{side}"][step, head.head], shade)
                axes.set_title(f"step {short(int(steps[step]))}", fontsize=7.5, fontweight="normal")
            share = arrays[f"{base}/share"][head.head]
            panels[0].set_ylabel(f"direction 2 ({share[1]:.0%})")
            part.supxlabel(f"direction 1 ({share[0]:.0%} of the energy)", fontsize=8)
            heading(part, f"{number}  {head.kind}: {head.reason}")
            _sides(panels[-1])
        _caption(figure, run, plane, seed)
    return figure


def figure_12(run: Run, *, plane: str = "union", which: Sequence[int] = (0, 1), number: str = "12") -> Figure:
    """Paths of Q̄ and K̄ over the steps, one panel per head."""
    seed = _seeds(run)[0]
    heads, arrays = [chosen_heads(run, seed)[i] for i in which], run.arrays()
    with style():
        width = COLUMN if len(heads) == 1 else WIDE
        figure, grid = subplots(1, len(heads), size=(width, 3.0), squeeze=False)
        room = 0.05 if len(heads) > 1 else 0.09  # for the caption
        figure.get_layout_engine().set(rect=(0, room, 1, 1 - room))  # pyright: ignore
        for axes, head in zip(grid[0], heads, strict=True):
            base = f"seed-{seed}/{head.site}/{plane}"
            _origin(axes)
            ends = []
            for side, name, shade in (("query", "Q̄", _QUERY), ("key", "K̄", _KEY)):
                path = arrays[f"{base}/{side}"][:, head.head]
                _path(axes, path, shade)
                ends.append((path[-1, 0, 1], name, shade))
            axes.margins(0.12)
            label_lines(axes, ends, gap=0.08)
            share = arrays[f"{base}/share"][head.head]
            axes.set(xlabel=f"direction 1 ({share[0]:.0%} of the energy)", ylabel=f"direction 2 ({share[1]:.0%})")
            axes.set_title(f"{number}  {head.kind}:\n{head.reason}", fontsize=7)
        first, last = (short(arrays[f"seed-{seed}/steps"][k]) for k in (0, -1))
        _caption(figure, run, plane, seed, f"open: step {first}, filled: step {last}")
    return figure


figure_12a: Draw = partial(figure_12, which=(0,), number="12a")
figure_12b: Draw = partial(figure_12, which=(1,), number="12b")
figure_19: Draw = partial(figure_11, plane="keys", number="19")
figure_20: Draw = partial(figure_11, plane="queries", number="20")
figure_21: Draw = partial(figure_12, plane="keys", number="21")
figure_22: Draw = partial(figure_12, plane="queries", number="22")


def _origin(axes: Axes) -> None:
    """Where the means of clouds without drift would be."""
    axes.axhline(0, color=NULL, linewidth=0.6, linestyle=":")
    axes.axvline(0, color=NULL, linewidth=0.6, linestyle=":")


def _mean(axes: Axes, ends: np.ndarray, shade: str) -> None:
    """A mean (3, 2) with its interval."""
    value, low, high = ends
    error = np.nan_to_num(np.stack([value - low, high - value]))  # no interval from few sequences
    axes.errorbar(
        *value,
        xerr=error[:, :1],
        yerr=error[:, 1:],
        fmt="o",
        color=shade,
        markersize=4.5,
        markeredgecolor="white",
        markeredgewidth=0.8,
        ecolor=INK,
        elinewidth=0.8,
        zorder=4,
    )


def _path(axes: Axes, ends: np.ndarray, shade: str) -> None:
    """The way of a mean (steps, 3, 2): an arrow from checkpoint to checkpoint, the first hollow, the last filled."""
    value, low, high = ends[:, 0], np.nan_to_num(ends[:, 1] - ends[:, 0]), np.nan_to_num(ends[:, 2] - ends[:, 0])
    axes.errorbar(
        *value.T, xerr=[-low[:, 0], high[:, 0]], yerr=[-low[:, 1], high[:, 1]], fmt="none", ecolor=FAINT, elinewidth=0.6
    )
    for start, end in pairwise(value):
        arrow = {"arrowstyle": "-|>", "color": shade, "lw": 1.1, "mutation_scale": 7, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", end, start, arrowprops=arrow, annotation_clip=False)
    axes.plot(*value[:1].T, "o", color=shade, markerfacecolor="white", markersize=4, zorder=4)
    axes.plot(*value[-1:].T, "o", color=shade, markersize=5, zorder=4)


def _sides(axes: Axes) -> None:
    """Name the two colours above the right end of a panel."""
    for end, text, shade in ((-20, "queries", _QUERY), (0, "keys", _KEY)):
        axes.annotate(
            text,
            (1, 1),
            xycoords="axes fraction",
            xytext=(end, 3),
            textcoords="offset points",
            ha="right",
            fontsize=7,
            fontweight="bold",
            color=shade,
        )


def _caption(figure: Figure, run: Run, plane: str, seed: int | None, ends: str = "dotted: no drift") -> None:
    """What the figure shows, under it."""
    of_seed = "" if seed is None else f", seed {seed}"
    text = f"{_series(run)}{of_seed}; plane: SVD of {_BASIS[plane]}, all steps; {ends}"
    text = textwrap.fill(text, 62) if figure.get_figwidth() < WIDE else text
    figure.text(0.5, 0.0, text, ha="center", va="bottom", fontsize=6, color=NULL)


def _series(run: Run) -> str:
    return str(run.manifest["model"].get("series", run.name))


# -- curves over steps -------------------------------------------------------------------------------------------------


def figure_13(run: Run) -> Figure:
    """cos(Q̄, K̄) over steps: one panel per layer, one line per head."""
    figure = _by_head(run, "query_key_cosine", "cos(Q̄, K̄)", null="grey band: ±1.96/√d, unrelated means")
    heading(figure, "13  Alignment of mean query and mean key")
    return figure


def figure_14(run: Run) -> Figure:
    """⟨Q̄, K̄⟩ over steps, likewise."""
    figure = _by_head(run, "query_key_dot", "⟨Q̄, K̄⟩", null="dotted: no drift")
    heading(figure, "14  Scalar product of mean query and mean key (linear within ±1, then logarithmic)")
    return figure


def figure_23(run: Run) -> Figure:
    """cos(Q̄, K̄) over steps with the heads of a layer concatenated: one panel per layer, one line per seed."""
    arrays, seeds = run.arrays(), _seeds(run)
    bases = [name.removesuffix("/query_mean") for name in arrays if name.endswith("/query_mean")]
    layers = sorted({base.partition("/")[2] for base in bases}, key=lambda site: int(site.rpartition(".")[2]))
    with style():
        figure, grid = _panels(layers, "cos(Q̄, K̄)")
        for axes, layer in zip(grid.flat, layers, strict=False):
            for place, seed in enumerate(seeds):
                query, key = (arrays[f"seed-{seed}/{layer}/{side}_mean"] for side in ("query", "key"))
                q, k = query.reshape(len(query), -1), key.reshape(len(key), -1)  # (steps, heads · d)
                cosine = (q * k).sum(1) / np.maximum(np.linalg.norm(q, axis=1) * np.linalg.norm(k, axis=1), 1e-300)
                steps = arrays[f"seed-{seed}/steps"]
                axes.plot(steps, cosine, color=colour(place), linewidth=1.1, label=f"seed {seed}")
                step_axis(axes, steps, most=4)
            _unrelated(axes, arrays[f"seed-{seeds[0]}/{layer}/query_mean"][0].size)
        words = "heads concatenated; grey band: ±1.96/√(heads · d), unrelated means"
        figure.supxlabel(f"{_series(run)}; {words}", fontsize=6.5, color=NULL)
        heading(figure, "23  Alignment of mean query and mean key, seed by seed")
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=min(len(seeds), 6))
    return figure


def _panels(layers: Sequence[str], label: str) -> Any:
    """A figure with a named panel for each layer, at most four side by side, on shared axes."""
    columns = min(4, len(layers))
    rows = -(-len(layers) // columns)
    size = (WIDE * max(columns, 2) / 4, 0.7 + 1.5 * rows)
    figure, grid = subplots(rows, columns, size=size, sharex=True, sharey=True, squeeze=False)
    for place, axes in enumerate(grid.flat):
        axes.set_visible(place < len(layers))
        axes.set_title(layers[place] if place < len(layers) else "", fontsize=7.5)
    for axes in grid[:, 0]:
        axes.set_ylabel(label)
    for axes in grid[-1]:
        axes.set_xlabel("step")
    return figure, grid


def _unrelated(axes: Axes, d: int) -> None:
    """The band that cosines of unrelated means in d dimensions keep to, 95 % of the time, on the axis of a cosine."""
    bound = 1.96 * d**-0.5
    axes.axhspan(-bound, bound, color="#DDDDDD", alpha=0.6, linewidth=0, zorder=0)
    axes.axhline(0, color=NULL, linewidth=0.7, linestyle=":")
    axes.set_ylim(-1.08, 1.08)


def _by_head(run: Run, metric: str, label: str, *, null: str) -> Figure:
    """A metric of every head of the first seed, one panel per layer."""
    seed, arrays = _seeds(run)[0], run.arrays()
    lines = lines_of(row for row in run.rows(metric=metric, seed=seed) if row.head is not None)
    layers = list(dict.fromkeys(site.rpartition(".head.")[0] for site in lines))
    labels = {}
    with style():
        figure, grid = _panels(layers, label)
        for axes, layer in zip(grid.flat, layers, strict=False):
            labels[axes] = _panel(axes, {s: line for s, line in lines.items() if s.rpartition(".head.")[0] == layer})
            if metric == "query_key_cosine":
                _unrelated(axes, arrays[f"seed-{seed}/{layer}/query_mean"].shape[-1])
            else:
                axes.set_yscale("symlog", linthresh=1.0)
                axes.yaxis.set_major_formatter("{x:g}")
                axes.axhline(0, color=NULL, linewidth=0.7, linestyle=":")
        for axes, of_heads in labels.items():  # now that the shared axis stands
            if len(of_heads) <= 8:
                label_lines(axes, of_heads, gap=0.1)
        named = "one line per head" + ("" if seed is None else f" of seed {seed}")
        figure.supxlabel(f"{_series(run)}; {named}; {null}", fontsize=6.5, color=NULL)
    return figure


def _panel(axes: Axes, lines: dict[str, Line]) -> list[Label]:
    """The heads of one layer; what to write at their ends."""
    labels = []
    for i, (site, line) in enumerate(lines.items()):
        axes.fill_between(line.steps, line.low, line.high, color=colour(i), alpha=0.15, linewidth=0)
        axes.plot(line.steps, line.value, color=colour(i), linewidth=1.0, linestyle=("-", "--", ":")[i // 9 % 3])
        labels.append((line.value[-1], site.rpartition(".")[2], colour(i)))
    step_axis(axes, np.unique(np.concatenate([line.steps for line in lines.values()])), most=4)
    return labels


def figure_15(run: Run) -> Figure:
    """Mean entropy of attention rows over steps, one line per layer, under that of uniform attention."""
    rows = [row for row in run.rows(metric="entropy", seed=_seeds(run)[0]) if row.head is None]
    uniform = next((row.null for row in rows if row.null is not None), None)
    figure = _by_site(run, "entropy", "entropy of attention rows (nats)", null=uniform, name="uniform: log n")
    heading(figure, "15  Entropy of attention rows")
    return figure


def figure_hidden(run: Run) -> Figure:
    """Average cosine of hidden states over steps, one line per site."""
    figure = _by_site(run, "mean_cosine", "average cosine", null=0.0, name="isotropic: 0")
    heading(figure, "Average cosine of hidden states")
    return figure


def _by_site(run: Run, metric: str, label: str, *, null: float | None, name: str) -> Figure:
    """One line per site of the first seed, from light to dark with depth; other seeds as hairlines."""
    seeds = _seeds(run)
    with style():
        figure, axes = subplots(size=(WIDE * 0.6, 2.8))
        labels, every, bands = [], set(), False
        for place, seed in enumerate(seeds):
            found = lines_of(row for row in run.rows(metric=metric, seed=seed, positions="all") if row.head is None)
            found = {site: line for site, line in found.items() if not (site.startswith("vocabulary") or is_part(site))}
            for (site, line), shade in zip(found.items(), ramp(len(found)), strict=True):
                every |= set(line.steps.tolist())
                axes.plot(
                    line.steps, line.value, color=shade, linewidth=0.4 if place else 1.3, alpha=0.6 if place else 1
                )
                if place == 0:
                    bands = bands or bool((line.low < line.high).any())
                    axes.fill_between(line.steps, line.low, line.high, color=shade, alpha=0.2, linewidth=0)
                    labels.append((line.value[-1], site, shade))
        step_axis(axes, np.array(sorted(every)))
        axes.set(xlabel="step", ylabel=label)
        if null is not None:
            of_cosine = metric == "mean_cosine"
            null_line(axes, null, name, side="left" if of_cosine else "right", above=not of_cosine)
        axes.margins(y=0.08)
        label_lines(axes, labels, gap=0.05)
        told = "" if seeds[0] is None else f"; seed {seeds[0]}" + (", hairlines: other seeds" if len(seeds) > 1 else "")
        told += "; bands: 95 % intervals" if bands else ""
        figure.supxlabel(f"{_series(run)}{told}", fontsize=6.5, color=NULL)
    return figure
