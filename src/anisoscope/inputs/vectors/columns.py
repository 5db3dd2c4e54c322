"""Columnar files as a stream of Arrow record batches: Parquet, Arrow IPC (file, stream, Feather V2), CSV.

What they share: memory is that of a batch, however large the file or its row groups are, and what pyarrow reports
becomes an error that names the file. Arrow files are memory-mapped; pages that were read are given back batch by batch,
so that they do not count against the process. A row group of Parquet and a record batch of Arrow is a chunk (see
`pieces`); one that is not wanted is not read, except that a compressed Arrow batch must be unpacked to be counted.
"""

from __future__ import annotations

import csv
import io
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.files import Where
from anisoscope.inputs.stores.objects import HEADER, StoredObject
from anisoscope.inputs.stores.objects import READ_AHEAD as STORE_AHEAD
from anisoscope.inputs.vectors.pieces import Wanted

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

CSV_PIECE = 16 << 20  # bytes parsed at once; one row must fit
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
READ_AHEAD = 1 << 20  # bytes; with it a Parquet column chunk is streamed instead of read whole

Batch = tuple[int, int, "pa.RecordBatch | None"]  # chunk, rows, and None for a chunk that is passed over


@dataclass(frozen=True, slots=True)
class Columns:
    """Which arrays, columns or fields to read: the vectors, the sequence of each row, the id of each row."""

    vectors: str | None = None
    group: str | None = None
    ids: str | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Those that are asked for and hold no vectors."""
        return tuple(name for name in (self.group, self.ids) if name is not None)


def every(number: int) -> bool:
    """Every chunk is wanted."""
    return True


def choose(
    candidates: Sequence[str], wanted: str | None, *, where: object, what: str, others: Iterable[str] = ()
) -> str:
    """The candidate that is wanted, or the only one; otherwise an error that lists them, or else `others`.

    >>> choose(["title", "body"], "body", where="x.npz", what="matrix")
    'body'
    """
    wanted = candidates[0] if wanted is None and len(set(candidates)) == 1 else wanted
    shown = ", ".join(candidates[:20]) + (f" and {len(candidates) - 20} more" if len(candidates) > 20 else "")
    if wanted is not None and candidates.count(wanted) == 1:
        return wanted
    if wanted is not None and wanted in candidates:
        raise UsageError(f"more than one {what} named {wanted!r}", where=where, do="give them different names")
    if wanted is None and candidates:
        raise UsageError(f"more than one {what} in the file", where=where, got=shown, do="choose one with `column`")
    problem = f"no {what} in the file" if wanted is None else f"no {what} named {wanted!r} in the file"
    got = None if candidates else ", ".join(list(others)[:20]) or None
    raise UsageError(problem, where=where, got=got, expected=f"one of: {shown}" if candidates else f"a {what}")


@contextmanager
def arrow_errors(where: object) -> Iterator[None]:
    """Turn what is raised about the file into an `InputError` that names it."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, EOFError, ValueError, OverflowError, MemoryError, csv.Error) as problem:
        do = "try again: what was saved is continued" if isinstance(where, StoredObject) else None
        raise InputError("cannot read the file", where=where, got=str(problem).strip(), do=do) from problem


def open_parquet(path: Where) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    stored = isinstance(path, StoredObject)
    with arrow_errors(path):
        # A name that is not UTF-8 has no other way into Arrow than its bytes.
        file = path.native() if stored else pa.OSFile(os.fsencode(path))
        ahead = STORE_AHEAD if stored else READ_AHEAD
        return pq.ParquetFile(file, buffer_size=ahead, pre_buffer=False, page_checksum_verification=True)


def parquet_batches(path: Where, names: Sequence[str], rows: int, wanted: Wanted = every) -> Iterator[Batch]:
    """Batches of at most `rows` rows of the named columns."""
    with open_parquet(path) as file, arrow_errors(path):
        for number in range(file.num_row_groups):
            count = file.metadata.row_group(number).num_rows
            if count == 0 or not wanted(number):
                yield number, count, None
                continue
            groups, left = [number], count
            for batch in file.iter_batches(batch_size=rows, row_groups=groups, columns=list(names), use_threads=False):
                left -= batch.num_rows
                yield number, batch.num_rows, batch
            if left:
                got = f"{count - left} of {count} rows in row group {number}"
                raise InputError("the file does not hold the rows that it announces", where=path, got=got)


class ArrowFile:
    """An Arrow IPC file or stream; `rows` and `chunks` are None for a stream, which does not say.

    A local file is memory-mapped; of an object in a store one batch at a time is read, the chosen columns only.
    """

    def __init__(self, path: Where) -> None:
        self.path, self._map = path, None
        with arrow_errors(path), path.open("rb", HEADER) as stream:
            self._size = stream.seek(0, io.SEEK_END)
            if not self._size:
                raise InputError("the file is empty", where=path, got="0 bytes")
            stream.seek(-min(self._size, len(END_OF_STREAM)), io.SEEK_END)
            self._ended = stream.read() == END_OF_STREAM
            stream.seek(0)
            self._is_stream = stream.read(6) != b"ARROW1"
            if not isinstance(path, StoredObject):
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        with arrow_errors(path):
            reader = self._reader()
            self.schema: pa.Schema = reader.schema
            # An older pyarrow cannot count without unpacking everything.
            local = self._map is not None and hasattr(reader, "count_rows")
            self.rows: int | None = reader.count_rows() if local else None
            self.chunks: int | None = None if self._is_stream else reader.num_record_batches

    @property
    def notes(self) -> tuple[str, ...]:
        """A stream that is cut between two batches reads like a shorter one; only its end mark is missing."""
        cut_off = self._is_stream and not self._ended
        return ("the stream has no end mark: the file may be cut off",) if cut_off else ()

    def _reader(self, names: Sequence[str] | None = None) -> Any:
        import pyarrow as pa

        read = pa.ipc.open_stream if self._is_stream else pa.ipc.open_file
        if isinstance(self.path, StoredObject):
            fields = None if names is None else [self.schema.get_field_index(name) for name in names]
            return read(self.path.native(), options=pa.ipc.IpcReadOptions(included_fields=fields))
        # Not IpcReadOptions(included_fields=…): with it Arrow copies the whole batch, however large, into memory.
        return read(pa.BufferReader(pa.py_buffer(self._map)))

    def batches(self, names: Sequence[str], rows: int, wanted: Wanted = every) -> Iterator[Batch]:
        """Batches of at most `rows` rows of the named columns."""
        with arrow_errors(self.path):
            for number, batch in enumerate(self._whole(names)):
                if not wanted(number):
                    yield number, batch.num_rows, None
                    continue
                batch = batch.select(list(names))
                batch.validate(full=True)  # damaged offsets would be followed out of the file
                for start in range(0, batch.num_rows, rows):
                    self._check_length()
                    part = batch.slice(start, rows)
                    yield number, part.num_rows, part
                    self._give_back()
                del batch  # before the next one is unpacked

    def _whole(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Every batch, none of them unpacked before it is asked for."""
        self._check_length()
        reader = self._reader(names)
        whole = iter(reader) if self._is_stream else map(reader.get_batch, range(reader.num_record_batches))
        while (batch := next(whole, None)) is not None:
            yield batch
            del batch
            self._check_length()

    def _check_length(self) -> None:
        """Refuse to look behind the end of a file that was shortened: the system would kill the process."""
        if isinstance(self.path, Path) and os.stat(self.path).st_size < self._size:
            raise InputError("the file became shorter while it was read", where=self.path)

    def _give_back(self) -> None:
        """Drop the mapped pages; whoever still looks at them has them read from the file again."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def csv_records(stream: IO[bytes], count: int) -> list[list[str]]:
    """The first records of a CSV file, as text; empty lines between them do not count."""
    limit = csv.field_size_limit(CSV_PIECE)  # a cell may hold a vector of thousands of numbers
    try:
        rows = csv.reader(io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""))
        records = [next(rows, [])]
        if not records[0]:
            raise csv.Error("the first line is empty")
        return records + list(islice(filter(None, rows), count - 1))
    finally:
        csv.field_size_limit(limit)


def csv_batches(
    stream: IO[bytes], names: Sequence[str], *, header: bool, types: dict[str, pa.DataType]
) -> Iterator[pa.RecordBatch]:
    """Batches of the columns in `types`, from a CSV file whose columns are `names`; an empty cell of a number is null.

    Rows of the wrong length and cells of the wrong type are refused with their row number, hence one thread.
    """
    import pyarrow.csv as arrow_csv

    yield from arrow_csv.open_csv(
        stream,
        read_options=arrow_csv.ReadOptions(
            use_threads=False, block_size=CSV_PIECE, column_names=list(names), skip_rows=int(header)
        ),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            include_columns=list(types), column_types=types, null_values=[""], strings_can_be_null=False
        ),
    )
