"""Figures 6 to 10 of *Anisotropy Is Inherent to Self-Attention in Transformers*, from a run of `anisoscope block`.

Every curve is the average over draws of weights, vectors and direction, with its 95 % interval as a band and the single
draws as hairlines (the paper shows one draw). The axis of the drift norm N is linear to 1 and logarithmic beyond where
everything happens at small N, and says so. Probabilities (9, 10) are shown in percent of the uniform one: the changes
are of a few percent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anisoscope.errors import StoreError
from anisoscope.inference.jackknife import t_quantile
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
    side_by_side,
    style,
    subplots,
)
from anisoscope.report.figures.style.curves import label_lines, with_ends
from anisoscope.runs.store import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
_IN, _OUT, _THIRD = colour(0), colour(1), colour(2)
_RIDGES = 7


@dataclass(frozen=True)
class Curve:
    """One metric at one site against N: average, interval, and each draw (draws, N)."""

    norms: Array
    mean: Array
    low: Array
    high: Array
    draws: Array
    null: float | None


def curve(run: Run, model: str, site: str, metric: str) -> Curve:
    """Read a curve; missing interval ends (a single draw) fall on the average."""
    rows = [row for row in run.rows(model=model, site=site, metric=metric) if row.at is not None]
    average = sorted((row for row in rows if row.seed is None), key=lambda row: row.at or 0.0)
    if not average:
        raise missing(run, f"no {metric} at {site} of {model}", "block")
    each: dict[int, dict[float, float]] = {}
    for row in rows:
        if row.seed is not None and row.at is not None and row.value is not None:
            each.setdefault(row.seed, {})[row.at] = row.value
    norms = np.array([row.at for row in average], dtype=float)
    draws = np.array([[values[norm] for norm in norms] for values in each.values()])
    return Curve(norms, *with_ends(average), draws, average[0].null)


def models_of(run: Run) -> list[str]:
    """The experiments of a block run, in order."""
    found = list(dict.fromkeys(row.model for row in run.rows(site="output", metric="mean_cosine")))
    if not found:
        raise StoreError("there is no block study in this run", where=run.folder, do="name a run of `anisoscope block`")
    return found


def figures(run: Run) -> dict[str, Callable[[Run], Figure]]:
    """Every figure that the run can show, by file name: 6 to 10 of each experiment, and all of them side by side."""
    models = models_of(run)
    found: dict[str, Callable[[Run], Figure]] = {}
    for model in models:
        attentive = bool(run.rows(model=model, site="softmax", metric="max_probability", seed=None))
        drawn = _ALL if attentive else {name: _ALL[name] for name in _WITHOUT_ATTENTION}
        suffix = "" if len(models) == 1 else "_" + "".join(c if c.isalnum() else "-" for c in model)
        found |= {f"{name}{suffix}": partial(draw, model=model) for name, draw in drawn.items()}
    if len(models) > 1:
        found["blocks-side-by-side"] = figure_side_by_side
    return found


def figure_6a(run: Run, *, model: str | None = None) -> Figure:
    """Mean cosine of input and output against N; below, how much of the angle between vectors the block leaves."""
    model = model or models_of(run)[0]
    entering, leaving = (curve(run, model, site, "mean_cosine") for site in ("input", "output"))
    with style():
        figure, (above, below) = subplots(2, 1, size=(COLUMN, 3.1), sharex=True, height_ratios=(2.2, 1))
        _draw(above, entering, _IN, "input $x+b$")
        _draw(above, leaving, _OUT, "output $T(x+b)$", draws=True)
        above.axhline(0, color=NULL, linestyle=":", linewidth=1)
        above.set(ylabel="mean cosine", ylim=(min(-0.04, entering.low.min(), leaving.low.min()), 1.04))
        above.legend(loc="lower right")
        above.set_title(f"6a  {_title(run, model)}")
        left = (1 - leaving.draws) / (1 - entering.draws)
        _draw(below, _curve_of(leaving.norms, left), _OUT, draws=True)
        null_line(below, 1, "1: nothing changes")
        below.set_ylabel("$\\frac{1-\\cos_{out}}{1-\\cos_{in}}$")
        low, high = below.get_ylim()
        below.set_ylim(low, max(high, 1 + 0.3 * (1 - low)))
        _norm_axis(below, entering.norms)
    return figure


def figure_6b(run: Run, *, model: str | None = None) -> Figure:
    """Norms of input and output against N, the norm of the average output, √d, and N* with its interval."""
    model = model or models_of(run)[0]
    entering, leaving = (curve(run, model, site, "mean_norm") for site in ("input", "output"))
    average = curve(run, model, "output", "norm_of_mean")
    with style():
        figure, axes = subplots(size=(COLUMN, 2.5))
        _draw(axes, entering, _IN, "input $E\\|x+b\\|$")
        _draw(axes, leaving, _OUT, "output $E\\|T(x+b)\\|$", draws=True)
        _draw(axes, average, _THIRD, "average output $\\|E\\,T(x+b)\\|$", dashed=True, draws=True)
        _root_d(axes, run, model)
        _mark_fixed_point(axes, run, model, entering)
        axes.set(ylabel="norm", ylim=(0, None), xlim=(0, entering.norms[-1]), xlabel="norm of the drift, $N$")
        axes.set_title(f"6b  {_title(run, model)}")
        axes.legend(loc="upper left")
    return figure


def figure_7(run: Run, *, model: str | None = None) -> Figure:
    """Histograms of the scores before softmax, one ridge for each N: the draws that fall and rise most."""
    model = model or models_of(run)[0]
    arrays = run.arrays()
    edges, counts = arrays[f"{model}/scores_edges"], arrays[f"{model}/scores_counts"]
    means, norms = arrays[f"{model}/scores_by_head"], arrays[f"{model}/norms"]
    last = means[:, -1].mean(-1)
    chosen = list(dict.fromkeys((int(last.argmin()), int(last.argmax()))))
    shown = _spread(norms, _RIDGES)
    with style():
        figure, panels = side_by_side(len(chosen), 2.9)
        for panel, draw in zip(panels, chosen, strict=True):
            for level, k in enumerate(shown):
                _ridge(panel, edges[draw, k], counts[draw, k], level, means[draw, k])
            panel.axvline(0, color=NULL, linestyle=":", linewidth=1, zorder=0)
            panel.set_title(f"draw {draw}: mean score ${last[draw]:+.2f}$ at $N={norms[-1]:g}$", fontweight="normal")
            panel.set_xlabel("score $QK^\\top/\\sqrt{d_k}$ before softmax")
            panel.set_yticks(range(len(shown)), [f"$N={norms[k]:g}$" for k in shown])
            panel.grid(axis="y", visible=False)
            panel.tick_params(axis="y", length=0)
        title = f"7  {_title(run, model)}: the two whose mean moves most; a tick is the mean of a head"
        heading(figure, title)
    return figure


def figure_8a(run: Run, *, model: str | None = None) -> Figure:
    """Mean cosine of queries and of keys (heads concatenated) against N."""
    model = model or models_of(run)[0]
    with style():
        figure, axes = subplots(size=(COLUMN, 2.4))
        _draw(axes, curve(run, model, "query", "mean_cosine"), _IN, "queries", draws=True)
        _draw(axes, curve(run, model, "key", "mean_cosine"), _OUT, "keys", dashed=True, draws=True)
        axes.axhline(0, color=NULL, linestyle=":", linewidth=1)
        axes.set(ylabel="mean cosine", ylim=(-0.04, 1.04))
        axes.legend(loc="lower right")
        axes.set_title(f"8a  {_title(run, model)}")
        _norm_axis(axes, curve(run, model, "query", "mean_cosine").norms)
    return figure


def figure_8b(run: Run, *, model: str | None = None) -> Figure:
    """Norms of queries and keys against N, and the norm of the mean that equation 1 expects."""
    model = model or models_of(run)[0]
    with style():
        figure, axes = subplots(size=(COLUMN, 2.4))
        queries, keys = (curve(run, model, site, "mean_norm") for site in ("query", "key"))
        _draw(axes, queries, _IN, "queries $E\\|q\\|$", draws=True)
        _draw(axes, keys, _OUT, "keys $E\\|k\\|$", dashed=True, draws=True)
        label = "expected $\\|W\\bar{x}+\\mathrm{bias}\\|$, equation 1"
        for site in ("query", "key"):
            if run.rows(model=model, site=site, metric="expected_norm_of_mean", seed=None):
                expected = curve(run, model, site, "expected_norm_of_mean")
                axes.plot(expected.norms, expected.mean, "x", color=INK, markersize=4, markeredgewidth=0.8, label=label)
                label = None
        axes.set(ylabel="norm", ylim=(0, None), xlabel="norm of the drift, $N$", xlim=(0, keys.norms[-1] * 1.02))
        axes.legend(loc="upper left")
        axes.set_title(f"8b  {_title(run, model)}")
    return figure


def figure_9(run: Run, *, model: str | None = None) -> Figure:
    """Largest, median and smallest probability of a softmax row, averaged, against N."""
    names = {
        "max_probability": ("largest", _OUT),
        "median_probability": ("median", _THIRD),
        "min_probability": ("smallest", _IN),
    }
    return _probabilities(run, model, names, "9", "of a row")


def figure_10(run: Run, *, model: str | None = None) -> Figure:
    """Largest and smallest probability of a whole sequence, averaged over sequences, against N."""
    names = {"sequence_max_probability": ("largest", _OUT), "sequence_min_probability": ("smallest", _IN)}
    return _probabilities(run, model, names, "10", "of a sequence")


def figure_side_by_side(run: Run) -> Figure:
    """All experiments of a run: cosine of the output, its norm over that of the input, largest probability."""
    models = models_of(run)
    entering = curve(run, models[0], "input", "mean_cosine")
    with style():
        figure, panels = subplots(1, 3, size=(WIDE, 2.9))
        for index, model in enumerate(models):
            shade, line = colour(index), ("-", "--", ":")[index // 9 % 3]
            shown = [curve(run, model, "output", "mean_cosine")]
            norms = [curve(run, model, site, "mean_norm") for site in ("output", "input")]
            shown.append(_curve_of(norms[0].norms, norms[0].draws / norms[1].draws))
            if run.rows(model=model, site="softmax", metric="max_probability", seed=None):
                found = curve(run, model, "softmax", "max_probability")
                shown.append(_curve_of(found.norms, found.draws / (found.null or 1.0)))
            for panel, found in zip(panels, shown, strict=False):
                panel.fill_between(found.norms, found.low, found.high, color=shade, alpha=0.2, linewidth=0)
                panel.plot(found.norms, found.mean, line, color=shade, label=model)
        label = f"input of {models[0]}"
        panels[0].plot(entering.norms, entering.mean, color=FAINT, linewidth=0.8, label=label, zorder=0)
        panels[0].set(title="mean cosine, output", ylim=(-0.04, 1.04))
        panels[1].axhline(1, color=NULL, linestyle=":", linewidth=1)
        panels[1].set(title="norm, output over input", yscale="log")
        panels[2].axhline(1, color=NULL, linestyle=":", linewidth=1)
        panels[2].set(title="largest probability over uniform", yscale="log")
        for panel in panels:
            _norm_axis(panel, entering.norms)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=6.5)
    return figure


_ALL: dict[str, Callable[..., Figure]] = {
    "block-cosine": figure_6a,
    "block-norm": figure_6b,
    "block-scores": figure_7,
    "block-query-key-cosine": figure_8a,
    "block-query-key-norm": figure_8b,
    "block-row-probabilities": figure_9,
    "block-sequence-probabilities": figure_10,
}
_WITHOUT_ATTENTION = ("block-cosine", "block-norm")


def _probabilities(run: Run, model: str | None, names: dict[str, tuple[str, str]], number: str, where: str) -> Figure:
    """Probabilities against N, as their distance from the uniform one in percent."""
    model = model or models_of(run)[0]
    with style():
        figure, axes = subplots(size=(COLUMN, 2.4))
        ends, norms, uniform, lowest, highest = [], np.zeros(1), 1.0, -5.0, 5.0
        for metric, (name, shade) in names.items():
            found = curve(run, model, "softmax", metric)
            norms, uniform = found.norms, found.null or 1.0
            low, mean, high, draws = (
                100 * (part / uniform - 1) for part in (found.low, found.mean, found.high, found.draws)
            )
            _draw(axes, Curve(norms, mean, low, high, draws, None), shade, draws=True)
            ends.append((mean[-1], name, shade))
            lowest, highest = min(lowest, 1.1 * float(low.min())), max(highest, 1.1 * float(high.max()))
        null_line(axes, 0, f"uniform, 1/{1 / uniform:.0f}", above=False)
        axes.set(xlabel="norm of the drift, $N$", xlim=(0, norms[-1]), ylim=(lowest, highest))
        axes.set_ylabel(f"probability {where},\npercent above uniform")
        label_lines(axes, ends, gap=0.08)
        axes.set_title(f"{number}  {_title(run, model)}")
    return figure


def _draw(
    axes: Axes, found: Curve, shade: str, label: str | None = None, *, dashed: bool = False, draws: bool = False
) -> None:
    """Average, band, and hairlines for the draws."""
    if draws:
        axes.plot(found.norms, found.draws.T, color=shade, linewidth=0.4, alpha=0.35)
    axes.fill_between(found.norms, found.low, found.high, color=shade, alpha=0.22, linewidth=0)
    axes.plot(found.norms, found.mean, "--" if dashed else "-", color=shade, marker="o", markersize=2.4, label=label)


def _curve_of(norms: Array, draws: Array) -> Curve:
    """A curve of values derived draw by draw; its interval is Student's t over draws."""
    count = len(draws)
    mean = draws.mean(0)
    half = t_quantile(count - 1) * draws.std(0, ddof=1) / count**0.5 if count > 1 else np.zeros_like(mean)
    return Curve(norms, mean, mean - half, mean + half, draws, None)


def _norm_axis(axes: Axes, norms: Array) -> None:
    axes.set_xscale("symlog", linthresh=1.0, linscale=0.6)
    axes.set_xlim(norms[0], norms[-1])
    ticks = [tick for tick in (0, 0.5, 1, 2, 5, 10, 20, 60) if tick <= norms[-1]]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("norm of the drift, $N$ (linear to 1, then logarithmic)")


def _title(run: Run, model: str) -> str:
    draws = len({row.seed for row in run.rows(model=model, metric="fixed_point") if row.seed is not None})
    return f"untrained {model}, {draws} draw{'s' if draws > 1 else ''}"


def _root_d(axes: Axes, run: Run, model: str) -> None:
    """√d, from the width of the query vectors or from where a fresh LayerNorm would stand."""
    predicted = run.rows(model=model, metric="width")
    if not predicted or predicted[0].value is None:
        return
    root = predicted[0].value ** 0.5
    null_line(axes, root, f"$\\sqrt{{d}}$ = {root:.2f}")


def _mark_fixed_point(axes: Axes, run: Run, model: str, entering: Curve) -> None:
    row = run.rows(model=model, metric="fixed_point", seed=None)[0]
    if row.value is None:
        absent = row.note.replace("; ", "\n")
        axes.annotate(absent, (0.98, 0.04), xycoords="axes fraction", ha="right", fontsize=6.5, color=INK)
        return
    height = float(np.interp(row.value, entering.norms, entering.mean))
    axes.plot([row.value], [height], "o", color=INK, markersize=4, zorder=5)
    axes.plot([row.value, row.value], [0, height], color=INK, linewidth=0.7)
    ends = "" if row.low is None or row.high is None else f"\n95 %: {row.low:.4f} … {row.high:.4f}"
    axes.annotate(
        f"$N^*$ = {row.value:.4f}{ends}",
        (row.value, 0),
        xytext=(4, 4),
        textcoords="offset points",
        fontsize=6.5,
        va="bottom",
        color=INK,
    )


def _spread(norms: Array, most: int) -> list[int]:
    """Indices of at most `most` norms, evenly over the range, both ends included."""
    wanted = np.linspace(norms[0], norms[-1], most)
    return sorted({int(np.abs(norms - value).argmin()) for value in wanted})


def _ridge(axes: Axes, edges: Array, counts: Array, level: int, means: Array) -> None:
    """One histogram standing on its level, scaled to the same height as the others."""
    density = counts / counts.max()
    middle = (edges[1:] + edges[:-1]) / 2
    axes.fill_between(middle, level, level + 0.85 * density, step="mid", color=colour(0), alpha=0.35, linewidth=0)
    axes.step(middle, level + 0.85 * density, where="mid", color=colour(0), linewidth=0.7)
    axes.axhline(level, color=FAINT, linewidth=0.4)
    axes.plot(means, np.full(len(means), level - 0.06), "|", color=colour(1), markersize=3.5, markeredgewidth=0.7)
