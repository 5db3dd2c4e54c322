"""Queries, keys and attention along a training: figures 11–15 and 19–23 of the paper, from a run of `anisoscope sweep`.

Clouds and paths (11, 12; 19–22 on the planes of keys or of queries alone) show two heads of the first seed: the one
whose cos(Q̄, K̄) is greatest at the last step, and the one where it is least; the figures name them. Clouds are a sample,
means are exact with their 95 % intervals, and the cross at the origin is where clouds without drift would stay. The
curves (13, 14, 15, 23) have the null drawn: ±1.96/√d_head for unrelated means, log n for uniform attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from anisoscope.geometry.nulls.isotropic import cosine_quantile
from anisoscope.report.figures.style import COLUMN, FAINT, INK, NULL, WIDE, colour, missing, null_line, stand_in, style
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
        figures |= {"figure_13": figure_13, "figure_14": figure_14, "figure_11": figure_11}
    if len(steps) > 1:
        figures |= {"figure_12a": figure_12a, "figure_12b": figure_12b}
        figures |= {"figure_19": figure_19, "figure_20": figure_20, "figure_21": figure_21, "figure_22": figure_22}
    if run.rows(metric="entropy"):
        figures["figure_15"] = figure_15
    if len(_seeds(run)) > 1 and steps:
        figures["figure_23"] = figure_23
    if any(row.layer is not None for row in run.rows(metric="mean_cosine", positions="all")):
        figures["hidden_cosine"] = figure_hidden
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


def figure_11(run: Run, *, plane: str = "union", stands_in: str | None = None) -> Figure:
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
            part.suptitle(f"{head.kind}: {head.reason}", x=0.01, ha="left", fontsize=8, fontweight="bold")
            _sides(panels[-1])
        _caption(figure, run, plane, seed, stands_in)
    return figure


def figure_12(run: Run, *, plane: str = "union", which: Sequence[int] = (0, 1), stands_in: str | None = None) -> Figure:
    """Paths of Q̄ and K̄ over the steps, one panel a head."""
    import matplotlib.pyplot as plt

    seed = _seeds(run)[0]
    heads, arrays = [chosen_heads(run, seed)[i] for i in which], run.arrays()
    with style():
        width = COLUMN if len(heads) == 1 else WIDE
        figure, grid = plt.subplots(1, len(heads), figsize=(width, 3.0), squeeze=False, layout="constrained")
        figure.get_layout_engine().set(rect=(0, 0.05, 1, 0.95))  # pyright: ignore  # room for the caption
        for axes, head in zip(grid[0], heads, strict=True):
            base = f"seed-{seed}/{head.site}/{plane}"
            _origin(axes)
            last = short(arrays[f"seed-{seed}/steps"][-1])
            for side, name, shade in (("query", "Q̄", _QUERY), ("key", "K̄", _KEY)):
                _path(axes, arrays[f"{base}/{side}"][:, head.head], f"{name}, step {last}", shade)
            axes.margins(0.12)
            share = arrays[f"{base}/share"][head.head]
            axes.set(xlabel=f"direction 1 ({share[0]:.0%} of the energy)", ylabel=f"direction 2 ({share[1]:.0%})")
            axes.set_title(f"{head.kind}:\n{head.reason}", fontsize=7)
        _caption(figure, run, plane, seed, stands_in)
    return figure


figure_12a: Draw = partial(figure_12, which=(0,))
figure_12b: Draw = partial(figure_12, which=(1,))
figure_19: Draw = partial(figure_11, plane="keys")
figure_20: Draw = partial(figure_11, plane="queries")
figure_21: Draw = partial(figure_12, plane="keys")
figure_22: Draw = partial(figure_12, plane="queries")


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


def _path(axes: Axes, ends: np.ndarray, name: str, shade: str) -> None:
    """The way of a mean (steps, 3, 2): an arrow from checkpoint to checkpoint, the first hollow, the last named."""
    value, low, high = ends[:, 0], np.nan_to_num(ends[:, 1] - ends[:, 0]), np.nan_to_num(ends[:, 2] - ends[:, 0])
    axes.errorbar(
        *value.T, xerr=[-low[:, 0], high[:, 0]], yerr=[-low[:, 1], high[:, 1]], fmt="none", ecolor=FAINT, elinewidth=0.6
    )
    for start, end in pairwise(value):
        arrow = {"arrowstyle": "-|>", "color": shade, "lw": 1.1, "mutation_scale": 7, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", end, start, arrowprops=arrow, annotation_clip=False)
    axes.plot(*value[:1].T, "o", color=shade, markerfacecolor="white", markersize=4, zorder=4)
    axes.plot(*value[-1:].T, "o", color=shade, markersize=5, zorder=4)
    above = len(value) < 2 or value[-1, 1] >= value[-2, 1]  # away from where the path comes from
    axes.annotate(
        name,
        value[-1],
        xytext=(0, 6 if above else -6),
        textcoords="offset points",
        ha="center",
        va="bottom" if above else "top",
        fontsize=6.5,
        color=shade,
        bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.4},
    )


def _sides(axes: Axes) -> None:
    """Name the two colours above the right end of a panel."""
    for place, (text, shade) in enumerate((("Q", _QUERY), ("K", _KEY))):
        axes.annotate(
            text,
            (1, 1),
            xycoords="axes fraction",
            xytext=(-18 + 11 * place, 3),
            textcoords="offset points",
            fontsize=8,
            fontweight="bold",
            color=shade,
        )


def _caption(figure: Figure, run: Run, plane: str, seed: int | None, stands_in: str | None) -> None:
    """What the figure shows, under it; and that it stands in for another series, where it does."""
    of_seed = "" if seed is None else f", seed {seed}"
    text = f"{_series(run)}{of_seed}; plane: SVD of {_BASIS[plane]}, all steps; dotted: no drift"
    figure.text(0.5, 0.0, text, ha="center", va="bottom", fontsize=6, color=NULL)
    if stands_in:
        stand_in(figure, stands_in)


def _series(run: Run) -> str:
    return str(run.manifest["model"].get("series", run.name))


# -- curves over steps -------------------------------------------------------------------------------------------------


def figure_13(run: Run, *, stands_in: str | None = None) -> Figure:
    """cos(Q̄, K̄) over steps: a panel a layer, a line a head."""
    return _by_head(run, "query_key_cosine", "cos(Q̄, K̄)", seeds=_seeds(run)[:1], stands_in=stands_in)


def figure_14(run: Run, *, stands_in: str | None = None) -> Figure:
    """⟨Q̄, K̄⟩ over steps, likewise."""
    return _by_head(run, "query_key_dot", "⟨Q̄, K̄⟩ (linear within ±1)", seeds=_seeds(run)[:1], stands_in=stands_in)


def figure_23(run: Run, *, stands_in: str | None = None) -> Figure:
    """cos(Q̄, K̄) over steps with the heads of a layer concatenated: one panel per layer, one line per seed."""
    arrays, seeds = run.arrays(), _seeds(run)
    bases = [name.removesuffix("/query_mean") for name in arrays if name.endswith("/query_mean")]
    layers = sorted({base.partition("/")[2] for base in bases}, key=lambda site: int(site.rpartition(".")[2]))
    with style():
        figure, grid = _panels(len(layers))
        for axes, layer in zip(grid.flat, layers, strict=False):
            for place, seed in enumerate(seeds):
                query, key = (arrays[f"seed-{seed}/{layer}/{side}_mean"] for side in ("query", "key"))
                q, k = query.reshape(len(query), -1), key.reshape(len(key), -1)  # (steps, heads · d)
                cosine = (q * k).sum(1) / np.maximum(np.linalg.norm(q, axis=1) * np.linalg.norm(k, axis=1), 1e-300)
                steps = arrays[f"seed-{seed}/steps"]
                axes.plot(steps, cosine, color=colour(place), linewidth=1.1, label=f"seed {seed}")
                step_axis(axes, steps, most=4)
            bound = 1.96 * arrays[f"seed-{seeds[0]}/{layer}/query_mean"][0].size ** -0.5
            axes.axhspan(-bound, bound, color="#DDDDDD", alpha=0.6, linewidth=0, zorder=0)
            axes.axhline(0, color=NULL, linewidth=0.7, linestyle=":")
            axes.set(ylim=(-1.08, 1.08))
            axes.set_title(layer, fontsize=7.5)
        for axes in grid.flat[len(layers) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            axes.set_ylabel("cos(Q̄, K̄)")
        for axes in grid[-1]:
            axes.set_xlabel("step")
        words = "heads concatenated; grey band: ±1.96/√(heads · d), unrelated means"
        figure.supxlabel(f"{_series(run)}; {words}", fontsize=6.5, color=NULL)
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=min(len(seeds), 6))
        if stands_in:
            stand_in(figure, stands_in)
    return figure


def _panels(layers: int) -> Any:
    """A figure with a panel for each layer, at most four side by side, on shared axes."""
    import matplotlib.pyplot as plt

    columns = min(4, layers)
    rows = -(-layers // columns)
    size = (WIDE * max(columns, 2) / 4, 0.5 + 1.5 * rows)
    shared = {"sharex": True, "sharey": True, "squeeze": False, "layout": "constrained"}
    return plt.subplots(rows, columns, figsize=size, **shared)


def _by_head(run: Run, metric: str, label: str, *, seeds: Sequence[int | None], stands_in: str | None) -> Figure:
    lines = {
        seed: lines_of(row for row in run.rows(metric=metric, seed=seed) if row.head is not None) for seed in seeds
    }
    layers = list(dict.fromkeys(site.rpartition(".head.")[0] for found in lines.values() for site in found))
    labels, arrays = {}, run.arrays()
    with style():
        figure, grid = _panels(len(layers))
        for axes, layer in zip(grid.flat, layers, strict=False):
            d = arrays[f"seed-{seeds[0]}/{layer}/query_mean"].shape[-1]
            labels[axes] = _panel(axes, layer, lines, bounded=metric == "query_key_cosine", d=d)
            axes.set_title(layer, fontsize=7.5)
        for axes, of_heads in labels.items():  # now that the shared axis stands
            if len(seeds) == 1 and len(of_heads) <= 8:
                label_lines(axes, of_heads, gap=0.1)
        for axes in grid.flat[len(layers) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            axes.set_ylabel(label)
        for axes in grid[-1]:
            axes.set_xlabel("step")
        null = "grey band: ±1.96/√d, unrelated means" if metric == "query_key_cosine" else "dotted: no drift"
        named = f"a line a head, of seed {seeds[0]}" if len(seeds) == 1 and seeds[0] is not None else "a line a head"
        figure.supxlabel(f"{_series(run)}; {named}; {null}", fontsize=6.5, color=NULL)
        if stands_in:
            stand_in(figure, stands_in)
    return figure


def _panel(axes: Axes, layer: str, lines: dict[int | None, dict[str, Line]], *, bounded: bool, d: int) -> list[Label]:
    """The heads of one layer: all in their own colour for one seed, in the colour of the seed for several."""
    labels, one_seed = [], len(lines) == 1
    for place, found in enumerate(lines.values()):
        heads = [(site, line) for site, line in found.items() if site.rpartition(".head.")[0] == layer]
        for i, (site, line) in enumerate(heads):
            shade = colour(i) if one_seed else colour(place)
            dashes = ("-", "--", ":")[i // 9 % 3] if one_seed else "-"
            axes.fill_between(line.steps, line.low, line.high, color=shade, alpha=0.15, linewidth=0)
            axes.plot(
                line.steps, line.value, color=shade, linewidth=1.0, linestyle=dashes, alpha=1 if one_seed else 0.8
            )
            labels.append((line.value[-1], site.rpartition(".")[2], shade))
    every = np.unique(np.concatenate([line.steps for found in lines.values() for line in found.values()]))
    step_axis(axes, every, most=4)
    if bounded:
        bound = 1.96 * d**-0.5
        axes.axhspan(-bound, bound, color="#DDDDDD", alpha=0.6, linewidth=0, zorder=0, label="null")
        axes.set_ylim(-1.08, 1.08)
    else:
        axes.set_yscale("symlog", linthresh=1.0)
        axes.yaxis.set_major_formatter("{x:g}")
    axes.axhline(0, color=NULL, linewidth=0.7, linestyle=":")
    return labels


def figure_15(run: Run, *, stands_in: str | None = None) -> Figure:
    """Mean entropy of attention rows over steps, a line a layer, under that of uniform attention."""
    rows = [row for row in run.rows(metric="entropy", seed=_seeds(run)[0]) if row.head is None]
    uniform = next((row.null for row in rows if row.null is not None), None)
    figure = _by_site(run, "entropy", "entropy of attention rows (nats)", null=uniform, name="uniform: log n")
    if stands_in:
        stand_in(figure, stands_in)
    return figure


def figure_hidden(run: Run, *, stands_in: str | None = None) -> Figure:
    """Average cosine of hidden states over steps, a line a site."""
    d = next((int(row.value) for row in run.rows(metric="dimension") if row.value), 0)
    null = float(cosine_quantile(0.95, d)) if d > 1 else None
    figure = _by_site(run, "mean_cosine", "average cosine", null=null, name=f"95 % of isotropic pairs, d = {d}")
    if stands_in:
        stand_in(figure, stands_in)
    return figure


def _by_site(run: Run, metric: str, label: str, *, null: float | None, name: str) -> Figure:
    """A line a site of the first seed, from light to dark with depth; other seeds as hairlines."""
    import matplotlib.pyplot as plt

    seeds = _seeds(run)
    with style():
        figure, axes = plt.subplots(figsize=(WIDE * 0.6, 2.8), layout="constrained")
        labels, every = [], set()
        for place, seed in enumerate(seeds):
            found = lines_of(row for row in run.rows(metric=metric, seed=seed, positions="all") if row.head is None)
            found = {site: line for site, line in found.items() if not (site.startswith("vocabulary") or is_part(site))}
            for (site, line), shade in zip(found.items(), ramp(len(found)), strict=True):
                every |= set(line.steps.tolist())
                axes.plot(
                    line.steps, line.value, color=shade, linewidth=0.4 if place else 1.3, alpha=0.6 if place else 1
                )
                if place == 0:
                    axes.fill_between(line.steps, line.low, line.high, color=shade, alpha=0.2, linewidth=0)
                    labels.append((line.value[-1], site, shade))
        step_axis(axes, np.array(sorted(every)))
        axes.set(xlabel="step", ylabel=label)
        if null is not None:
            null_line(axes, null, name)
        axes.margins(y=0.08)
        label_lines(axes, labels, gap=0.05)
        told = "" if seeds[0] is None else f"; seed {seeds[0]}" + (", hairlines: other seeds" if len(seeds) > 1 else "")
        figure.supxlabel(f"{_series(run)}{told}; bands: 95 % intervals", fontsize=6.5, color=NULL)
    return figure
