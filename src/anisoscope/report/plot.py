"""One metric as an interactive figure of plotly: along the sites of a model, or along the steps of a training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anisoscope.errors import UsageError
from anisoscope.inference.metrics import declared
from anisoscope.report.figures.style import PALETTE
from anisoscope.runs.settings import nearest
from anisoscope.runs.table import Row


def plot(rows: Sequence[Row], metric: str) -> Any:
    """A line for each model (and seed, and site where there are steps), with its 95 % interval."""
    import plotly.graph_objects as go

    shown = [r for r in rows if r.metric == metric and r.positions == "all" and r.value is not None and r.head is None]
    if not shown:
        known = dict.fromkeys(row.metric for row in rows if row.value is not None)
        raise UsageError("there is nothing to plot", got=metric, do=nearest(metric, known)[2:] or None)
    steps = any(row.step is not None for row in shown)
    figure = go.Figure()
    lines: dict[tuple[Any, ...], list[Row]] = {}
    for row in shown:
        lines.setdefault((row.model, row.seed, row.site if steps else None), []).append(row)
    several = [len({key[part] for key in lines}) > 1 for part in range(3)]
    for place, (key, line) in enumerate(lines.items()):
        told = (key[0], f"seed {key[1]}", key[2])
        name = ", ".join(str(part) for part, tells in zip(told, several, strict=True) if tells)
        figure.add_trace(_line(go, line, name or metric, steps, PALETTE[place % len(PALETTE)]))
    order = sorted(shown, key=lambda row: row.step or 0) if steps else shown
    places = list(dict.fromkeys(_place(row, steps) for row in order))
    found = declared(metric)
    figure.update_layout(
        template="plotly_white",
        xaxis={"title": "step" if steps else "site", "type": "category", "categoryarray": places},  # spaced evenly
        yaxis_title=found.label if found else metric,
        showlegend=len(lines) > 1,
        margin={"l": 60, "r": 20, "t": 20, "b": 60},
    )
    return figure


def _line(go: Any, rows: Sequence[Row], name: str, steps: bool, colour: str) -> Any:
    sure = all(row.low is not None and row.high is not None for row in rows)
    values = [row.value for row in rows]
    error = None
    if sure:
        above = [(row.high or 0.0) - (row.value or 0.0) for row in rows]
        below = [(row.value or 0.0) - (row.low or 0.0) for row in rows]
        error = {"type": "data", "array": above, "arrayminus": below, "thickness": 1}
    x = [_place(row, steps) for row in rows]
    return go.Scatter(x=x, y=values, name=name, mode="lines+markers", error_y=error, line={"color": colour})


def _place(row: Row, steps: bool) -> str:
    return f"{row.step:,}" if steps and row.step is not None else row.site
