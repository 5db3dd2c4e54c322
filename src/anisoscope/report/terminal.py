"""A run on the terminal: the verdict, a table that fits, small curves. Everything comes from the stored rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anisoscope.inference.metrics import GROUPS, METRICS
from anisoscope.runs.table import Row

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

BARS = "▁▂▃▄▅▆▇█"


def number(value: float | None) -> str:
    """Four significant digits, as short as it gets; a dash for what is missing.

    >>> number(0.123456), number(12000.0), number(None), number(1e-7)
    ('0.1235', '12,000', '–', '1e-07')
    """
    if value is None:
        return "–"
    if abs(value) < 1e-12:
        return "0"
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    return f"{value:.4g}"


def interval(row: Row) -> str:
    return "" if row.low is None or row.high is None else f"{number(row.low)} … {number(row.high)}"


def sparkline(values: Sequence[float | None], *, low: float | None = None, high: float | None = None) -> str:
    """A line of blocks; a gap where a value is missing.

    >>> sparkline([0.0, 0.5, None, 1.0])
    '▁▅ █'
    """
    known = [value for value in values if value is not None]
    if not known:
        return ""
    bottom, top = min(known) if low is None else low, max(known) if high is None else high
    span = (top - bottom) or 1.0
    marks = [" " if v is None else BARS[round((len(BARS) - 1) * min(max((v - bottom) / span, 0), 1))] for v in values]
    return "".join(marks)


def show(console: Console, rows: Sequence[Row], *, title: str, verdict: str | None, notes: Sequence[str] = ()) -> None:
    """Print a run: one cloud in full, or many sites side by side."""
    console.print(f"[bold]{_plain(title)}[/bold]")
    if verdict:
        console.print(f"verdict: [bold]{_plain(verdict)}[/bold]")
    for note in notes:
        console.print(f"[yellow]note:[/yellow] {_plain(note)}")
    sites = list(dict.fromkeys((row.model, row.site) for row in rows if row.metric == "verdict"))  # clouds are judged
    if not sites:
        console.print(_plain_rows(rows))
    elif len(sites) == 1:
        for table in _one_cloud(rows):
            console.print(table)
    else:
        console.print(_many_sites(rows, wide=console.width >= 100))
        for line in _curves(rows):
            console.print(line, highlight=False)


def _curves(rows: Sequence[Row]) -> list[str]:
    """The average cosine along the sites of each model, drawn in a line."""
    lines = []
    for model in dict.fromkeys(row.model for row in rows if row.metric == "verdict"):
        values = [row.value for row in rows if (row.model, row.metric, row.positions) == (model, "mean_cosine", "all")]
        name = f" {_plain(model)}" if model else ""
        lines.append(f"cosine along the sites, 0 to 1: {sparkline(values, low=0.0, high=1.0)}{name}")
    return lines


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _table(*columns: tuple[str, str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name, side in columns:
        table.add_column(name, justify="right" if side == "right" else "left", no_wrap=side == "right")
    return table


def _one_cloud(rows: Sequence[Row]) -> list[Table]:
    by_name = {row.metric: row for row in rows if row.positions == "all" and row.at is None}
    tables = []
    for group in GROUPS:
        table = _table((group, "left"), ("value", "right"), ("95 % interval", "right"), ("isotropic", "right"))
        for name, metric in METRICS.items():
            row = by_name.get(name)
            if metric.group == group and row is not None and row.value is not None:
                null = "" if row.null is None else number(row.null)
                table.add_row(metric.label, number(row.value), interval(row), null)
        if table.row_count:
            tables.append(table)
    shares = [row for row in rows if row.metric == "cosine_share" and row.positions == "all"]
    if shares:
        table = _table(("carries the cosine", "left"), ("share", "right"))
        for row in shares[:3]:
            table.add_row(f"dimension {row.at:.0f}", f"{row.value:.1%}" if row.value is not None else "–")
        tables.append(table)
    return tables


def _plain_rows(rows: Sequence[Row]) -> Table:
    """Whatever a study found: sites side by side where a few share their metrics, else line by line."""
    sites = list(dict.fromkeys(row.site for row in rows))
    names = list(dict.fromkeys(_name(row) for row in rows))
    cells = {(row.site, _name(row)): row for row in rows}
    if 1 < len(sites) <= 5 and len(cells) == len(rows) == len(sites) * len(names):
        table = _table(("", "left"), *((_plain(site), "right") for site in sites))
        for name in names:
            table.add_row(_plain(name), *(number(cells[site, name].value) for site in sites))
        return table
    columns = (
        ("site", "left"),
        ("metric", "left"),
        ("value", "right"),
        ("95 % interval", "right"),
        ("isotropic", "right"),
    )
    table = _table(*columns)
    for row in rows:
        null = "" if row.null is None else number(row.null)
        table.add_row(_plain(row.site), _plain(_name(row)), number(row.value), interval(row), null)
    return table


def _name(row: Row) -> str:
    return row.metric if row.at is None else f"{row.metric} at {number(row.at)}"


def _many_sites(rows: Sequence[Row], *, wide: bool) -> Table:
    """One line a site: the average cosine with its interval, drift, dimensions in use, verdict."""
    several = len({row.model for row in rows if row.model}) > 1
    columns = [("model", "left")] if several else []
    columns += [("site", "left"), ("cosine", "right"), ("95 % interval", "right"), ("drift ratio", "right")]
    columns += [("dims", "right"), ("norm", "right")] if wide else [("dims", "right")]
    table = _table(*columns, ("verdict", "left"))
    cells = {(row.model, row.site, row.metric): row for row in rows if row.positions == "all"}
    for model, site in dict.fromkeys((row.model, row.site) for row in rows if row.metric == "mean_cosine"):
        found = {name: cells.get((model, site, name)) for name in
                 ("mean_cosine", "drift_ratio", "participation_ratio_unbiased", "mean_norm", "verdict")}  # fmt: skip
        cosine, judged = found["mean_cosine"], found["verdict"]
        line = [_plain(model)] if several else []
        line += [_plain(site), number(cosine.value if cosine else None), interval(cosine) if cosine else ""]
        line += [
            number(row.value if row else None) for row in (found["drift_ratio"], found["participation_ratio_unbiased"])
        ]
        line += [number(found["mean_norm"].value if found["mean_norm"] else None)] if wide else []
        table.add_row(*line, _plain(judged.note.split(":")[0]) if judged else "")
    return table
