"""Figures M2 and M3: the stack with the final norm set apart, and what that norm does, from runs of `final-norm`.

M2 draws the mean cosine of every site in order of computation, over all pairs, between and within sequences, and the
step that the final norm makes at the end. M3 draws ‖b‖, ‖b‖/‖g‖ and the cosine that the norm alone implies beside the
measured ones, over checkpoints, or over blocks for a post-norm model that was measured once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from anisoscope.errors import StoreError
from anisoscope.report.figures.style import INK, NULL, WIDE, colour, heading, side_by_side, style, subplots
from anisoscope.report.figures.style.curves import step_axis, with_ends
from anisoscope.report.figures.style.names import series_name, shown_name
from anisoscope.runs.store import Run
from anisoscope.runs.table import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABLATED = {"without_bias": "$b=0$", "unit_gain": "$g=1$", "mean_removed": "mean removed"}
_COSINES = (
    ("implied_cosine", "implied, $r^2/(1+r^2)$", INK),
    ("mean_cosine_before", "before the norm", colour(0)),
    ("mean_cosine", "after the norm", colour(1)),
)
_PAIRS = {
    "mean_cosine": "all pairs",
    "mean_cosine_inter": "between sequences",
    "mean_cosine_intra": "within sequences",
}


@dataclass(frozen=True)
class ClosingNorm:
    """What the rows of a run say about one norm that makes a site, at one step."""

    model: str
    step: int | None
    site: str
    rows: dict[tuple[str, str], Row]

    def row(self, metric: str) -> Row | None:
        return self.rows.get((self.site, metric))

    def ablated(self, name: str) -> Row | None:
        return self.rows.get((f"{self.site}.{name}", "mean_cosine"))


def closing_norms(rows: Sequence[Row]) -> list[ClosingNorm]:
    """The norms that close the stack or its blocks, in order of model, step and site."""
    kept = [row for row in rows if row.positions == "all"]
    by_step: dict[tuple[str, int | None], dict[tuple[str, str], Row]] = {}
    for row in kept:
        by_step.setdefault((row.model, row.step), {})[row.site, row.metric] = row
    return [
        ClosingNorm(model, step, site, cells)
        for (model, step), cells in by_step.items()
        for site, metric in cells
        if metric == "cosine_above_implied"
    ]


def figures(run: Run) -> dict[str, Callable[[Run], Figure]]:
    """The figures that a run of `final-norm` can show."""
    found: dict[str, Callable[[Run], Figure]] = {"cosine-by-layer": figure_m2}
    if closing_norms(run.rows()):
        found["final-norm"] = figure_m3
    return found


def figure_m2(run: Run) -> Figure:
    """Mean cosine by site, of a series at its last step; open markers are what a norm made."""
    rows = [row for row in run.rows(positions="all") if row.metric in _PAIRS and row.value is not None]
    sites = _stack(rows)
    if not sites:
        raise StoreError("this run holds no layers", where=run.folder, do="name a run of `final-norm` or `measure`")
    models = list(dict.fromkeys(model for model, _ in sites))
    with style():
        figure, panels = side_by_side(len(models), 2.7)
        for panel, model in zip(panels, models, strict=True):
            mine = [site for name, site in sites if name == model]
            _draw_stack(panel, [row for row in rows if row.model == model], mine)
            panel.set_title(f"M2  {shown_name(model)}")
        panels[0].set_ylabel("mean cosine")
        columns = 2 if len(models) == 1 else len(_PAIRS) + 1
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=columns)
    return figure


def figure_m3(run: Run) -> Figure:
    """Bias and gain; implied and measured cosine; ablations: over steps, over the blocks of one model, or by model."""
    norms = closing_norms(run.rows())
    if not norms:
        raise StoreError("no norm closes anything in this run", where=run.folder, do="name a run of `final-norm`")
    along, label = _axis(norms)
    once = {norm.model: norm for norm in norms} if all(norm.step is None for norm in norms) else {}
    with style():
        if len(once) > 1 or len(along) == 1:
            return _measured_once(list(once.values()) or norms)
        figure, (left, middle, right) = subplots(1, 3, size=(WIDE, 2.7))
        _parameters(left, along)
        for metric, text, shade in _COSINES:
            _line(middle, [(x, norm.row(metric)) for x, norm in along], text, shade, dashed=shade == INK)
        for index, (name, text) in enumerate({"as_it_is": "as it is", **ABLATED}.items()):
            _line(right, [(x, norm.ablated(name)) for x, norm in along], text, colour(index + 1))
        middle.set(title="mean cosine", ylim=(min(-0.04, middle.get_ylim()[0]), 1.04))
        right.set(title="after the norm, ablated", ylim=(min(-0.04, right.get_ylim()[0]), 1.04))
        for panel in (left, middle, right):
            panel.set_xlabel(label)
            if label == "training step":
                step_axis(panel, np.array([x for x, _ in along]))
        for panel in (middle, right):
            panel.axhline(0, color=NULL, linestyle=":", linewidth=1)
            _legend_below(panel, panel.get_legend_handles_labels()[0])
        heading(figure, f"M3  {series_name(norms[0].model)}")
    return figure


def _measured_once(norms: Sequence[ClosingNorm]) -> Figure:
    """The last norm of each model that is not in a series: one row of panels each."""
    figure, lines = subplots(len(norms), 3, size=(WIDE, 0.4 + 2.1 * len(norms)), squeeze=False)
    for panels, norm in zip(lines, norms, strict=True):
        _of_one_norm(panels, norm)
        if len(norms) > 1:
            panels[0].set_ylabel(f"{shown_name(norm.model)}\n{norm.site}")
    one = f"{shown_name(norms[0].model)}, {norms[0].site}"
    heading(figure, f"M3  {one if len(norms) == 1 else 'The last norm of each model'}")
    return figure


def _of_one_norm(panels: Sequence[Axes], norm: ClosingNorm) -> None:
    """A norm that was measured once: named bars in place of lines of one point."""
    left, middle, right = panels
    parts = (("gain_norm", "$\\|g\\|$", colour(2)), ("bias_norm", "$\\|b\\|$", colour(3)))
    _bars(left, [(text, norm.row(metric), shade) for metric, text, shade in parts])
    _bars(middle, [(text, norm.row(metric), shade) for metric, text, shade in _COSINES])
    kept = {"as_it_is": "as it is", **ABLATED}
    _bars(right, [(text, norm.ablated(name), colour(index + 1)) for index, (name, text) in enumerate(kept.items())])
    left.set_title("parameters of the norm")
    middle.set(title="mean cosine", xlim=(min(-0.04, middle.get_xlim()[0]), 1.04))
    right.set(title="after, ablated", xlim=(min(-0.04, right.get_xlim()[0]), 1.04))


def _bars(panel: Axes, named: Sequence[tuple[str, Row | None, str]]) -> None:
    shown = [(text, row, shade) for text, row, shade in named if row is not None and row.value is not None]
    for place, (_, row, shade) in enumerate(shown):
        panel.barh(place, row.value or 0.0, color=shade, alpha=0.8, height=0.6)
        if row.low is not None and row.high is not None:
            panel.hlines(place, row.low, row.high, color=INK, linewidth=0.9)
        words = f" {row.value:,.0f}" if abs(row.value or 0.0) >= 100 else f" {row.value:.3g}"
        panel.annotate(words, (max(row.value or 0.0, row.high or 0.0), place), va="center", fontsize=6.5)
    panel.set_yticks(range(len(shown)), [text for text, _, _ in shown])
    panel.set_ylim(len(shown) - 0.4, -0.6)
    panel.grid(axis="y", visible=False)
    panel.margins(x=0.25)


def _stack(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """(model, site) of the last step, without the inputs of block norms and without ablations."""
    last = max((row.step for row in rows if row.step is not None), default=None)
    kept = dict.fromkeys((row.model, row.site) for row in rows if row.step == last)
    aside = (".before_norm", ".as_it_is", *(f".{name}" for name in ABLATED))
    return [(model, site) for model, site in kept if not site.endswith(aside)]


def _draw_stack(panel: Axes, rows: Sequence[Row], sites: Sequence[str]) -> None:
    last = max((row.step for row in rows if row.step is not None), default=None)
    cells = {(row.site, row.metric): row for row in rows if row.step == last}
    for index, (metric, text) in enumerate(_PAIRS.items()):
        found = [(x, cells[site, metric]) for x, site in enumerate(sites) if (site, metric) in cells]
        if not found:
            continue
        x = np.array([place for place, _ in found], float)
        y, low, high = with_ends([row for _, row in found])
        panel.fill_between(x, low, high, color=colour(index), alpha=0.15, linewidth=0)
        panel.plot(x, y, color=colour(index), linestyle=("-", "--", ":")[index], label=text)
        for place, height, (_, row) in zip(x, y, found, strict=True):
            face = "white" if row.site.endswith("norm") else colour(index)
            panel.plot(place, height, "o", color=colour(index), markerfacecolor=face, markersize=3.4)
    entering = [
        (x, cells[f"{site}.before_norm", "mean_cosine"])
        for x, site in enumerate(sites)
        if (f"{site}.before_norm", "mean_cosine") in cells
    ]
    if entering:
        heights = np.array([row.value for _, row in entering], float)
        panel.plot([x for x, _ in entering], heights, "v", color=INK, markersize=3.2, label="before the block's norm")
    panel.axhline(0, color=NULL, linestyle=":", linewidth=1, label="isotropic")
    shown = [k for k, site in enumerate(sites) if len(sites) <= 9 or k % (len(sites) // 8) == 0 or k >= len(sites) - 1]
    panel.set_xticks(shown, [_short(sites[k]) for k in shown], rotation=45, ha="right", rotation_mode="anchor")
    panel.set_xlim(-0.4, len(sites) - 0.6)
    panel.set_ylim(min(panel.get_ylim()[0], -0.04), 1.04)


def _short(site: str) -> str:
    return {"embeddings": "emb.", "final_norm": "final norm"}.get(
        site, site.replace("block.", "").replace("coder.", "c. ")
    )


def _axis(norms: Sequence[ClosingNorm]) -> tuple[list[tuple[float, ClosingNorm]], str]:
    """Norms along training (the last one of each step), or along depth where there is one step only."""
    steps = {norm.step for norm in norms}
    if len(steps) > 1:
        last = {norm.step: norm for norm in norms if norm.step is not None}
        return [(float(step), norm) for step, norm in sorted(last.items())], "training step"
    return [(float(k), norm) for k, norm in enumerate(norms)], "norm, in order of depth"


def _parameters(panel: Axes, along: Sequence[tuple[float, ClosingNorm]]) -> None:
    """‖g‖ and ‖b‖ on the left axis, their ratio on the right one."""
    for metric, text, shade in (("gain_norm", "$\\|g\\|$", colour(2)), ("bias_norm", "$\\|b\\|$", colour(3))):
        _line(panel, [(x, norm.row(metric)) for x, norm in along], text, shade)
    panel.set(title="parameters of the norm", ylim=(0, None))
    handles = panel.get_legend_handles_labels()[0]
    if any((row := norm.row("bias_over_gain")) is not None and row.value is not None for _, norm in along):
        other = panel.twinx()
        _line(
            other, [(x, norm.row("bias_over_gain")) for x, norm in along], "$\\|b\\|/\\|g\\|$ (right)", INK, dashed=True
        )
        other.set_ylim(0, max(0.1, other.get_ylim()[1]))
        other.spines["right"].set_visible(True)
        other.grid(visible=False)
        handles += other.get_legend_handles_labels()[0]
    _legend_below(panel, handles)


def _legend_below(panel: Axes, handles: Sequence[Any]) -> None:
    """A legend under the label of the horizontal axis, where it hides no curve."""
    panel.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.27), ncols=2, fontsize=6.5)


def _line(
    panel: Axes, found: Sequence[tuple[float, Row | None]], text: str, shade: str, *, dashed: bool = False
) -> None:
    kept = [(x, row) for x, row in found if row is not None and row.value is not None]
    if not kept:
        return
    x, y = np.array([place for place, _ in kept]), np.array([row.value for _, row in kept], float)
    ends = [(row.low, row.high) for _, row in kept]
    if all(low is not None and high is not None for low, high in ends):
        low, high = np.array(ends, float).T
        if len(x) > 1:
            panel.fill_between(x, low, high, color=shade, alpha=0.18, linewidth=0)
        else:
            panel.vlines(x, low, high, color=shade, linewidth=0.8)
    panel.plot(x, y, "--" if dashed else "-", color=shade, marker="o", markersize=2.8, label=text)
