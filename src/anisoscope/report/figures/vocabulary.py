"""Figures M1 and M4: I(W) of the vocabulary matrices over training, and the matrices themselves in two dimensions.

M1 draws I(W) in both sign conventions, raw and centred, with random directions of the same norms as the reference that
a value near 1 has to beat. M4 draws the rows of a matrix on its first two singular directions; the origin is marked,
since the distance of the cloud from it is the drift. Where tokens were counted, colours say how often each was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anisoscope.errors import StoreError
from anisoscope.report.figures.style import COLUMN, INK, NULL, WIDE, colour, heading, side_by_side, style, subplots
from anisoscope.report.figures.style.curves import step_axis
from anisoscope.report.figures.style.names import series_name, shown_name
from anisoscope.runs.store import Run
from anisoscope.runs.table import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SITES = ("vocabulary.input", "vocabulary.output")
_PANELS = 6  # checkpoints that M4 shows


def figures(run: Run) -> dict[str, Callable[[Run], Figure]]:
    """Both figures of a run of `vocabulary`."""
    return {"partition-function": figure_m1, "vocabulary-plane": figure_m4}


def figure_m1(run: Run) -> Figure:
    """I(W) over steps or by model, one panel per matrix: raw and centred, one-sided and ±, with references."""
    sites = _sites(run)
    with style():
        figure, panels = side_by_side(len(sites), 2.6, WIDE if len(sites) > 1 else WIDE * 0.68)
        for panel, site in zip(panels, sites, strict=True):
            for shade, where, text in ((colour(1), site, "raw"), (colour(0), f"{site}.centred", "centred")):
                for metric, line, convention in (
                    ("partition_one_sided", "-", "one-sided"),
                    ("partition_both", "--", "±"),
                ):
                    _line(panel, run.rows(site=where, metric=metric), _apart(run), line, shade, f"{text}, {convention}")
            _reference(panel, run.rows(site=site, metric="partition_one_sided"), _apart(run))
            panel.set(title=_matrix_name(run, site), ylim=(-0.03, 1.05))
            _step_axis(panel, run)
        panels[0].set_ylabel("$I(W)$")
        heading(figure, f"M1  {_model(run)}")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=6.5)
    return figure


def figure_m4(run: Run) -> Figure:
    """The rows of each matrix on its first two singular directions, at up to six checkpoints; the origin is a cross."""
    arrays, sites = run.arrays(), _sites(run)
    steps = sorted({int(name.split("/")[0]) for name in arrays if name[0].isdecimal()})
    models = _apart(run)
    shown = [steps[round(k)] for k in np.linspace(0, len(steps) - 1, min(_PANELS, len(steps)))]
    with style():
        width = min(WIDE, max(COLUMN, 1.5 * len(shown) + 0.4))
        figure, panels = subplots(
            len(sites),
            len(shown),
            size=(width, 0.3 + len(sites) * min(2.6, width / len(shown))),
            squeeze=False,
        )
        for line, site in zip(panels, sites, strict=True):
            for panel, step in zip(line, shown, strict=True):
                if f"{step}/{site}/points" not in arrays:  # a model without this matrix
                    panel.set_axis_off()
                    continue
                _scatter(panel, arrays, f"{step}/{site}")
                if len(steps) > 1:
                    panel.set_title(models[step] if models else f"step {step:,}", fontweight="normal")
            line[0].set_ylabel(f"{_matrix_name(run, site)}\nsecond direction")
        for panel in panels[-1]:
            panel.set_xlabel("first direction")
        _count_key(figure, panels, arrays)
        heading(figure, f"M4  {_model(run)}")
    return figure


def _apart(run: Run) -> list[str]:
    """The names of models that are not a series, in the order of their arrays."""
    rows = run.rows(metric="partition_one_sided")
    return list(dict.fromkeys(shown_name(row.model) for row in rows if row.step is None))


def _sites(run: Run) -> list[str]:
    found = [site for site in _SITES if run.rows(site=site, metric="partition_one_sided")]
    if not found:
        raise StoreError("there are no vocabularies in this run", where=run.folder, do="name a run of `vocabulary`")
    return found


def _places(rows: Sequence[Row], models: Sequence[str]) -> list[float]:
    """The step of each row, or the place of its model among those that are not a series."""
    return [models.index(shown_name(row.model)) if row.step is None else row.step for row in rows]


def _line(panel: Axes, rows: Sequence[Row], models: Sequence[str], line: str, shade: str, label: str) -> None:
    rows = [row for row in rows if row.value is not None]
    shift = 0.0 if not models else -0.12 if label.startswith("raw") else 0.12
    x = [place + shift for place in _places(rows, models)]
    panel.plot(
        x,
        np.array([row.value for row in rows], float),
        linestyle="none" if models else line,
        color=shade,
        marker="o",
        markersize=3 if line == "-" else 6,
        markeredgewidth=0.8,
        markerfacecolor=shade if line == "-" else "none",  # a ring: what it coincides with is seen inside
        label=label,
    )


def _reference(panel: Axes, rows: Sequence[Row], models: Sequence[str]) -> None:
    """I of random directions with the norms of W: the null over steps, or a level per model."""
    rows = [row for row in rows if row.null is not None]
    y, label = np.array([row.null for row in rows], float), "random directions,\nsame norms"
    places = np.array(_places(rows, models))
    if not models:
        panel.plot(places, y, ":", color=NULL, linewidth=1, label=label)
    else:
        panel.hlines(y, places - 0.3, places + 0.3, linestyles=":", colors=NULL, linewidth=1, label=label)


def _scatter(panel: Axes, arrays: dict[str, np.ndarray], key: str) -> None:
    points = arrays[f"{key}/points"]
    counts = arrays.get(f"{key}/counts")
    if counts is None or not counts.any():
        panel.scatter(*points.T, s=1.2, color=colour(0), alpha=0.35, linewidths=0, rasterized=True)
    else:
        unseen = counts == 0
        panel.scatter(*points[unseen].T, s=1.2, color="#BBBBBB", alpha=0.5, linewidths=0, rasterized=True)
        shades = _by_count(arrays)
        panel.scatter(*points[~unseen].T, s=2, c=counts[~unseen], linewidths=0, rasterized=True, **shades)
    reach = 1.05 * float(np.abs(points).max())
    panel.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    tick = float(f"{0.6 * reach:.0g}")
    panel.set_xticks([-tick, 0, tick], [f"{-tick:g}", "", f"{tick:g}"])
    panel.set_yticks([-tick, 0, tick])
    panel.plot(0, 0, "+", color=INK, markersize=7, markeredgewidth=1)


def _matrix_name(run: Run, site: str) -> str:
    tied = any(model.get("tied") for model in run.manifest["model"].values())
    return "tied vocabulary" if tied else f"{site.removeprefix('vocabulary.')} vocabulary"


def _by_count(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """One scale of colours for all panels: how often a token was seen, logarithmically."""
    from matplotlib.colors import LogNorm

    most = max(float(array.max(initial=0)) for name, array in arrays.items() if name.endswith("/counts"))
    return {"cmap": "viridis", "norm": LogNorm(1, max(most, 2.0))}


def _count_key(figure: Figure, panels: Any, arrays: dict[str, np.ndarray]) -> None:
    """The key to the colours, where tokens were counted."""
    from matplotlib.cm import ScalarMappable

    if any(array.any() for name, array in arrays.items() if name.endswith("/counts")):
        bar = figure.colorbar(ScalarMappable(**_by_count(arrays)), ax=panels, pad=0.02, aspect=18, shrink=0.8)
        bar.set_label("times seen in the text; grey: never", fontsize=6.5)


def _step_axis(panel: Axes, run: Run) -> None:
    """Training steps, or the names of models that were measured once."""
    rows = run.rows(metric="partition_one_sided")
    models = _apart(run)
    if not models:
        step_axis(panel, np.unique(_places(rows, models)))
        panel.set_xlabel("training step")
        return
    panel.set_xticks(range(len(models)), models)
    panel.set_xlim(-0.5, len(models) - 0.5)


def _model(run: Run) -> str:
    names = dict.fromkeys(series_name(row.model) for row in run.rows(metric="partition_one_sided"))
    return ", ".join(list(names)[:3]) + (" …" if len(names) > 3 else "")
