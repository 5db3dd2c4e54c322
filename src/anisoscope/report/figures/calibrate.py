"""The picture of a calibration: the floor before and after each correction, with the isotropic law and thresholds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from anisoscope.report.figures.style import INK, NULL, WIDE, colour, heading, style, subplots
from anisoscope.runs.store import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLES = {
    "raw": "as they are",
    "centred": "centring",
    "without_top": "top removed",
    "whitened": "whitening",
}


def figure_calibration(run: Run) -> Figure:
    """Four panels: density of unrelated-pair cosines, isotropic density, threshold at the smallest rate."""
    arrays = run.arrays()
    middle = (arrays["edges"][1:] + arrays["edges"][:-1]) / 2
    with style():
        figure, panels = subplots(1, 4, size=(WIDE, 2.1), sharex=True)
        for index, (panel, (name, title)) in enumerate(zip(panels, _TITLES.items(), strict=True)):
            density = arrays[f"histogram.{name}"]
            panel.fill_between(middle, density, color=colour(index), alpha=0.35, linewidth=0)
            panel.plot(middle, density, color=colour(index))
            panel.plot(middle, arrays["null"], color=NULL, linestyle=":", linewidth=1)
            thresholds = run.rows(site=name, metric="threshold")
            strict = min(thresholds, key=lambda row: row.at or 1.0) if thresholds else None
            if strict is not None and strict.value is not None:
                panel.axvline(strict.value, color=INK, linewidth=0.8)
                panel.annotate(
                    f"{100 * (strict.at or 0):g} % above {strict.value:.2f}",
                    (strict.value, 0.97),
                    xycoords=("data", "axes fraction"),
                    xytext=(-3 if strict.value > 0 else 3, 0),
                    textcoords="offset points",
                    ha="right" if strict.value > 0 else "left",
                    va="top",
                    fontsize=6.5,
                )
            panel.set(
                title=title,
                xlabel="cosine",
                xlim=(-1, 1),
                ylim=(0, 1.25 * max(density.max(), arrays["null"].max(), np.finfo(float).tiny)),
            )
            panel.set_yticks([])
            panel.grid(visible=False)
        panels[0].set_ylabel("density")
        heading(figure, "Cosines of unrelated pairs, before and after each correction")
        figure.supxlabel(
            "dotted: isotropic pairs; line: the similarity that so many unrelated pairs exceed", fontsize=6.5
        )
    return figure


def figures(run: Run) -> dict[str, Callable[[Run], Figure]]:
    """The distribution of similarities, raw and after each correction."""
    return {"calibration": figure_calibration}
