"""Vectors in `.parquet`, `.arrow` and `.feather`: one column of lists, fixed-size lists or fixed-shape tensors.

`column` chooses among several such columns; `group` and `ids` name the columns with each row's sequence and id. Every
row must have the same length and no hole; the first that does not is named (rows count from 0). Memory is that of a
block for Parquet and for uncompressed Arrow; a compressed Arrow batch is unpacked whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from anisoscope.errors import InputError
from anisoscope.inputs.files import Where
from anisoscope.inputs.vectors.columns import (
    ArrowFile,
    Batch,
    Columns,
    arrow_errors,
    choose,
    every,
    open_parquet,
    parquet_batches,
)
from anisoscope.inputs.vectors.formats.arrays import name_dtype, widen
from anisoscope.inputs.vectors.pieces import Piece, Rows, VectorFile, Wanted

if TYPE_CHECKING:
    import pyarrow as pa

LIST_OF_NUMBERS = "column of lists of numbers"


def open_parquet_vectors(path: Where, columns: Columns) -> VectorFile:
    """A list column of a Parquet file."""
    with open_parquet(path) as file:
        schema, chunks = file.schema_arrow, file.num_row_groups
        rows = sum(file.metadata.row_group(number).num_rows for number in range(chunks))
        if rows != file.metadata.num_rows:
            got = f"{rows} rows in row groups, {file.metadata.num_rows} announced"
            raise InputError("the file is damaged", where=path, got=got)
    chosen = choose_columns(schema, columns, path)
    names = _names(chosen)
    read = from_batches(lambda *how: parquet_batches(path, names, *how), schema, chosen, path)
    return replace(read, rows=rows, chunks=chunks, groups=True)


def open_arrow_vectors(path: Where, columns: Columns) -> VectorFile:
    """A list column of an Arrow IPC file or stream, or of a Feather file."""
    file = ArrowFile(path)
    chosen = choose_columns(file.schema, columns, path)
    names = _names(chosen)
    read = from_batches(lambda *how: file.batches(names, *how), file.schema, chosen, path)
    return replace(read, rows=file.rows, chunks=file.chunks, notes=file.notes, groups=file.chunks is not None)


def choose_columns(schema: pa.Schema, columns: Columns, where: object) -> Columns:
    """The columns that are asked for, the vectors' by name."""
    labels = columns.labels
    with arrow_errors(where):  # names may be damaged
        names = schema.names
    lists = [name for name, kind in zip(names, schema.types, strict=True) if _numbers_inside(kind) is not None]
    vectors = choose([name for name in lists if name not in labels], columns.vectors, where=where, what=LIST_OF_NUMBERS)
    for name in (vectors, *labels):
        choose(names, name, where=where, what="column")
    return replace(columns, vectors=vectors)


def _names(chosen: Columns) -> list[str]:
    return list(dict.fromkeys([chosen.vectors or "", *chosen.labels]))


def _numbers_inside(kind: pa.DataType) -> pa.DataType | None:
    """The type of the numbers in a list type, or None if it is something else."""
    import pyarrow as pa

    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return None
    inside = kind.value_type
    return inside if pa.types.is_floating(inside) or pa.types.is_integer(inside) else None


def from_batches(
    batches: Callable[[int, Wanted], Iterator[Batch]], schema: pa.Schema, chosen: Columns, where: object
) -> VectorFile:
    """Vectors from a function that streams record batches of the chosen columns."""
    name = chosen.vectors or ""
    first = next((batch for _, count, batch in batches(1, every) if batch is not None and count), None)
    if first is None:
        raise InputError("the file holds no vectors", where=where, got="0 rows")
    dim = len(_storage(first.column(name))[0].as_py() or ())
    if dim == 0:
        raise InputError("the file holds no vectors", where=f"{where}, row 0", got="an empty or missing list")
    inside = _numbers_inside(schema.field(name).type)
    dtype = name_dtype(np.dtype(inside.to_pandas_dtype()), where=where) if inside is not None else "float64"

    def read(size: int, wanted: Wanted) -> Iterator[Piece]:
        start = 0
        for number, count, batch in batches(size, wanted):
            rows = None
            if batch is not None:
                x = widen(list_matrix(batch.column(name), dim, start, where), dtype)
                keys, ids = (_labels(batch, label, start, where) for label in (chosen.group, chosen.ids))
                rows = Rows(x, keys, ids)
            del batch  # its memory is free before the next one is unpacked
            yield Piece(number, count, rows)
            start += count

    return VectorFile(dim, None, None, dtype, read)


def _storage(array: pa.Array) -> pa.Array:
    import pyarrow as pa

    return array.storage if isinstance(array, pa.ExtensionArray) else array


def list_matrix(array: pa.Array, dim: int, start: int, where: object) -> np.ndarray:
    """(rows, dim) from a list column; `start` is the number of its first row."""
    import pyarrow.compute as pc

    array = _storage(array)
    lengths = pc.call_function("list_value_length", [array]).fill_null(-1).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != dim)
    if len(wrong):
        length = lengths[wrong[0]]
        got = "a missing list" if length < 0 else f"{length} numbers"
        raise InputError("a row of another length", where=f"{where}, row {start + wrong[0]}", got=got, expected=dim)
    values = array.flatten()
    if values.null_count:
        hole = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError("a missing number", where=f"{where}, row {start + hole // dim}", got=f"null at {hole % dim}")
    return np.array(values.to_numpy(zero_copy_only=False)).reshape(-1, dim)


def _labels(batch: pa.RecordBatch, name: str | None, start: int, where: object) -> list[str] | None:
    if name is None:
        return None
    with arrow_errors(where):  # text may be damaged
        values = batch.column(name).to_pylist()
    if None in values:
        place = f"{where}, row {start + values.index(None)}"
        raise InputError(f"a row without its {name}", where=place, got="null")
    return [str(value) for value in values]
