"""Vectors that are already in memory: numpy arrays, torch tensors, lists of rows, Arrow tables and data frames."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from anisoscope.errors import UsageError
from anisoscope.inputs.files import printable
from anisoscope.inputs.vectors.columns import Batch, Columns, every
from anisoscope.inputs.vectors.formats.arrays import bits, check_shape, name_dtype, widen
from anisoscope.inputs.vectors.formats.tables import choose_columns, from_batches
from anisoscope.inputs.vectors.pieces import CHUNK, Labels, VectorFile, Wanted, seekable

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "array in memory"
GROUPS = "labels of the rows"  # the column that `groups` becomes in a table


_KINDS = {
    "torch": ("Tensor",),
    "pyarrow": ("Table", "ChunkedArray", "Array", "RecordBatch"),
    "pandas": ("DataFrame", "Series"),
    "polars": ("DataFrame", "Series"),
}


def in_memory(data: Any) -> bool:
    """Whether this is an array, a tensor or a table, which no path is; no library is imported for it."""
    loaded = {sys.modules[library]: names for library, names in _KINDS.items() if library in sys.modules}
    kinds = [np.ndarray, *(getattr(module, name) for module, names in loaded.items() for name in names)]
    return isinstance(data, tuple(kinds))


def rows_of_numbers(data: Any) -> Any:
    """A list of rows, each a list of numbers or an array of one axis, as an array; anything else as it is."""
    if not isinstance(data, list | tuple) or not data:
        return data
    if all(in_memory(row) and len(getattr(row, "shape", ())) == 1 for row in data):
        return _stacked(data)
    if not all(isinstance(row, list | tuple) for row in data):
        return data
    try:
        return np.asarray(data, dtype=np.float64)
    except (TypeError, ValueError):  # rows of different lengths, or of something else
        return data


def _stacked(rows: Sequence[Any]) -> Any:
    """Rows of one kind and length, such as `encode` gives one by one, as an array or a tensor."""
    if len({(type(row), len(row)) for row in rows}) > 1:
        raise UsageError("rows of different lengths or kinds", where=NAME, expected="(n, d)")
    if type(rows[0]).__module__.partition(".")[0] == "torch":
        return sys.modules["torch"].stack(tuple(rows))
    return (np.ma if isinstance(rows[0], np.ma.MaskedArray) else np).stack(rows)


def open_memory(data: Any, columns: Columns, keys: list[str] | None) -> VectorFile:
    """The vectors of an array, tensor, table or data frame; `keys` labels the rows."""
    if type(data).__module__.partition(".")[0] in ("pandas", "polars"):
        data = _frame(data, columns)
    if "pyarrow" in sys.modules and type(data).__module__.startswith("pyarrow"):
        table = _table(data)
        if keys is not None:
            check_labels(keys, table.num_rows)
            table, columns = table.append_column(GROUPS, [keys]), replace(columns, group=GROUPS)
        return _open_table(table, columns)
    if columns != Columns():
        raise UsageError("an array has no columns", where=NAME, do="label its rows with `groups`")
    array = unmasked(data) if isinstance(data, np.ndarray) else _numpy(data)
    if keys is not None:
        check_labels(keys, len(array) if array.ndim else 0)
    return _open_array(array, keys)


def unmasked(array: np.ndarray) -> np.ndarray:
    """What is masked in an array is missing: NaN."""
    if not isinstance(array, np.ma.MaskedArray):
        return array
    return np.ma.filled(array.astype(np.result_type(array.dtype, np.float16)), np.nan)


def digest_of(vectors: VectorFile) -> bytes:
    """sha256 of the values, their type and the labels of the rows."""
    sha = hashlib.sha256(f"{vectors.dtype} {vectors.rows} {vectors.dim}".encode())
    for piece in vectors.read(CHUNK, every):
        if piece.rows is not None:
            sha.update(np.ascontiguousarray(piece.rows.x).data)
            sha.update(repr(piece.rows.keys).encode())
    return sha.digest()


def row_labels(groups: Sequence[Any]) -> list[str]:
    """Labels from Python as text that can be hashed; like in files, none may be missing."""
    if getattr(groups, "ndim", 1) != 1:
        raise UsageError(
            "one label per row is needed", where=NAME, got=f"groups of shape {getattr(groups, 'shape', '')}"
        )
    labels = [None if label is np.ma.masked else label for label in groups]
    for row, label in enumerate(labels):
        if label is None or (not isinstance(label, str) and str(label) in ("nan", "NaT", "<NA>")):
            raise UsageError("a missing group", where=f"{NAME}, row {row}", got=label)
    return [printable(str(label)) for label in labels]


def check_labels(keys: list[str], length: int) -> None:
    """Refuse labels that are more or fewer than the rows."""
    if len(keys) != length:
        raise UsageError("one label per row is needed", where=NAME, got=f"{len(keys)} groups", expected=length)


def _open_array(array: np.ndarray, keys: list[str] | None) -> VectorFile:
    length, dim = check_shape(array.shape, where=NAME)
    dtype = name_dtype(array.dtype, where=NAME)
    stored = array.view(bits(array.dtype, dtype))

    def take(start: int, stop: int) -> np.ndarray:
        return np.array(widen(stored[start:stop], dtype), order="C")  # a copy: blocks may be changed

    return seekable(take, Labels(keys), dim=dim, length=length, dtype=dtype)


def _numpy(tensor: Any) -> np.ndarray:
    """A tensor's values; bfloat16 as the two opaque bytes that `name_dtype` knows."""
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = "quantised" if tensor.is_quantized else "nested"
        got = f"a {kind} tensor" if tensor.layout is torch.strided else f"layout {tensor.layout}"
        raise UsageError("not a plain tensor", where=NAME, got=got, do="pass its `to_dense()` or `dequantize()`")
    if tensor.is_meta:
        raise UsageError("a tensor without values", where=NAME, got="device meta", do="load its values first")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.uint16).numpy().view("V2")
    try:
        return plain.numpy()
    except TypeError:  # a type that numpy does not have, such as float8
        raise UsageError(
            "a type of numbers that numpy does not have", where=NAME, got=plain.dtype, do="pass its `float()`"
        ) from None


def values_of_tensor(tensor: Any) -> np.ndarray:
    """A tensor's values in a type of numpy, which bfloat16 is not."""
    stored = _numpy(tensor)
    dtype = name_dtype(stored.dtype, where=NAME)
    return widen(stored.view(bits(stored.dtype, dtype)), dtype) if dtype == "bfloat16" else stored


def _frame(frame: Any, columns: Columns) -> Any:
    """A data frame whose columns are all floats as a matrix, if no column is asked for; any other as a table."""
    import pyarrow as pa

    series = len(frame.shape) == 1
    polars = type(frame).__module__.startswith("polars")
    try:
        whole = frame.to_frame("vectors") if series else frame
        table: pa.Table = whole.to_arrow() if polars else pa.Table.from_pandas(whole, preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError) as problem:  # two columns of one name, cells of several types
        got = str(problem).partition("\n")[0]
        raise UsageError("cannot read the data frame", where=NAME, got=got) from problem
    kinds = table.schema.types
    if series and not pa.types.is_nested(kinds[0]):
        return table.column(0).to_numpy()  # one axis, which is refused like that of an array
    if columns == Columns() and kinds and all(map(pa.types.is_floating, kinds)):
        return np.column_stack([column.to_numpy() for column in table.columns])
    if columns.vectors is None and not any(map(pa.types.is_nested, kinds)):
        raise UsageError(
            "no vectors in the data frame",
            where=NAME,
            got="; ".join(f"{field.name}: {field.type}" for field in list(table.schema)[:5]) or "no columns",
            expected="a column of lists, or nothing but columns of floats",
            do="choose the columns of the vectors and convert them to floats",
        )
    return table


def _table(data: Any) -> pa.Table:
    import pyarrow as pa

    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    return data if isinstance(data, pa.Table) else pa.table({"vectors": data})


def _open_table(table: pa.Table, columns: Columns) -> VectorFile:
    chosen = choose_columns(table.schema, columns, NAME)
    batches = [batch for batch in table.to_batches() if batch.num_rows]

    def read(rows: int, wanted: Wanted) -> Iterator[Batch]:
        for number, batch in enumerate(batches):
            if not wanted(number):
                yield number, batch.num_rows, None
                continue
            for start in range(0, batch.num_rows, rows):
                part = batch.slice(start, rows)
                yield number, part.num_rows, part

    opened = from_batches(read, table.schema, chosen, NAME)
    return replace(opened, rows=table.num_rows, chunks=len(batches))
