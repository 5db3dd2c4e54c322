"""Arms of a study side by side: what each variant of attention (or objective) costs, and what it does to the geometry.

`variants`: top left the validation loss. The other panels go by block: mean cosine of its output, sharpness, drift of
its queries, and how well mean query and mean key align. Points are means over seeds, bars the 95 % interval over seeds,
dotted lines the null of isotropic vectors or of uniform attention. More than `FEW` arms are rows, by their loss: the
mean over blocks with its interval, and each block as a small point.

`variants-differences` (attention alone, where losses can be compared): what each arm changes against the control, the
loss on the horizontal axis. An arm that keeps the loss and lowers the anisotropy stands straight below the crossing.
More than `FEW` arms are rows here too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from anisoscope.report.figures.style import (
    FAINT,
    INK,
    NULL,
    PALETTE,
    WIDE,
    bars_told,
    colour,
    footnote,
    marker,
    null_line,
    style,
    subplots,
)
from anisoscope.runs.store import Run
from anisoscope.runs.table import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = (
    ("mean_cosine", "Mean cosine of the output", "isotropic"),
    ("entropy_normalised", "Entropy of attention / log T", "uniform"),
    ("max_probability", "Greatest probability of a row", "uniform"),
    ("query_drift_ratio", "Drift of the queries", "isotropic"),
    ("query_key_alignment", "|cos(Q̄, K̄)|", "isotropic"),
)
FEW = 6  # arms whose curves can be distinguished in one panel
CHANGES = (
    ("mean_cosine", "Mean cosine"),
    ("entropy_normalised", "Entropy / log T"),
    ("query_key_alignment", "|cos(Q̄, K̄)|"),
)


def figures(run: Run) -> dict[str, Callable[[Run], Figure]]:
    figures: dict[str, Callable[[Run], Figure]] = {"variants": figure_variants}
    if any(row.metric == "validation_loss_difference" for row in run.rows()):
        figures["variants-differences"] = figure_variants_differences
    return figures


def figure_variants(run: Run) -> Figure:
    """Loss, and five quantities by block, one colour per arm."""
    rows = [row for row in run.rows() if row.seed is None and row.value is not None]
    arms = list(dict.fromkeys(row.model for row in rows))
    with style():
        losses = [row for row in rows if row.metric == "validation_loss"]
        if len(arms) > FEW:
            return rank_arms(rows, [row.model for row in sorted(losses, key=lambda row: -_value(row))], control=arms[0])
        figure, grid = subplots(2, 3, size=(WIDE, 4.4))
        tasks = run.manifest["settings"].get("compare") == "objectives"
        (list_losses if tasks else draw_losses)(grid[0, 0], losses, arms)
        for axes, (metric, title, null) in zip(grid.flat[1:], PANELS, strict=True):
            draw_by_block(axes, [row for row in rows if row.metric == metric], arms, null)
            axes.set_title(title)
        handles, labels = grid[0, 1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(arms), 6), handletextpad=0.3)
    return figure


def rank_arms(rows: Sequence[Row], ranked: Sequence[str], *, control: str) -> Figure:
    """One row per arm, the lowest loss on top; the control in colour."""
    figure, grid = subplots(2, 3, size=(WIDE, 1.4 + 0.28 * len(ranked)), sharey=True)
    for axes, (metric, title, _) in zip(
        grid.flat, (("validation_loss", "Validation loss (nats)", ""), *PANELS), strict=True
    ):
        mine = [row for row in rows if row.metric == metric]
        draw_arms(axes, mine, ranked, title, control=control)
        nulls = [row.null for row in mine if row.null is not None]
        if nulls:
            axes.axvline(nulls[0], color=NULL, linestyle=":", linewidth=1)
    told = bars_told((row.low, row.high) for row in rows)
    words = f"mean over blocks and seeds{told}; small: each block; dotted: the null"
    footnote(figure, f"{words}; blue: {control.replace('_', ' ')}")
    return figure


def rank_differences(rows: Sequence[Row], ranked: Sequence[str], *, control: str) -> Figure:
    """One row per arm, the lowest loss on top: what it changes against the control."""
    figure, grid = subplots(1, 4, size=(WIDE, 1.1 + 0.18 * len(ranked)), sharey=True)
    for axes, (metric, title) in zip(grid, (("validation_loss", "Loss (nats)"), *CHANGES), strict=True):
        draw_arms(axes, [row for row in rows if row.metric == f"{metric}_difference"], ranked, title, control=control)
        axes.axvline(0, color=NULL, linestyle=":", linewidth=1)
    words = f"change against {control.replace('_', ' ')} (dotted) within seeds, mean over blocks"
    footnote(figure, f"{words}{bars_told((row.low, row.high) for row in rows)}; small: each block")
    return figure


def draw_arms(axes: Axes, rows: Sequence[Row], ranked: Sequence[str], title: str, *, control: str) -> None:
    """A metric, one row per arm: the mean over blocks with its interval, and each block as a small point."""
    for place, arm in enumerate(ranked):
        mine = [row for row in rows if row.model == arm]
        blocks = [_value(row) for row in mine if row.layer is not None]
        axes.plot(blocks, [place] * len(blocks), ".", color=FAINT, markersize=4)
        for row in (row for row in mine if row.site in ("", "blocks")):
            shade = colour(0) if arm == control else INK
            axes.errorbar(
                _value(row), place, xerr=_bars([row]), color=shade, marker="o", markersize=4, capsize=2, linewidth=1
            )
    axes.set_title(title)
    axes.set_yticks(range(len(ranked)), [arm.replace("_", " ") for arm in ranked])
    axes.margins(y=0.04)


def draw_losses(axes: Axes, rows: Sequence[Row], arms: Sequence[str]) -> None:
    """One line per arm, the lowest loss on top."""
    ranked = sorted(rows, key=lambda row: -_value(row))
    for place, row in enumerate(ranked):
        shade, shape = _look(arms, row.model)
        axes.errorbar(_value(row), place, xerr=_bars([row]), color=shade, marker=shape, capsize=2, linewidth=1)
    axes.set_yticks(range(len(ranked)), [row.model.replace("_", " ") for row in ranked])
    axes.set(title="Validation loss", xlabel="nats per token")
    axes.margins(y=0.08)


def list_losses(axes: Axes, rows: Sequence[Row], arms: Sequence[str]) -> None:
    """Losses of different tasks, as words: one axis for all of them would invite a comparison."""
    axes.set_axis_off()
    axes.set_title("Validation loss")
    for place, row in enumerate(rows):
        ends = "" if row.low is None or row.high is None else f"\n({row.low:.2f} … {row.high:.2f})"
        words = f"{row.model.replace('_', ' ')}: {_value(row):.2f} nats{ends}"
        axes.text(0.0, 0.9 - 0.3 * place, words, va="top", fontsize=7, color=_look(arms, row.model)[0])
    axes.text(0.0, 0.9 - 0.3 * len(rows), "different tasks: not to be compared", va="top", fontsize=6.5, color=NULL)


def draw_by_block(axes: Axes, rows: Sequence[Row], arms: Sequence[str], null: str) -> None:
    """A metric over the blocks; arms stand a little apart so that their bars do not hide each other."""
    blocks = [row for row in rows if row.layer is not None]
    for i, arm in enumerate(arms):
        mine = sorted((row for row in blocks if row.model == arm), key=lambda row: row.layer or 0)
        shade, shape = _look(arms, arm)
        x = [(row.layer or 0) + 0.08 * (i - (len(arms) - 1) / 2) for row in mine]
        axes.errorbar(
            x,
            [_value(row) for row in mine],
            yerr=_bars(mine),
            color=shade,
            marker=shape,
            capsize=1.5,
            linewidth=0.9,
            elinewidth=0.7,
            label=arm.replace("_", " "),
        )
    nulls = [row.null for row in blocks if row.null is not None]
    if nulls:
        null_line(axes, nulls[0], null, above=nulls[0] < 0.99)  # not into the title
    axes.set_xticks(sorted({row.layer for row in blocks if row.layer is not None}))
    axes.set_xlabel("block")


def figure_variants_differences(run: Run) -> Figure:
    """Change of anisotropy, sharpness and alignment against change of loss; the control is the crossing at zero."""
    rows = [row for row in run.rows() if row.seed is None and row.value is not None]
    arms = list(dict.fromkeys(row.model for row in rows))
    losses = {row.model: row for row in rows if row.metric == "validation_loss_difference"}
    with style():
        if len(losses) >= FEW:
            return rank_differences(rows, sorted(losses, key=lambda arm: -_value(losses[arm])), control=arms[0])
        figure, grid = subplots(1, 3, size=(WIDE, 2.6))
        for axes, (metric, title) in zip(grid, CHANGES, strict=True):
            changes = {row.model: row for row in rows if (row.site, row.metric) == ("blocks", f"{metric}_difference")}
            for arm in (arm for arm in arms if arm in changes and arm in losses):
                draw_change(axes, losses[arm], changes[arm], *_look(arms, arm))
            axes.axhline(0, color=NULL, linestyle=":", linewidth=1)
            axes.axvline(0, color=NULL, linestyle=":", linewidth=1)
            axes.set(title=title, xlabel="change of loss (nats)")
        grid[0].set_ylabel(f"change against {arms[0].replace('_', ' ')}")
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(arms), 6), handletextpad=0.3)
    return figure


def draw_change(axes: Axes, loss: Row, change: Row, shade: str, shape: str) -> None:
    """One arm: a point with the intervals of both differences."""
    axes.errorbar(
        _value(loss),
        _value(change),
        xerr=_bars([loss]),
        yerr=_bars([change]),
        color=shade,
        marker=shape,
        capsize=1.5,
        linewidth=0,
        elinewidth=0.7,
        label=loss.model.replace("_", " "),
    )


def _look(arms: Sequence[str], arm: str) -> tuple[str, str]:
    """Colour and marker of an arm; where the colours begin again the markers have moved on."""
    place = arms.index(arm)
    return colour(place), marker(place + place // len(PALETTE))


def _value(row: Row) -> float:
    return float("nan") if row.value is None else row.value


def _bars(rows: Sequence[Row]) -> list[list[float]] | None:
    """Distances down and up to the ends of the intervals; none where there is a single seed."""
    if any(row.low is None or row.high is None for row in rows):
        return None
    down = [_value(row) - row.low for row in rows if row.low is not None]
    return [down, [row.high - _value(row) for row in rows if row.high is not None]]
