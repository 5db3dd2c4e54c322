"""What the terminal says about untrained blocks: one table per experiment, one line per drift norm, means of draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anisoscope.runs.story import Story, Table, digits, interval, number
from anisoscope.runs.table import Row

Places = Mapping[tuple[str, str], str]

_FIRST: Places = {
    ("input", "mean_cosine"): "cos in",
    ("output", "mean_cosine"): "cos out",
    ("input", "mean_norm"): "‖in‖",
    ("output", "mean_norm"): "‖out‖",
    ("query", "mean_cosine"): "cos Q",
    ("key", "mean_cosine"): "cos K",
    ("scores", "mean_score"): "score",
    ("softmax", "max_probability"): "max p",
}
_MORE: Places = {
    ("output", "norm_of_mean"): "‖mean out‖",
    ("scores", "score_std"): "score sd",
    ("scores", "score_row_std"): "in a row",
    ("softmax", "median_probability"): "median p",
    ("softmax", "min_probability"): "min p",
    ("softmax", "entropy_normalised"): "entropy",
}


def story(rows: Sequence[Row]) -> Story:
    """A table per experiment, then fixed points and comparisons; further metrics, blocks and draws on request."""
    average = [row for row in rows if row.seed is None]
    labels = list(dict.fromkeys(row.model for row in average))
    by_label = {label: [row for row in average if row.model == label] for label in labels}
    more = [
        sweep_table(mine, columns, title)
        for label, mine in by_label.items()
        for columns, title in ((_MORE, f"{label}: more"), (_blocks(mine), f"{label}: cosine by block"))
    ]
    draws = Table(
        ("experiment", "draw", "N*"),
        [
            [row.model, str(row.seed), number(row.value)]
            for row in rows
            if row.seed is not None and row.metric == "fixed_point"
        ],
        title="N* of each draw",
    )
    return Story(
        [sweep_table(mine, _FIRST, label) for label, mine in by_label.items()],
        [line for label, mine in by_label.items() for line in _lines(mine, label if len(labels) > 1 else "")],
        more=[table for table in (*more, draws) if table.cells and len(table.columns) > 1],
    )


def sweep_table(rows: Sequence[Row], places: Places, title: str) -> Table:
    """One line for each drift norm N, one column for each place that the rows have."""
    value = {(row.site, row.metric, row.at): row.value for row in rows if row.at is not None}
    shown = {place: name for place, name in places.items() if any(key[:2] == place for key in value)}
    norms = sorted({at for _, _, at in value if at is not None})
    body = [[number(at), *(digits(value.get((*place, at)), ".3g") for place in shown)] for at in norms]
    return Table(("N", *shown.values()), body, title=title, text=0)


def _blocks(rows: Sequence[Row]) -> Places:
    names = dict.fromkeys(row.site for row in rows if row.layer is not None and row.at is not None)
    return {(name, "mean_cosine"): name for name in names}


_FIXED = {
    "fixed_point": "norms meet at N*",
    "fixed_point_of_mean": "norms of the means meet at N",
    "fixed_point_of_layernorm": "inputs reach √d at N",
}


def _lines(rows: Sequence[Row], label: str) -> list[str]:
    lead = f"{label}: " if label else ""
    fixed = [row for row in rows if row.metric in _FIXED]
    ends = [f"[{interval(row)}] " if interval(row) else "" for row in fixed]
    words = [f"{lead}{_FIXED[row.metric]} = {number(row.value)}" for row in fixed]
    found = [f"{said} {end}({row.note})" for said, end, row in zip(words, ends, fixed, strict=True)]
    trained = [row for row in rows if row.metric == "norm_over_fixed_point"]
    return [*found, *(f"{lead}{row.site}: {number(row.value)} × N* ({row.note})" for row in trained)]
