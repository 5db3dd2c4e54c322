"""Which columns of a table of numbers are identifiers, not dimensions.

An id that slips in as a dimension is larger than every other coordinate, and all vectors seem to point along it: the
mean cosine of an isotropic cloud reads 0.97. So every column that could be one is judged, by its name and by its first
values:

- Named like an identifier (`id`, `doc_id`, `index`, `label`, `uuid` …) and holding integers or text: it is left out.
- Named like one and holding fractions; or integers that change from row to row among columns of fractions, or that
  count up by one, under a name that does not belong to the series of the others (`d0, d1, …`): the file is refused,
  and the caller says which columns are the dimensions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from anisoscope.errors import UsageError

_WORDS = (
    "id|ids|idx|index|indices|key|label|uuid|guid|row|rowid|rownum|row number|line|line number|number|no|nr|num|pk"
    "|target|class|cluster|category|split|fold|timestamp|time|date|year|user|article|document|doc|item|unnamed 0"
)
_NAME = re.compile(rf"(?:.* )?(?:{_WORDS})|.*[a-z](?:Id|ID|Idx)")
_PARTS = re.compile(r"[\s_\-.:#]+")
_COUNTER = re.compile(r"\d+")

Cells = Mapping[str, Sequence[str]]  # the first cells of each column


def is_identifier(name: str) -> bool:
    """Whether a column is named like an identifier.

    >>> [name for name in ("id", "Doc-ID", "userId", "label", "d0", "grid", "x", "12") if is_identifier(name)]
    ['id', 'Doc-ID', 'userId', 'label']
    """
    return bool(_NAME.fullmatch(name) or _NAME.fullmatch(_PARTS.sub(" ", name.lower()).strip()))


def leave_out(cells: Cells, *, named: bool, where: object) -> list[str]:
    """The identifiers among the columns; `named` says whether their names come from a header."""
    out = [name for name in cells if named and is_identifier(name) and (_whole(cells[name]) or _text(cells[name]))]
    rest = {name: values for name, values in cells.items() if name not in out}
    unsure = [name for name in rest if (named and is_identifier(name)) or _looks_odd(name, rest, named=named)]
    if unsure and len(rest) > 1:
        got = "; ".join(f"{name}: {', '.join(rest[name][:4])} …" for name in unsure[:5])
        do = f"name the dimensions with `column`, such as {_suggest(rest, unsure)!r}, or '*' if all of them are"
        raise UsageError("columns that may be identifiers, not dimensions", where=where, got=got, do=do)
    return out


def _looks_odd(name: str, cells: Cells, *, named: bool) -> bool:
    """Whether the values of a column set it apart from the others, and its name does not place it among them."""
    if (named and _in_series(name, cells)) or not _whole(cells[name]):
        return False
    values = [float(value) for value in cells[name]]
    others = [_fractions(cells[other]) for other in cells if other != name]
    among_fractions = 2 * sum(others) > len(others) and len(set(values)) > 1
    return among_fractions or (len(values) > 2 and all(b - a == 1 for a, b in pairwise(values)))


def _in_series(name: str, cells: Cells) -> bool:
    """Whether most columns are numbered alike and this is one of them: `d3` among `d0, d1, …`."""
    series = Counter(_COUNTER.sub("#", other) for other in cells)
    shape = _COUNTER.sub("#", name)
    return "#" in shape and 2 * series[shape] > len(cells)


def _whole(values: Sequence[str]) -> bool:
    try:
        return all(float(value).is_integer() for value in values)
    except ValueError:
        return False


def _fractions(values: Sequence[str]) -> bool:
    """Whether some cell is a number and no integer."""
    return any(is_number(value) and not _whole([value]) for value in values)


def is_number(value: str) -> bool:
    """Whether a cell is a number, `nan` and `inf` included."""
    try:
        float(value)
    except ValueError:
        return False
    return True


def _text(values: Sequence[str]) -> bool:
    """Whether no cell is a number."""
    return not any(is_number(value) for value in values)


def _suggest(cells: Cells, unsure: Sequence[str]) -> str:
    """A value of `column` that takes the columns about which there is no doubt."""
    sure = [name for name in cells if name not in unsure]
    shapes = {_COUNTER.sub("*", name) for name in sure}
    return shapes.pop() if len(shapes) == 1 and "*" not in shapes else ",".join(sure[:20])
