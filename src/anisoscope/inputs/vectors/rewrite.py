"""Copy a file of vectors with other vectors in their place; everything else in it stays: ids, texts, other tensors.

    rewrite("documents.parquet", "repaired.parquet", lambda x: x / 2, column="embedding")

`change` takes a block (b, d) and returns one of as many rows; its width may differ, but is the same for every block.
Formats: `.npy .safetensors .parquet .arrow .feather .csv .jsonl`, each to the same. Memory is that of a block. Values
are written as float32, or as float64 where the source needs it. `done(rows)` reports progress. Plain arrays (`.npy`,
`.safetensors`) are shared out: a thread for each core reads, changes and writes its own chunks, in blocks that stay in
its cache. In other formats reading, changing and writing overlap.
"""

from __future__ import annotations

import csv
import json
import os
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from threading import Event, Lock
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.lib import format as npy_format
from threadpoolctl import threadpool_limits

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.vectors.columns import CSV_PIECE, ArrowFile, Columns, open_parquet, parquet_batches
from anisoscope.inputs.vectors.formats.csv_numbers import vector_columns
from anisoscope.inputs.vectors.formats.jsonl import vector_field
from anisoscope.inputs.vectors.formats.tables import choose_columns, list_matrix
from anisoscope.inputs.vectors.formats.tensors import read_header, vector_tensor
from anisoscope.inputs.vectors.source import VectorSource, open_vectors

if TYPE_CHECKING:
    import pyarrow as pa

Change = Callable[[np.ndarray], np.ndarray]
Done = Callable[[int], None]
Item = TypeVar("Item")
ROWS = 8192
_LINES = 1024
_BYTES = 1 << 20
_CORES = min(os.cpu_count() or 1, 8)
_COPY = 1 << 22


def rewrite(
    source: Path | str, target: Path | str, change: Change, *, column: str | None = None, done: Done | None = None
) -> int:
    """Write `target`; returns the number of rows. The caller makes sure that nothing is overwritten."""
    source, target = Path(source), Path(target)
    writer = _WRITERS.get(source.suffix.lower())
    if writer is None:
        raise UsageError("cannot write this kind of file", where=source, expected=" ".join(_WRITERS))
    opened = open_vectors(source, column=column)
    return writer(opened, source, target, change, Columns(column), done or (lambda rows: None))


def _changed(opened: VectorSource, change: Change, done: Done, rows: int = ROWS) -> Iterator[np.ndarray]:
    for made in _ahead(_made(change, block.x) for block in _ahead(opened.blocks(rows))):
        yield made
        done(len(made))


def _made(change: Change, x: np.ndarray) -> np.ndarray:
    made = change(x)
    if len(made) != len(x):
        raise UsageError("the change must keep the rows", got=len(made), expected=len(x))
    return made


def _ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items, each made by another thread while the one before it is in use.

    >>> list(_ahead(iter("abc")))
    ['a', 'b', 'c']
    """
    none = object()
    with ThreadPoolExecutor(1) as worker:
        pending = worker.submit(next, items, none)
        while (item := pending.result()) is not none:
            pending = worker.submit(next, items, none)
            yield item  # pyright: ignore[reportReturnType]  # not the mark of the end


def _npy(opened: VectorSource, source: Path, target: Path, change: Change, columns: Columns, done: Done) -> int:
    sample = change(next(opened.blocks(1)).x[:0])  # its width and type; no row is changed twice
    with open(target, "wb") as stream:
        header = {"shape": (opened.rows, sample.shape[1]), "fortran_order": False, "descr": sample.dtype.str}
        npy_format.write_array_header_1_0(stream, header)
        place = stream.tell()
    return _fill(target, place, opened, change, done)


def _fill(target: Path, place: int, opened: VectorSource, change: Change, done: Done) -> int:
    """Write the changed vectors behind the first `place` bytes of a file that is there."""
    rows, lock, stop = max(256, _BYTES // (4 * opened.dim)), Lock(), Event()

    def share(number: int) -> int:
        count = 0
        with open(target, "r+b") as stream:
            for block in opened.blocks(rows, wanted=lambda chunk: chunk % _CORES == number):
                if stop.is_set():
                    break
                made = _made(change, block.x)
                stream.seek(place + block.start * made[0].nbytes)
                stream.write(np.ascontiguousarray(made).data)
                count += len(made)
                with lock:
                    done(len(made))
        return count

    with threadpool_limits(1), ThreadPoolExecutor(_CORES) as workers:  # the cores are busy already
        shares = [workers.submit(share, number) for number in range(_CORES)]
        try:
            wait(shares, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
        return sum(one.result() for one in shares)


def _safetensors(opened: VectorSource, source: Path, target: Path, change: Change, columns: Columns, done: Done) -> int:
    """The header is written first, so the width is found on one row; other tensors are copied byte by byte."""
    assert opened.rows is not None
    header, data, metadata = read_header(source)
    name = vector_tensor(source, header, columns)
    sample = change(next(opened.blocks(1)).x[:0])  # its width and type; no row is changed twice
    kind = "F64" if sample.dtype == np.float64 else "F32"
    size = opened.rows * sample.shape[1] * sample.itemsize
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    place = 0
    for one in [name, *(other for other in header if other != name)]:  # in the order in which the bytes follow
        begin, end = header[one]["data_offsets"]
        length = size if one == name else end - begin
        made = {"dtype": kind, "shape": [opened.rows, sample.shape[1]]} if one == name else header[one]
        entries[one] = {**made, "data_offsets": [place, place + length]}
        place += length
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(struct.pack("<Q", len(text)) + text)
    _fill(target, 8 + len(text), opened, change, done)
    with open(target, "ab") as stream, open(source, "rb") as before:
        for one in (other for other in header if other != name):
            begin, end = header[one]["data_offsets"]
            _copy(before, stream, data + begin, end - begin)
    return opened.rows


def _copy(source: IO[bytes], target: IO[bytes], start: int, length: int) -> None:
    source.seek(start)
    while length:
        piece = source.read(min(length, _COPY))
        if not piece:
            raise InputError("the file became shorter while it was read", got=f"{length} bytes missing")
        target.write(piece)
        length -= len(piece)


def _parquet(opened: VectorSource, source: Path, target: Path, change: Change, columns: Columns, done: Done) -> int:
    import pyarrow.parquet as pq

    with open_parquet(source) as file:
        schema = file.schema_arrow
        codec = file.metadata.row_group(0).column(0).compression if file.num_row_groups else "SNAPPY"
    batches = (batch for _, _, batch in parquet_batches(source, schema.names, ROWS) if batch is not None)
    make = lambda made: pq.ParquetWriter(target, made, compression=codec)  # noqa: E731  # UNCOMPRESSED is a codec here
    return _tables(batches, schema, make, opened, change, columns, done, source)


def _arrow(opened: VectorSource, source: Path, target: Path, change: Change, columns: Columns, done: Done) -> int:
    import pyarrow as pa

    file = ArrowFile(source)
    batches = (batch for _, _, batch in file.batches(file.schema.names, ROWS) if batch is not None)
    return _tables(
        batches, file.schema, lambda made: pa.ipc.new_file(target, made), opened, change, columns, done, source
    )


def _tables(
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    make: Callable[[Any], Any],
    opened: VectorSource,
    change: Change,
    columns: Columns,
    done: Done,
    source: Path,
) -> int:
    """Record batches with one column replaced; the writer is made once the width is known."""
    import pyarrow as pa

    name, writer, rows = choose_columns(schema, columns, source).vectors or "", None, 0
    place = schema.names.index(name)
    try:
        for batch, made in _ahead(_pairs(_ahead(batches), change, place, opened, source)):
            flat = pa.array(np.ascontiguousarray(made).reshape(-1))
            lists = pa.FixedSizeListArray.from_arrays(flat, made.shape[1])
            batch = batch.set_column(place, pa.field(name, lists.type), lists)
            writer = make(batch.schema.with_metadata(schema.metadata)) if writer is None else writer
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
            rows += len(made)
            done(len(made))
    finally:
        if writer is not None:
            writer.close()
    return rows


def _pairs(
    batches: Iterator[pa.RecordBatch], change: Change, place: int, opened: VectorSource, source: Path
) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    """Each batch with its vectors changed."""
    rows, wide = 0, opened.dtype not in ("float32", "float16", "bfloat16", "int8", "uint8", "int16", "uint16")
    for batch in batches:
        x = list_matrix(batch.column(place), opened.dim, rows, source)
        yield batch, _made(change, x.astype(np.float64 if wide else np.float32, copy=False))
        rows += len(x)


def _csv(opened: VectorSource, source: Path, target: Path, change: Change, columns: Columns, done: Done) -> int:
    names, header, chosen, lists = vector_columns(source, columns)
    held, rows = {names.index(name) for name in chosen}, 0
    limit = csv.field_size_limit(CSV_PIECE)
    try:
        with (
            open(source, encoding="utf-8-sig", newline="") as before,
            open(target, "w", encoding="utf-8", newline="") as stream,
        ):
            records, writer = filter(None, csv.reader(before)), csv.writer(stream)
            for made in _changed(opened, change, done):
                if rows == 0 and header:
                    width = made.shape[1]
                    called = chosen if lists or width == len(chosen) else [f"d{k}" for k in range(width)]
                    writer.writerow(_in_place(next(records), held, called))
                for vector, record in zip(made.tolist(), islice(records, len(made)), strict=True):
                    writer.writerow(_in_place(record, held, [json.dumps(vector)] if lists else map(repr, vector)))
                rows += len(made)
    finally:
        csv.field_size_limit(limit)
    return rows


def _in_place(record: list[str], held: set[int], values: Any) -> list[str]:
    """The record with the values where its vector began, and the rest of the vector's cells gone."""
    first = min(held)
    rest = [cell for k, cell in enumerate(record) if k not in held]
    before = sum(k not in held for k in range(first))
    return [*rest[:before], *values, *rest[before:]]


def _jsonl(opened: VectorSource, source: Path, target: Path, change: Change, columns: Columns, done: Done) -> int:
    field, rows = vector_field(source, columns), 0
    with open(source, "rb") as before, open(target, "w", encoding="utf-8") as stream:
        lines = (line for line in before if line.strip())
        for made in _changed(opened, change, done, _LINES):
            for vector, line in zip(made.tolist(), islice(lines, len(made)), strict=True):
                record = vector if field is None else {**json.loads(line), field: vector}
                stream.write(json.dumps(record, ensure_ascii=False) + "\n")
            rows += len(made)
    return rows


_WRITERS = {
    ".npy": _npy,
    ".safetensors": _safetensors,
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".feather": _arrow,
    ".csv": _csv,
    ".jsonl": _jsonl,
}
