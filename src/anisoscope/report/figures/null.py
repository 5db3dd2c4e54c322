"""Figures 17 and 18: what cosines isotropy gives, in closed form, with every measured site as a point above it.

Appendix B of *Anisotropy Is Inherent to Self-Attention in Transformers* asks for a measure grounded in the isotropic
distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from anisoscope.geometry.nulls.isotropic import cosine_density, cosine_quantile
from anisoscope.report.figures.style import COLUMN, INK, NULL, WIDE, colour, marker, style, subplots
from anisoscope.report.figures.style.names import shown_name
from anisoscope.runs.store import Run, open_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIMENSIONS = (16, 64, 256, 1024, 4096)


@dataclass(frozen=True)
class Standing:
    """The mean cosine of a measured site, and its dimension."""

    model: str
    site: str
    dimension: int
    mean_cosine: float


def standings(run: Run) -> list[Standing]:
    """Every site of a run that knows its dimension."""
    dimensions, cosines = (
        {(row.model, row.step, row.site): row.value for row in run.rows(metric=metric, positions="all", at=None)}
        for metric in ("dimension", "mean_cosine")
    )
    return [
        Standing(model, site, int(d), cosine)
        for (model, step, site), cosine in cosines.items()
        if cosine is not None and (d := dimensions.get((model, step, site))) is not None and d >= 2
    ]


def figure_17_of(runs: Sequence[Run]) -> Figure:
    """Figure 17 for the dimensions of runs of `null`."""
    return figure_17(sorted({int(row.value) for run in runs for row in run.rows(metric="dimension") if row.value}))


def figure_17(dimensions: Sequence[int] = DIMENSIONS) -> Figure:
    """Density of the cosine of isotropic pairs, for dimensions 16 … 4,096."""
    cosines = np.linspace(-1, 1, 4001)
    with style():
        figure, axes = subplots(size=(COLUMN, 2.4))
        for index, d in enumerate(dimensions):
            density = np.asarray(cosine_density(cosines, d))
            shown = density > 1e-3 * density.max()
            axes.plot(cosines[shown], density[shown], color=colour(index))
            place = (1.0 if d > 32 else 1.8) * d**-0.5  # one sd from the middle, where curves are apart
            height = float(np.asarray(cosine_density([place], d))[0])
            axes.annotate(
                f"$d$ = {d:,}",
                (place, height),
                xytext=(4, 2),
                textcoords="offset points",
                fontsize=6.5,
                color=colour(index),
            )
        axes.set(xlim=(-1, 1), ylim=(0, None), xlabel="cosine of an isotropic pair", ylabel="density")
        axes.set_title("17  Isotropic pairs, closed form")
    return figure


def figure_18(runs: Sequence[Run] = ()) -> Figure:
    """The 95 % quantile of isotropic cosines against d, and the mean cosine of every measured site as a point."""
    found = [(standing.model or run.name, standing) for run in runs for standing in standings(run)]
    models = list(dict.fromkeys(model for model, _ in found))
    lowest = min([max(2, s.dimension // 2) for _, s in found], default=4)
    highest = max([2 * s.dimension for _, s in found], default=8192)
    dimensions = np.unique(np.geomspace(lowest, highest, 200).astype(int))
    with style():
        figure, axes = subplots(size=(COLUMN if len(models) < 6 else WIDE * 0.75, 3.0))
        quantiles = np.array([float(cosine_quantile(0.95, int(d))) for d in dimensions])
        axes.plot(dimensions, quantiles, color=NULL)
        label = "below: 95 % of isotropic pairs"
        axes.fill_between(dimensions, 0, quantiles, color=NULL, alpha=0.12, linewidth=0, label=label)
        for index, model in enumerate(models):
            mine = [s for name, s in found if name == model]
            axes.plot(
                [
                    s.dimension * _aside(model, [name for name, other in found if other.dimension == s.dimension])
                    for s in mine
                ],
                [s.mean_cosine for s in mine],
                marker(index),
                color=colour(index),
                markersize=4,
                alpha=0.85,
                markeredgecolor="white",
                markeredgewidth=0.3,
                label=shown_name(model),
            )
        axes.axhline(0, color=INK, linewidth=0.6)
        axes.set(xscale="log", ylim=(min([-0.05, *(s.mean_cosine - 0.03 for _, s in found)]), 1.03))
        ticks = [2**k for k in range(1, 24) if lowest <= 2**k <= highest]
        ticks = ticks[:: 1 + len(ticks) // 8]
        axes.set_xticks(ticks, [f"{d:,}" for d in ticks])
        axes.minorticks_off()
        shared = "; models that share it stand side by side" if len(models) > 1 else ""
        axes.set(xlabel=f"dimension $d$ (logarithmic{shared})", ylabel="cosine", xlim=(lowest, highest))
        axes.set_title("18  Measured mean cosine, and isotropy" if found else "18  Cosine of isotropic pairs")
        figure.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=min(3, 1 + len(models)), fontsize=6.5)
    return figure


def _aside(model: str, beside: Sequence[str]) -> float:
    """How far from its dimension a model stands, so that those of one dimension do not hide each other: up to 15 %.

    >>> [round(_aside(model, ["a", "a", "b", "c"]), 2) for model in "abc"]
    [0.97, 1.0, 1.03]
    """
    names = list(dict.fromkeys(beside))
    return float(np.exp(min(0.03, 0.3 / len(names)) * (names.index(model) - (len(names) - 1) / 2)))


def figures(run: Run) -> dict[str, Callable[[Run], Figure]]:
    """The law of a pair's cosine at the dimensions of the run; with measured runs, those beside it."""
    settings = run.manifest["settings"]
    drawn: dict[str, Callable[[Run], Figure]] = {"isotropic-cosines": lambda _: figure_17(settings["dim"])}
    measured = [open_run(folder) for folder in settings.get("runs", ())]
    return drawn | {"cosine-by-dimension": lambda _: figure_18(measured)}
