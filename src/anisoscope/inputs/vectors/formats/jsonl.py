"""Vectors in `.jsonl`: a list of numbers on each line, or an object that holds one, such as `{"embedding": [0.1, …]}`.

`column` chooses among several such fields; `group` and `ids` name the fields with each row's sequence and id. Every
line must have a vector of the same length; the first that does not is named (lines count from 1). Numbers become
float64, and an integer that float64 cannot reach is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.files import Where
from anisoscope.inputs.vectors.columns import Columns, choose
from anisoscope.inputs.vectors.pieces import CHUNK, Rows, VectorFile, cut


def open_jsonl_vectors(path: Where, columns: Columns) -> VectorFile:
    """The lists of numbers of a JSONL file."""
    field, vector = _first_vector(path, columns)
    if not vector:
        raise InputError("the file holds no vectors", where=path, got="an empty list")
    dim, chosen = len(vector), replace(columns, vectors=field)
    return VectorFile(
        dim, None, None, "float64", lambda rows, wanted: cut(_parts(path, chosen, dim, rows), rows, wanted)
    )


def vector_field(path: Where, columns: Columns) -> str | None:
    """The field that holds the vectors; None where the lines are bare lists."""
    return _first_vector(path, columns)[0]


def _first_vector(path: Where, columns: Columns) -> tuple[str | None, list[float]]:
    first = next(_json_lines(path), None)
    if first is None:
        raise InputError("the file is empty", where=path)
    number, record = first
    if not isinstance(record, dict):
        if columns != Columns():
            asked = columns.vectors or columns.labels[0]
            raise UsageError("the lines are bare lists, without fields", where=path, got=repr(asked))
        return None, check_numbers(record, f"{path}, line {number}")
    lists = [name for name, value in record.items() if _are_numbers(value) and name not in columns.labels]
    field = choose(lists, columns.vectors, where=path, what="field with a list of numbers", others=record)
    for name in columns.labels:
        choose(list(record), name, where=path, what="field")
    return field, record[field]


def _parts(path: Where, chosen: Columns, dim: int, rows: int) -> Iterator[Rows]:
    size = min(rows, CHUNK)
    x, keys, ids, filled = np.empty((size, dim)), [], [], 0
    for number, record in _json_lines(path):
        where = f"{path}, line {number}"
        vector = record if chosen.vectors is None else _take(record, chosen.vectors, where)
        x[filled] = check_vector(vector, dim, where)
        keys += [] if chosen.group is None else [_label(record, chosen.group, where)]
        ids += [] if chosen.ids is None else [_label(record, chosen.ids, where)]
        filled += 1
        if filled == size:
            yield Rows(x, keys or None, ids or None)
            x, keys, ids, filled = np.empty((size, dim)), [], [], 0
    if filled:
        yield Rows(x[:filled], keys or None, ids or None)


def _json_lines(path: Where) -> Iterator[tuple[int, Any]]:
    """(line number, value) of each line that is not empty."""
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, parse_json(line, f"{path}, line {number}")
    except OSError as problem:
        raise InputError("cannot read the file", where=path, got=problem.strerror or problem) from problem


def parse_json(text: str | bytes, where: str) -> Any:
    """What a piece of JSON says, or an error that names its place."""
    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError as problem:
        raise InputError("not JSON that can be read", where=where, got="brackets nested too deep") from problem
    except ValueError as problem:
        raise InputError("not JSON", where=where, got=f"{problem}, in {text[:60]!r}") from problem


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are all different: of two values under one name it is unclear which is meant.

    >>> unique([("a", 1), ("a", 2)])
    Traceback (most recent call last):
    ValueError: 'a' is given twice
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)[:40]!r} is given twice")
    return found


def _take(record: Any, field: str, where: str) -> Any:
    value = record.get(field) if isinstance(record, dict) else None
    if value is None:
        raise InputError(f"no {field!r} here", where=where, got=_show(record), expected=f"an object with {field!r}")
    return value


def _label(record: Any, field: str, where: str) -> str:
    label = _show(_take(record, field, where), length=None)
    try:
        label.encode()
    except UnicodeEncodeError as problem:
        raise InputError(f"a {field!r} that is not text", where=where, got="a lone surrogate") from problem
    return label


def _show(value: Any, length: int | None = 60) -> str:
    try:
        return str(value)[:length]
    except RecursionError:
        return type(value).__name__


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) <= {int, float}


def check_numbers(value: Any, where: str) -> list[float]:
    """A list of numbers that float64 reaches, or an error."""
    if not _are_numbers(value):
        raise InputError("not a list of numbers", where=where, got=_show(value))
    try:
        return list(map(float, value))
    except OverflowError as problem:
        raise InputError("a number too large for float64", where=where, got=_show(value)) from problem


def check_vector(value: Any, dim: int, where: str) -> list[float]:
    """A list of `dim` numbers, or an error."""
    vector = check_numbers(value, where)
    if len(vector) != dim:
        raise InputError("a row of another length", where=where, got=f"{len(vector)} numbers", expected=dim)
    return vector
