"""What a study says about its rows, as plain data: tables and lines that the terminal, the page and Markdown render.

>>> table = Table(("site", "cosine"), [("block.0", "0.12"), ("block.1", "0.34")])
>>> Story([table]).tables[0].columns
('site', 'cosine')
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from anisoscope.runs.table import Row

BARS = "▁▂▃▄▅▆▇█"
_TINY = 1e-12


@dataclass(frozen=True)
class Table:
    """Cells by row; the first `text` columns hold names and stand on the left, numbers stand on the right."""

    columns: Sequence[str]
    cells: Sequence[Sequence[str]]
    title: str = ""
    caption: str = ""
    text: int = 1


@dataclass(frozen=True)
class Story:
    """Tables first, then lines; `more` is for those who ask for all of it."""

    tables: Sequence[Table] = ()
    lines: Sequence[str] = ()
    more: Sequence[Table] = ()
    header: Sequence[str] = field(default_factory=tuple)

    def whole(self) -> list[Table]:
        """Every table; one whose lines all stand in `more` is left out, so that no line is shown twice.

        >>> first, rest = Table(("", "n"), [("b", "2")]), Table(("counts", "n"), [("a", "1"), ("b", "2")])
        >>> [table.columns[0] for table in Story([first], more=[rest]).whole()]
        ['counts']
        """
        known = {tuple(cells) for table in self.more for cells in table.cells}
        return [table for table in self.tables if any(tuple(cells) not in known for cells in table.cells)] + [
            *self.more
        ]

    def left_out(self) -> int:
        """How many lines of `more` the first tables do not show.

        >>> first, rest = Table(("", "n"), [("b", "2")]), Table(("counts", "n"), [("a", "1"), ("b", "2")])
        >>> Story([first], more=[rest]).left_out()
        1
        """
        shown = {tuple(cells) for table in self.tables for cells in table.cells}
        return sum(tuple(cells) not in shown for table in self.more for cells in table.cells)


def number(value: float | None) -> str:
    """Four significant digits, as short as it gets; a dash for what is missing.

    >>> number(0.123456), number(12000.0), number(3867.6), number(98765.4), number(None), number(1e-7)
    ('0.1235', '12,000', '3,868', '98,770', '–', '1e-07')
    """
    if value is None:
        return "–"
    if abs(value) < _TINY:
        return "0"
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    short = f"{value:.4g}"
    return f"{float(short):,.0f}" if 1e3 <= abs(value) < 1e6 else short


def valued(row: Row) -> str:
    """The value of a row; a p-value that is too small to print is not called 0.

    >>> valued(Row(metric="rayleigh_p", value=0.0)), valued(Row(metric="drift_ratio", value=0.0))
    ('< 1e-12', '0')
    """
    from anisoscope.inference.metrics import declared

    metric = declared(row.metric)
    tiny = metric is not None and metric.unit == "p" and row.value is not None and row.value < _TINY
    return f"< {_TINY:.0e}" if tiny else number(row.value)


def digits(value: float | None, form: str) -> str:
    """A number in this format, for tables that must not grow wide; a dash for what is missing.

    >>> digits(0.00195312, ".3g"), digits(-0.00001, "z.3f"), digits(None, ".3f")
    ('0.00195', '0.000', '–')
    """
    return "–" if value is None else format(value, form)


def percent(share: float | None) -> str:
    """A share in percent, whole above ten, two digits below; a dash for what is missing.

    >>> percent(0.666), percent(0.01), percent(0.001), percent(0.0456), percent(None)
    ('67 %', '1 %', '0.1 %', '4.6 %', '–')
    """
    if share is None:
        return "–"
    return f"{100 * share:.0f} %" if abs(share) >= 0.1 else f"{100 * share:.2g} %"


def cosine(value: float) -> str:
    """Two decimals, or as many as tell a cosine from 1.

    >>> cosine(0.738), cosine(-0.0003), cosine(0.99963), cosine(1.0)
    ('0.74', '0.00', '0.9996', '1.00')
    """
    rest = 1 - abs(value)
    return f"{value:z.{math.ceil(-math.log10(rest)) if 1e-12 < rest < 0.005 else 2}f}"


def between(low: float | None, high: float | None) -> str:
    """`0.1 … 0.2`, or nothing."""
    return "" if low is None or high is None else f"{number(low)} … {number(high)}"


def interval(row: Row | None) -> str:
    """The interval of a row, or nothing."""
    return "" if row is None else between(row.low, row.high)


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
