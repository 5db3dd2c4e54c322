"""What the terminal says about hidden states: one line per site, and the cosine along the sites drawn in a line."""

from __future__ import annotations

from collections.abc import Sequence

from anisoscope.runs.story import Story, Table, interval, number, sparkline
from anisoscope.runs.table import Row

_COLUMNS = ("mean_cosine", "drift_ratio", "participation_ratio_unbiased", "mean_norm")


def story(rows: Sequence[Row]) -> Story:
    """A table per model, a header that says what was read, and a sparkline."""
    models = list(dict.fromkeys(row.model for row in rows if row.metric == "mean_cosine"))
    tables = [site_table([row for row in rows if row.model == model], model, len(models) > 1) for model in models]
    return Story(tables, [_curve(rows, model) for model in models], header=[_header(rows)])


def _header(rows: Sequence[Row]) -> str:
    first = next((row for row in rows if row.metric == "mean_cosine"), None)
    if first is None:
        return ""
    data = next((word for word in first.protocol.split("; ") if word.startswith("data: ")), "")
    texts = next((row.value for row in rows if row.metric == "sequences" and row.site == first.site), None)
    return f"{data.removeprefix('data: ')}: {number(first.n)} vectors of {number(texts)} sequences"


def site_table(rows: Sequence[Row], title: str = "", several: bool = False) -> Table:
    """One line per site: average cosine with its interval, drift ratio, dimensions in use, mean norm."""
    cells = {(row.site, row.metric): row for row in rows if row.positions == "all" and row.at is None}
    body = []
    for site in dict.fromkeys(row.site for row in rows if row.metric == "mean_cosine"):
        found = [cells.get((site, metric)) for metric in _COLUMNS]
        values = [number(row.value if row else None) for row in found]
        used, width = found[2], cells.get((site, "dimension"))
        dimensions = f"{values[2]} of {number(width.value)}" if used and used.value is not None and width else "–"
        body.append([site, values[0], interval(found[0]), values[1], dimensions, values[3]])
    columns = ("site", "cosine", "95 % interval", "drift", "dimensions", "norm")
    return Table(columns, body, title=title if several else "")


def _curve(rows: Sequence[Row], model: str) -> str:
    values = [row.value for row in rows if (row.model, row.metric, row.positions) == (model, "mean_cosine", "all")]
    return f"cosine along the sites, 0 to 1: {sparkline(values, low=0.0, high=1.0)} {model}".rstrip()
