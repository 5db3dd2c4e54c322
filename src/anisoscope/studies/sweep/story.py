"""The story of a training: its extremes, not only its ends."""

from __future__ import annotations

from collections.abc import Sequence

from anisoscope.runs.story import Story, Table, number, sparkline
from anisoscope.runs.table import Row
from anisoscope.studies.attention.story import agreeing
from anisoscope.studies.attention.story import story as attention_story

COLLAPSED = 0.9  # an average cosine above it leaves next to no directions
FAR = 0.1  # how far an extreme of the average cosine must lie beyond both ends to be told


def training_verdict(rows: Sequence[Row]) -> str:
    """Where the average cosine of the blocks went, how many heads left the null, how sharp attention became."""
    told = _of_all_seeds(
        [row for row in rows if row.value is not None and row.positions == "all" and row.step is not None]
    )
    steps = sorted({row.step for row in told if row.step is not None})
    if not steps:
        return ""
    words = [_path(told, steps)]
    before, after = (agreeing([row for row in told if row.step == step]) for step in (steps[0], steps[-1]))
    if before is not None and after is not None:
        words.append(
            f"heads whose mean query and mean key point the same or opposite ways: {before[0] + before[1]} → "
            f"{after[0] + after[1]} of {after[2]} ({after[0]} the same, {after[1]} opposite; about "
            f"{0.05 * after[2]:.1f} expected by chance)"
        )
    entropy = along(told, "entropy_normalised")
    if entropy:
        words.append(f"attention entropy over log n: {entropy[min(entropy)]:.3g} → {entropy[max(entropy)]:.3g}")
    return "; ".join(filter(None, words)) + "."


def _of_all_seeds(rows: list[Row]) -> list[Row]:
    """The rows of steps that every seed has, as seeds differ; all rows where there is no such step.

    >>> [(row.step, row.seed) for row in _of_all_seeds([Row(step=0, seed=0), Row(step=0, seed=1), Row(step=8, seed=1)])]
    [(0, 0), (0, 1)]
    """
    steps: dict[int | None, set[int | None]] = {}
    for row in rows:
        steps.setdefault(row.seed, set()).add(row.step)
    shared = set.intersection(*steps.values()) if steps else set()
    return [row for row in rows if row.step in shared] or rows


def _path(rows: Sequence[Row], steps: Sequence[int]) -> str:
    """`The highest average cosine of a block is 0.05 at step 0, rises to 0.98 at step 64 (block.3, a collapse) …`."""
    curve = highest(rows, "mean_cosine")
    if not curve:
        return f"Steps {steps[0]:,} to {steps[-1]:,}"
    first, last = min(curve), max(curve)
    seeds = len({row.seed for row in rows if row.metric == "mean_cosine" and _of_block(row)})
    mean = f" (mean of {seeds} seeds)" if seeds > 1 else ""
    words = f"The highest average cosine of a block{mean} is {curve[first][0]:.2f} at step {first:,}"
    if first == last:
        return words
    top = max(curve, key=lambda step: curve[step][0])
    bottom = min(curve, key=lambda step: curve[step][0])
    ends = (curve[first][0], curve[last][0])
    if curve[top][0] > max(ends) + FAR:
        collapse = ", a collapse" if curve[top][0] > COLLAPSED else ""
        way = f"rises to {curve[top][0]:.2f} at step {top:,} ({curve[top][1]}{collapse})"
        return f"{words}, {way} and ends at {ends[1]:.2f} at step {last:,}"
    if curve[bottom][0] < min(ends) - FAR:
        return f"{words}, falls to {curve[bottom][0]:.2f} at step {bottom:,} and ends at {ends[1]:.2f} at step {last:,}"
    return f"{words} and {ends[1]:.2f} at step {last:,}"


def highest(rows: Sequence[Row], metric: str) -> dict[int, tuple[float, str]]:
    """The highest value over blocks by step, averaged over seeds, and the block that has it."""
    by_seed: dict[tuple[int, int | None], tuple[float, str]] = {}
    for row in rows:
        if row.metric == metric and _of_block(row) and row.step is not None and row.value is not None:
            key = (row.step, row.seed)
            by_seed[key] = max(by_seed.get(key, (row.value, row.site)), (row.value, row.site))
    found: dict[int, tuple[float, str]] = {}
    for step in sorted({step for step, _ in by_seed}):
        values = [value for (at, _), value in by_seed.items() if at == step]
        found[step] = (sum(value for value, _ in values) / len(values), max(values)[1])
    return found


def _of_block(row: Row) -> bool:
    return row.layer is not None and row.head is None and row.positions == "all"


def along(rows: Sequence[Row], metric: str) -> dict[int, float]:
    """The mean of a metric over blocks and seeds, by step."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row.metric == metric and _of_block(row) and row.step is not None and row.value is not None:
            found.setdefault(row.step, []).append(row.value)
    return {step: sum(values) / len(values) for step, values in sorted(found.items())}


def story(rows: Sequence[Row]) -> Story:
    """One line per step, then the layers at the last one."""
    curves = {"cosine": along(rows, "mean_cosine"), "entropy": along(rows, "entropy_normalised")}
    curves |= {"Q drift": along(rows, "query_drift_ratio"), "K drift": along(rows, "key_drift_ratio")}
    curves |= {"max logit": {step: value for step, (value, _) in highest(rows, "max_logit").items()}}
    shown = {name: curve for name, curve in curves.items() if curve}
    steps = sorted({step for curve in shown.values() for step in curve})
    cells = [[f"{s:,}", *(number(c.get(s)) for c in shown.values())] for s in steps]
    caption = "averages over blocks" + ("; max logit: of the highest block" if "max logit" in shown else "")
    table = Table(("step", *shown), cells, text=0, caption=caption)
    last = attention_story(rows)
    lines = [
        f"cosine along the steps, 0 to 1: {sparkline([curves['cosine'].get(s) for s in steps], low=0.0, high=1.0)}"
    ]
    return Story([table, *last.tables] if steps else last.tables, lines if curves["cosine"] else ())
