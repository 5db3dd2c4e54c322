"""Vectors in `.parquet`, `.arrow` and `.feather`: one column of lists, fixed-size lists or fixed-shape tensors.

`column` chooses among several such columns; `group` names the column with each row's sequence. Every row must have the
same length and no hole; the first that does not is named (rows count from 0). Memory is that of a block for Parquet
and for uncompressed Arrow; a compressed Arrow batch is unpacked whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anisoscope.errors import InputError
from anisoscope.inputs.vectors.arrays import Chunk, VectorFile, name_dtype, widen
from anisoscope.inputs.vectors.columns import ArrowFile, choose, open_parquet, parquet_batches

if TYPE_CHECKING:
    import pyarrow as pa

LIST_OF_NUMBERS = "column of lists of numbers"


def open_parquet_vectors(path: Path, *, column: str | None, group: str | None) -> VectorFile:
    """A list column of a Parquet file."""
    with open_parquet(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
    names = _choose_columns(schema, column, group, path)
    return _from_batches(lambda size: parquet_batches(path, names, size), schema, names, rows, path)


def open_arrow_vectors(path: Path, *, column: str | None, group: str | None) -> VectorFile:
    """A list column of an Arrow IPC file or stream, or of a Feather file."""
    file = ArrowFile(path)
    names = _choose_columns(file.schema, column, group, path)
    return _from_batches(lambda size: file.batches(names, size), file.schema, names, file.rows, path)


def _choose_columns(schema: pa.Schema, column: str | None, group: str | None, path: Path) -> list[str]:
    """The names of the vectors' column and, if asked for, of the group's."""
    lists = [field.name for field in schema if _numbers_inside(field.type) is not None and field.name != group]
    names = [choose(lists, column, where=path, what=LIST_OF_NUMBERS)]
    return names if group is None else [*names, choose(schema.names, group, where=path, what="column")]


def _numbers_inside(kind: pa.DataType) -> pa.DataType | None:
    """The type of the numbers in a list type, or None if it is something else."""
    import pyarrow as pa

    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return None
    inside = kind.value_type
    return inside if pa.types.is_floating(inside) or pa.types.is_integer(inside) else None


def _from_batches(
    batches: Callable[[int], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    names: list[str],
    rows: int | None,
    path: Path,
) -> VectorFile:
    """Vectors from a function that streams record batches of the chosen columns."""
    first = next((batch for batch in batches(1) if batch.num_rows), None)
    if first is None:
        raise InputError("the file holds no vectors", where=path, got="0 rows")
    dim = len(_storage(first.column(names[0]))[0].as_py() or ())
    if dim == 0:
        raise InputError("the file holds no vectors", where=f"{path}, row 0", got="an empty or missing list")
    inside = _numbers_inside(schema.field(names[0]).type)
    dtype = name_dtype(np.dtype(inside.to_pandas_dtype()), where=path) if inside is not None else "float64"

    def read(size: int) -> Iterator[Chunk]:
        start = 0
        for batch in batches(size):
            x = widen(_matrix(batch.column(names[0]), dim, start, path), dtype)
            keys = _keys(batch.column(names[1]), start, path) if len(names) == 2 else None
            del batch  # its memory is free before the next one is unpacked
            yield x, keys
            start += len(x)

    return VectorFile(dim, rows, dtype, read)


def _storage(array: pa.Array) -> pa.Array:
    import pyarrow as pa

    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _matrix(array: pa.Array, dim: int, start: int, path: Path) -> np.ndarray:
    """(rows, dim) from a list column; `start` is the number of its first row."""
    import pyarrow.compute as pc

    array = _storage(array)
    lengths = pc.call_function("list_value_length", [array]).fill_null(-1).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != dim)
    if len(wrong):
        length = lengths[wrong[0]]
        got = "a missing list" if length < 0 else f"{length} numbers"
        raise InputError("a row of another length", where=f"{path}, row {start + wrong[0]}", got=got, expected=dim)
    values = array.flatten()
    if values.null_count:
        hole = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError("a missing number", where=f"{path}, row {start + hole // dim}", got=f"null at {hole % dim}")
    return np.array(values.to_numpy(zero_copy_only=False)).reshape(-1, dim)


def _keys(array: pa.Array, start: int, path: Path) -> list[str]:
    values = array.to_pylist()
    if None in values:
        raise InputError("a row without its group", where=f"{path}, row {start + values.index(None)}", got="null")
    return [str(value) for value in values]
