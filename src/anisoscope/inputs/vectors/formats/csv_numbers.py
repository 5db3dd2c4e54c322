"""Vectors written out in `.csv`.

Every column but identifiers, `group` and `ids` is one dimension, with or without a header; or one column holds JSON
lists `[0.1, …]`. A header that counts 0, 1, 2, … (pandas writes it) is recognised as one, and so is one that counts up
from another number above cells that are not whole. Where each column is a
dimension, all of them must be numbers and have a name, and none may look like a row number or an id: `identifiers` says
what is left out and what is refused. `column` settles it: a column of lists, or the dimensions, as patterns with commas
between them (`d*`, `x,y,z`).

Every row must have the same length and no hole; the first that does not is named (rows count from 0). Numbers become
float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.files import Where
from anisoscope.inputs.stores.objects import HEADER
from anisoscope.inputs.vectors.columns import Columns, arrow_errors, choose, csv_batches, csv_records
from anisoscope.inputs.vectors.formats.identifiers import is_number, leave_out
from anisoscope.inputs.vectors.formats.jsonl import check_numbers, check_vector, parse_json
from anisoscope.inputs.vectors.pieces import Rows, VectorFile, cut

if TYPE_CHECKING:
    import pyarrow as pa

LISTS = "column of lists of numbers"
LOOK_AT = 64  # rows by which columns are judged


class Look(NamedTuple):
    """What the beginning of a file says: its columns, whether a header names them, their first cells."""

    names: list[str]
    header: bool
    cells: dict[str, list[str]]


def open_csv_vectors(path: Where, columns: Columns) -> VectorFile:
    """The numbers of a CSV file, or its column of JSON lists."""
    look = _look_at(path)
    for label in columns.labels:
        choose(look.names if look.header else [], label, where=path, what="column")
    candidates = {name: cells for name, cells in look.cells.items() if name not in columns.labels}
    lists = [name for name, cells in candidates.items() if _is_list(cells[0])]
    notes = _is_cut_off(path)
    if lists:
        chosen = choose(lists, columns.vectors, where=path, what=LISTS)
        where = f"{path}, row 0, {chosen}"
        dim = len(check_numbers(parse_json(candidates[chosen][0], where), where))
        return _file(path, look, [chosen], columns, partial(_lists, dim=dim), dim, notes)
    dimensions, left_out = _dimensions(candidates, look.header, columns.vectors, path)
    if left_out:
        notes = (f"not dimensions, left out: {', '.join(left_out[:20])}", *notes)
    return _file(path, look, dimensions, columns, _numbers, len(dimensions), notes)


def vector_columns(path: Where, columns: Columns) -> tuple[list[str], bool, list[str], bool]:
    """All columns, whether a header names them, those that hold the vectors, and whether as JSON lists."""
    look = _look_at(path)
    candidates = {name: cells for name, cells in look.cells.items() if name not in columns.labels}
    lists = [name for name, cells in candidates.items() if _is_list(cells[0])]
    if lists:
        return look.names, look.header, [choose(lists, columns.vectors, where=path, what=LISTS)], True
    return look.names, look.header, _dimensions(candidates, look.header, columns.vectors, path)[0], False


def _look_at(path: Where) -> Look:
    with arrow_errors(path), path.open("rb", HEADER) as stream:
        records = csv_records(stream, LOOK_AT + 1)
    top = records[0]
    other = next((mark for mark in ";\t|" if len(top) == 1 and mark in top[0] and not _is_list(top[0])), None)
    if other:
        what = "a CSV file whose cells are not separated by commas"
        raise InputError(what, where=path, got=repr(other), do="write it with commas, and a point in decimals")
    header = not all(is_number(cell) or _is_list(cell) for cell in top) or _counts(top, records[1:])
    rows = records[int(header) :]
    if not rows:
        raise InputError("the file holds no vectors", where=path, got="a header and no rows")
    names = top if header else _count_up(len(top))
    if len(set(names)) < len(names):
        raise UsageError("two columns have the same name", where=path, got=", ".join(names[:20]))
    cells = {name: [row[k] for row in rows if k < len(row)] or [""] for k, name in enumerate(names)}
    return Look(names, header, cells)


def _count_up(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def _counts(top: list[str], below: list[list[str]]) -> bool:
    """Whether the numbers of the first row are names: 0, 1, 2, … or, above broken numbers, 1, 2, 3, … or years."""
    if top == _count_up(len(top)):
        return True
    whole = len(top) > 2 and all(cell.strip().isdecimal() for cell in top)
    broken = any(is_number(cell) and not float(cell).is_integer() for row in below for cell in row)
    return whole and broken and all(int(b) - int(a) == 1 for a, b in pairwise(top))


def _is_list(cell: str) -> bool:
    return cell.lstrip().startswith("[")


def _is_cut_off(path: Where) -> tuple[str, ...]:
    with path.open("rb", HEADER) as stream:
        stream.seek(-1, 2)
        ended = stream.read(1) in b"\r\n"
    return () if ended else ("the last line has no line end: the file may be cut off",)


def _dimensions(
    cells: dict[str, list[str]], header: bool, wanted: str | None, path: Where
) -> tuple[list[str], list[str]]:
    """The columns that are dimensions, and the identifiers that are not."""
    if wanted is not None:
        chosen = [name for name in cells if any(fnmatchcase(name, pattern) for pattern in (wanted, *wanted.split(",")))]
        if not chosen:
            choose(list(cells), wanted, where=path, what="column")
        return _check_numbers(chosen, cells, path), []
    if "" in cells:
        do = "write the file without a row index (pandas: index=False)"
        raise UsageError("a column without a name, probably a row index", where=path, do=do)
    left_out = leave_out(cells, named=header, where=path)
    return _check_numbers([name for name in cells if name not in left_out], cells, path), left_out


def _check_numbers(names: list[str], cells: dict[str, list[str]], path: Where) -> list[str]:
    texts = [name for name in names if not is_number(cells[name][0])]
    if texts or not names:
        got = "; ".join(f"{name}: {cells[name][0][:40]!r} in row 0" for name in texts[:5]) or "no column"
        do = "name the dimensions with `column`, such as 'd*', and the sequence's column with `group`"
        raise UsageError("columns that are not numbers", where=path, got=got, do=do)
    return names


def _file(
    path: Where,
    look: Look,
    chosen: list[str],
    columns: Columns,
    parse: Callable[[pa.RecordBatch, list[str], int, Where], np.ndarray],
    dim: int,
    notes: tuple[str, ...],
) -> VectorFile:
    import pyarrow as pa

    kind = pa.float64() if parse is _numbers else pa.string()
    types = dict.fromkeys(chosen, kind) | dict.fromkeys(columns.labels, pa.string())

    def stream() -> Iterator[Rows]:
        start = 0
        with arrow_errors(path), path.open("rb") as file:
            for batch in csv_batches(file, look.names, header=look.header, types=types):
                keys, ids = (
                    None if name is None else batch.column(name).to_pylist() for name in (columns.group, columns.ids)
                )
                yield Rows(parse(batch, chosen, start, path), keys, ids)
                start += batch.num_rows

    return VectorFile(dim, None, None, "float64", lambda rows, wanted: cut(stream(), rows, wanted), notes)


def _numbers(batch: pa.RecordBatch, names: list[str], start: int, path: Where) -> np.ndarray:
    x = np.empty((batch.num_rows, len(names)))
    for k, name in enumerate(names):
        cells = batch.column(name)
        x[:, k] = cells.to_numpy(zero_copy_only=False)
        if cells.null_count:
            row = start + int(np.flatnonzero(cells.is_null().to_numpy(zero_copy_only=False))[0])
            raise InputError("a missing number", where=f"{path}, row {row}", got=f"an empty cell in column {name}")
    return x


def _lists(batch: pa.RecordBatch, names: list[str], start: int, path: Where, *, dim: int) -> np.ndarray:
    x = np.empty((batch.num_rows, dim))
    for row, cell in enumerate(batch.column(names[0]).to_pylist()):
        where = f"{path}, row {start + row}, {names[0]}"
        x[row] = check_vector(parse_json(cell, where), dim, where)
    return x
