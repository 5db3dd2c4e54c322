"""Draw the pictures of docs/explanation: clouds that fool a metric, why exact, why clustered intervals.

    python scripts/explanation_figures.py                    # all of them, some minutes on one core
    python scripts/explanation_figures.py far-ball exact     # some

Every number on a picture is computed by the functions of the package while it is drawn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from explanation_clouds import CLOUDS, Cloud, Reading
from explanation_curves import CURVES

from anisoscope.inference.metrics import METRICS
from anisoscope.report.figures.style import FAINT, INK, PALETTE, WIDE, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "figures" / "explanation"
FOOLED, SEES = PALETTE[1], PALETTE[2]
LABELS = {"cosine_share": "largest cosine share"}
COUNTS = ("outlier_dimensions", "mean_dimensions")
SHOWN = 1500  # points of a cloud


def figure_cloud(cloud: Cloud) -> Figure:
    """The cloud in a plane, and beside it what metrics make of it."""
    import matplotlib.pyplot as plt

    with style():
        columns = len(cloud.readings)
        height = 0.75 + 0.2 * (len(cloud.fooled) + len(cloud.sees) + 3)
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(WIDE, max(height, 2.3)), gridspec_kw={"width_ratios": [1.0, 1.25 + 0.22 * columns]}
        )
        _scatter(left, cloud)
        _scores(right, cloud, [reading.measure() for reading in cloud.readings])
        figure.subplots_adjust(wspace=0.08)
    return figure


def _scatter(axes: Axes, cloud: Cloud) -> None:
    reading: Reading = cloud.readings[0]
    points = reading.x @ cloud.plane  # (n, 2)
    shown = np.random.default_rng(0).permutation(len(points))[:SHOWN]
    marked = np.zeros(len(points), dtype=bool)
    for name, chosen in cloud.shades.items():
        marked |= chosen
        axes.scatter(*points[chosen].T, s=5, color=PALETTE[4], linewidths=0, label=name, zorder=3)
    rest = shown[~marked[shown]]
    axes.scatter(*points[rest].T, s=3, color=PALETTE[0], alpha=0.35, linewidths=0, zorder=2)
    axes.plot(0, 0, "+", color=INK, markersize=9, markeredgewidth=1.4, zorder=4)
    axes.annotate("origin", (0, 0), xytext=(5, -9), textcoords="offset points", fontsize=6.5, color=INK, zorder=5)
    if cloud.squeezed:
        axes.set_yscale("symlog", linthresh=10)
    else:
        axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel(cloud.axes[0])
    axes.set_ylabel(cloud.axes[1])
    n, d = reading.x.shape
    axes.set_title(f"{cloud.title}  (n = {n:,}, d = {d})", loc="left")
    if cloud.shades:
        axes.legend(loc="center right" if cloud.squeezed else "upper right", handletextpad=0.1)


def _scores(axes: Axes, cloud: Cloud, found: list[dict[str, tuple[float | None, float | None]]]) -> None:
    """A table of text: fooled metrics, then those that are not, with the isotropic value."""
    axes.axis("off")
    several = len(found) > 1
    heads = [reading.label for reading in cloud.readings] if several else ["here"]
    x = np.linspace(0.98 - (0.17 if several else 0.22) * len(heads), 0.98, len(heads) + 1)
    lines = len(cloud.fooled) + len(cloud.sees) + 1.6
    y = 1.0
    for place, head in zip(x, [*heads, "isotropic"], strict=True):
        axes.text(place, y, head, ha="right", va="center", fontsize=7, color=FAINT)
    for title, metrics, shade in (("fooled", cloud.fooled, FOOLED), ("not fooled", cloud.sees, SEES)):
        axes.text(0, y, title, va="center", fontsize=8, fontweight="bold", color=shade)
        for metric in metrics:
            y -= 1 / lines
            axes.text(0, y, _label(metric), va="center", fontsize=7.5, color=INK)
            for place, reading, values in zip(x[:-1], cloud.readings, found, strict=True):
                shade = (
                    FOOLED if reading.fools == "all" or (reading.fools == "some" and metric in cloud.fooled) else SEES
                )
                axes.text(
                    place,
                    y,
                    _number(values[metric][0], metric),
                    ha="right",
                    va="center",
                    fontsize=7.5,
                    fontweight="bold",
                    color=shade,
                )
            axes.text(
                x[-1], y, _number(found[0][metric][1], metric), ha="right", va="center", fontsize=7.5, color=FAINT
            )
        y -= 1.3 / lines
    axes.set_xlim(0, 1.0)
    axes.set_ylim(-0.05, 1.05)


def _label(metric: str) -> str:
    return LABELS.get(metric) or METRICS[metric].label


def _number(value: float | None, metric: str) -> str:
    if value is None:
        return "–"
    if metric in COUNTS:
        return f"{value:.0f}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    if abs(value) >= 1:
        return f"{value:.2f}".replace("-", "−")
    return f"{round(value, 3) + 0.0:.3f}".replace("-", "−")  # + 0.0: no negative zero


def drawings() -> Mapping[str, Callable[[], Figure]]:
    """Every picture by its file name."""
    clouds = {name: (lambda make=make: figure_cloud(make())) for name, make in CLOUDS.items()}
    return clouds | CURVES


def main() -> None:
    import torch

    torch.set_num_threads(1)
    known = drawings()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(known)}")
    names = parser.parse_args().names
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    for name in names or known:
        for path in save(known[name](), FOLDER, name, formats=("png",)):
            print(path.relative_to(FOLDER.parents[2]))


if __name__ == "__main__":
    main()
