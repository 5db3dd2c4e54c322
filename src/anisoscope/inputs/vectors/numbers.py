"""Vectors written out as text: `.csv` and `.jsonl`.

- CSV: every column but the group is one dimension, with or without a header; or one column holds JSON lists `[0.1, …]`.
  A header that counts 0, 1, 2, … (pandas writes it) is recognised as one. Where each column is a dimension, all of them
  must be numbers and have a name: a row index would silently become a dimension.
- JSONL: a list of numbers on each line, or an object that holds one in a field, such as `{"embedding": [0.1, …]}`.

`column` chooses among several candidates; `group` names the column or field with each row's sequence. Every row must
have the same length and no hole; the first that does not is named (rows count from 0, lines from 1). Numbers become
float64.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.vectors.arrays import Chunk, VectorFile
from anisoscope.inputs.vectors.columns import arrow_errors, choose, csv_batches, csv_records

if TYPE_CHECKING:
    import pyarrow as pa

LISTS = "column of lists of numbers"


def open_csv_vectors(path: Path, *, column: str | None, group: str | None) -> VectorFile:
    """The numbers of a CSV file, or its column of JSON lists."""
    names, header, first = _look_at(path)
    if group is not None:
        choose(names if header else [], group, where=path, what="column")
    lists = [name for name, cell in first.items() if _is_list(cell) and name != group]
    if lists or column is not None:
        chosen = choose(lists, column, where=path, what=LISTS)
        dim = len(_parse_list(first[chosen], f"{path}, row 0, {chosen}"))
        return VectorFile(dim, None, "float64", lambda _: _csv_lists(path, names, header, chosen, group, dim))
    chosen = [name for name in names if name != group]
    _check_dimensions(chosen, first, path)
    return VectorFile(len(chosen), None, "float64", lambda _: _csv_numbers(path, names, header, chosen, group))


def _look_at(path: Path) -> tuple[list[str], bool, dict[str, str]]:
    """The names of the columns, whether the file spells them in a header, and the cells of the first row."""
    with arrow_errors(path), open(path, "rb") as stream:
        records = csv_records(stream, 2)
    top = records[0]
    header = not all(_is_number(cell) or _is_list(cell) for cell in top) or top == _count_up(len(top))
    if header and len(records) == 1:
        raise InputError("the file holds no vectors", where=path, got="a header and no rows")
    names = top if header else _count_up(len(top))
    if len(set(names)) < len(names):
        raise UsageError("two columns have the same name", where=path, got=", ".join(names[:20]))
    return names, header, dict(zip(names, records[int(header)], strict=False))


def _count_up(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_list(cell: str) -> bool:
    return cell.lstrip().startswith("[")


def _check_dimensions(names: list[str], first: dict[str, str], path: Path) -> None:
    """Each column must be a dimension, and look like one."""
    if "" in names:
        do = "write the file without a row index (pandas: index=False)"
        raise UsageError("a column without a name, probably a row index", where=path, do=do)
    texts = [name for name in names if not _is_number(first.get(name, ""))]
    if texts or not names:
        got = "; ".join(f"{name}: {first.get(name, '')[:40]!r} in row 0" for name in texts[:5]) or "no column"
        do = "keep only the dimensions, and name the sequence's column with `group`"
        raise UsageError("columns that are not numbers", where=path, got=got, do=do)


def _csv(path: Path, names: list[str], header: bool, types: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    with arrow_errors(path), open(path, "rb") as stream:
        yield from csv_batches(stream, names, header=header, types=types)


def _csv_numbers(path: Path, names: list[str], header: bool, chosen: list[str], group: str | None) -> Iterator[Chunk]:
    import pyarrow as pa

    types: dict[str, pa.DataType] = dict.fromkeys(chosen, pa.float64())
    start = 0
    for batch in _csv(path, names, header, types if group is None else types | {group: pa.string()}):
        x = np.empty((batch.num_rows, len(chosen)))
        for k, name in enumerate(chosen):
            cells = batch.column(name)
            x[:, k] = cells.to_numpy(zero_copy_only=False)
            if cells.null_count:
                row = start + int(np.flatnonzero(cells.is_null().to_numpy(zero_copy_only=False))[0])
                raise InputError("a missing number", where=f"{path}, row {row}", got=f"an empty cell in column {name}")
        yield x, None if group is None else batch.column(group).to_pylist()
        start += batch.num_rows


def _csv_lists(path: Path, names: list[str], header: bool, column: str, group: str | None, dim: int) -> Iterator[Chunk]:
    import pyarrow as pa

    start = 0
    for batch in _csv(path, names, header, dict.fromkeys(filter(None, [column, group]), pa.string())):
        x = np.empty((batch.num_rows, dim))
        for row, cell in enumerate(batch.column(column).to_pylist()):
            where = f"{path}, row {start + row}, {column}"
            x[row] = _check_length(_parse_list(cell, where), dim, where)
        yield x, None if group is None else batch.column(group).to_pylist()
        start += batch.num_rows


def open_jsonl_vectors(path: Path, *, column: str | None, group: str | None) -> VectorFile:
    """The lists of numbers of a JSONL file."""
    first = next(_json_lines(path), None)
    if first is None:
        raise InputError("the file is empty", where=path)
    record = first[1]
    if isinstance(record, dict):
        lists = [name for name, value in record.items() if _are_numbers(value) and name != group]
        field = choose(lists, column, where=path, what="field with a list of numbers")
        if group is not None:
            choose(list(record), group, where=path, what="field")
        vector = record[field]
    else:
        if column is not None or group is not None:
            raise UsageError("the lines are bare lists, without fields", where=path, got=f"{column or group!r}")
        field, vector = None, _check_numbers(record, f"{path}, line {first[0]}")
    if not vector:
        raise InputError("the file holds no vectors", where=path, got="an empty list")
    dim = len(vector)
    return VectorFile(dim, None, "float64", lambda rows: _jsonl_chunks(path, field, group, dim, rows))


def _jsonl_chunks(path: Path, field: str | None, group: str | None, dim: int, rows: int) -> Iterator[Chunk]:
    x, keys = np.empty((rows, dim)), []
    filled = 0
    for number, record in _json_lines(path):
        where = f"{path}, line {number}"
        vector = record if field is None else _take(record, field, where)
        x[filled] = _check_length(_check_numbers(vector, where), dim, where)
        if group is not None:
            keys.append(str(_take(record, group, where)))
        filled += 1
        if filled == rows:
            yield x, keys if group is not None else None
            x, keys, filled = np.empty((rows, dim)), [], 0
    if filled:
        yield x[:filled], keys if group is not None else None


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number, value) of each line that is not empty."""
    with open(path, "rb") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except ValueError as problem:
                    raise InputError("not JSON", where=f"{path}, line {number}", got=str(problem)) from problem


def _take(record: Any, field: str, where: str) -> Any:
    value = record.get(field) if isinstance(record, dict) else None
    if value is None:
        raise InputError(f"no {field!r} here", where=where, got=str(record)[:60], expected=f"an object with {field!r}")
    return value


def _parse_list(cell: str, where: str) -> list[float]:
    try:
        return _check_numbers(json.loads(cell), where)
    except ValueError as problem:
        raise InputError("not a JSON list", where=where, got=cell[:60], expected="[0.1, 0.2, …]") from problem


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) <= {int, float}


def _check_numbers(value: Any, where: str) -> list[float]:
    if not _are_numbers(value):
        raise InputError("not a list of numbers", where=where, got=str(value)[:60])
    return value


def _check_length(vector: list[float], dim: int, where: str) -> list[float]:
    if len(vector) != dim:
        raise InputError("a row of another length", where=where, got=f"{len(vector)} numbers", expected=dim)
    return vector
