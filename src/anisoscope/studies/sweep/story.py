"""The story of a training: its extremes, not only its ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anisoscope.runs.story import Story, Table, number, sparkline
from anisoscope.runs.table import Row
from anisoscope.studies.attention.story import agreeing
from anisoscope.studies.attention.story import story as attention_story

FAR = 0.1  # how far an extreme of the average cosine must lie beyond both ends to be told


def training_verdict(rows: Sequence[Row], widths: Mapping[str, int]) -> str:
    """Where the average cosine of the blocks went, how many heads left the null, how sharp attention became."""
    told = [row for row in rows if row.value is not None and row.positions == "all" and row.step is not None]
    steps = sorted({row.step for row in told if row.step is not None})
    if not steps:
        return ""
    words = [_path(told, steps)]
    before, after = (agreeing([row for row in told if row.step == step], widths) for step in (steps[0], steps[-1]))
    if before is not None and after is not None:
        words.append(
            f"heads whose mean query and key agree or oppose beyond chance: {before[0] + before[1]} → "
            f"{after[0] + after[1]} of {after[2]} ({after[0]} common, {after[1]} opposite; by chance about "
            f"{0.05 * after[2]:.1f})"
        )
    entropy = along(told, "entropy_normalised")
    if entropy:
        words.append(f"entropy over log n {entropy[min(entropy)]:.3g} → {entropy[max(entropy)]:.3g}")
    return "; ".join(filter(None, words)) + "."


def _path(rows: Sequence[Row], steps: Sequence[int]) -> str:
    """`average cosine of blocks 0.05 at step 0, up to 0.98 at step 64, back to 0.14 at 8,192`."""
    curve = along(rows, "mean_cosine")
    if not curve:
        return f"steps {steps[0]:,} to {steps[-1]:,}"
    first, last = min(curve), max(curve)  # steps whose states are not finite have no cosine
    if first == last:
        return f"Average cosine of blocks {curve[first]:.3g} at step {first:,}"
    top, bottom = max(curve, key=lambda s: curve[s]), min(curve, key=lambda s: curve[s])
    words = f"Average cosine of blocks {curve[first]:.3g} at step {first:,}"
    if curve[top] > max(curve[first], curve[last]) + FAR:
        collapsed = "collapsed to" if curve[top] > 0.9 else "up to"
        return f"{words}, {collapsed} {curve[top]:.3g} at step {top:,}, back to {curve[last]:.3g} at {last:,}"
    if curve[bottom] < min(curve[first], curve[last]) - FAR:
        return f"{words}, down to {curve[bottom]:.3g} at step {bottom:,}, {curve[last]:.3g} at {last:,}"
    return f"{words}, {curve[last]:.3g} at {last:,}"


def along(rows: Sequence[Row], metric: str) -> dict[int, float]:
    """The mean of a metric over blocks and seeds, by step."""
    found: dict[int, list[float]] = {}
    for row in rows:
        of_block = row.layer is not None and row.head is None and row.positions == "all"
        if row.metric == metric and of_block and row.step is not None and row.value is not None:
            found.setdefault(row.step, []).append(row.value)
    return {step: sum(values) / len(values) for step, values in sorted(found.items())}


def story(rows: Sequence[Row]) -> Story:
    """One line per step, then the layers at the last one."""
    curves = {"cosine": along(rows, "mean_cosine"), "entropy": along(rows, "entropy_normalised")}
    curves |= {"Q drift": along(rows, "query_drift_ratio"), "K drift": along(rows, "key_drift_ratio")}
    shown = {name: curve for name, curve in curves.items() if curve}
    steps = sorted({step for curve in shown.values() for step in curve})
    table = Table(("step", *shown), [[f"{s:,}", *(number(c.get(s)) for c in shown.values())] for s in steps], text=0)
    last = attention_story(rows)
    lines = [
        f"cosine along the steps, 0 to 1: {sparkline([curves['cosine'].get(s) for s in steps], low=0.0, high=1.0)}"
    ]
    return Story([table, *last.tables] if steps else last.tables, lines if curves["cosine"] else ())
