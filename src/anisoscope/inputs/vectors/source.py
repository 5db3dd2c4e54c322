"""Vectors from files, streamed: `.npy .npz .safetensors .parquet .arrow .feather .csv .jsonl`, folders and globs.

    source = open_vectors(["embeddings.parquet"], column="embedding", group="article")
    for block in source.blocks(8192):
        block.x  # (b, d), float32, or float64 where the stored type needs it
        block.keys  # the article of each row, or None without `group`

Memory is that of a block (with the exceptions that `npy` and `tables` state), whatever the size of the files, and what
the blocks hold does not depend on their size. Vectors of several files follow one another and must have the same
dimension. A file that is named must be good. Of files that a folder or a glob held, those that cannot be opened are
listed in `unreadable`; when none can, that is an error. A fault met inside a file is always an error: half a file is no
sample. So is a file that changes between opening and the end of a pass: the fingerprint is of the bytes that were read.

Workers share a source by its chunks (see `pieces`): `blocks(rows, wanted=lambda number: number % 4 == 1)`.
Arrays, tensors and Arrow tables in memory are read like files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.files import FoundFile, check_unchanged, digest, file_digest, find_files, name_of, stamp
from anisoscope.inputs.vectors import memory
from anisoscope.inputs.vectors.columns import Columns, every
from anisoscope.inputs.vectors.formats.arrays import is_wide
from anisoscope.inputs.vectors.formats.csv_numbers import open_csv_vectors
from anisoscope.inputs.vectors.formats.jsonl import open_jsonl_vectors
from anisoscope.inputs.vectors.formats.npy import open_npy, open_npz
from anisoscope.inputs.vectors.formats.tables import open_arrow_vectors, open_parquet_vectors
from anisoscope.inputs.vectors.formats.tensors import open_safetensors
from anisoscope.inputs.vectors.pieces import VectorFile, Wanted

READERS = {
    ".npy": open_npy,
    ".npz": open_npz,
    ".safetensors": open_safetensors,
    ".parquet": open_parquet_vectors,
    ".arrow": open_arrow_vectors,
    ".feather": open_arrow_vectors,
    ".csv": open_csv_vectors,
    ".jsonl": open_jsonl_vectors,
}
_EXPECTED = "paths, or arrays (n, d)"


@dataclass(frozen=True, slots=True, eq=False)
class VectorBlock:
    """Consecutive vectors of one chunk; `start` is the number of the first one in the whole source."""

    x: np.ndarray  # (b, d) float32 or float64
    keys: list[str] | None
    start: int
    ids: list[str] | None = None
    chunk: int = 0
    kept: np.ndarray | None = None  # which of the source's rows these are, where some were left out

    @property
    def stop(self) -> int:
        return self.start + len(self.x if self.kept is None else self.kept)

    @property
    def numbers(self) -> np.ndarray:
        """The number of each row in the whole source."""
        numbers = np.arange(self.start, self.stop)
        return numbers if self.kept is None else numbers[self.kept]


@dataclass(frozen=True, slots=True)
class Opened:
    """A file or an array, ready to be read; `check` raises an error once it is no longer what was opened."""

    key: str
    vectors: VectorFile
    digest: Callable[[], bytes]
    check: Callable[[], None]
    stamp: Callable[[], object] = lambda: None


class VectorSource:
    """Vectors of one dimension from one or several files or arrays. Made by `open_vectors`.

    - `dim`; `rows` and `chunks`, or None when only a pass can tell; `dtype`, the stored type (or types) by name.
    - `unreadable`: (file, reason) of what a folder or a glob held and could not be opened.
    - `grouped`: whether rows belong to named sequences; `numbered`: whether each is known by its number.
    - `notes`: (file, words) on how a file was read, such as columns that were left out.
    """

    def __init__(
        self,
        opened: Sequence[Opened],
        *,
        name: str,
        columns: Columns,
        unreadable: Sequence[tuple[str, str]] = (),
        grouped: bool = False,
    ) -> None:
        self.name, self.unreadable = name, list(unreadable)
        self.grouped = grouped or columns.group is not None
        self.notes = [(part.key, note) for part in opened for note in part.vectors.notes]
        self._opened, self._columns = list(opened), columns
        files = [part.vectors for part in opened]
        self.dim = files[0].dim
        self.rows = _total([file.rows for file in files])
        self.chunks = _total([file.chunks for file in files])
        self.own_groups = all(file.groups for file in files)
        self.dtype = ", ".join(sorted({file.dtype for file in files}))
        self._as = np.float64 if any(is_wide(file.dtype) for file in files) else np.float32

    @property
    def numbered(self) -> bool:
        return not self.grouped

    @property
    def sequences(self) -> str:
        """What a sequence is here, in words."""
        if self._columns.group is not None:
            return f"column {self._columns.group}"
        return memory.GROUPS if self.grouped else "every vector is its own sequence"

    def blocks(self, rows_per_block: int = 8192, *, wanted: Wanted | None = None) -> Iterator[VectorBlock]:
        """All vectors in order, at most `rows_per_block` at a time and never of two chunks.

        `wanted(number)` says which chunks are read, numbered through all files; the rows of others still count in
        `start`.
        """
        if rows_per_block < 1:
            raise UsageError("a block must hold at least one row", got=rows_per_block)
        start = first = 0
        for part in self._opened:
            part.check()
            chunks = 0
            choose = every if wanted is None else _from(first, wanted)
            for number, count, rows in part.vectors.read(rows_per_block, choose):
                if rows is not None:
                    x = rows.x.astype(self._as, copy=False)
                    yield VectorBlock(x, rows.keys, start, rows.ids, first + number)
                start, chunks = start + count, number + 1
            part.check()
            first += chunks

    def fingerprint(self) -> str:
        """sha256 of the files' bytes and of what is read of them, wherever they lie and whatever they are called."""
        what = repr((self._columns.vectors, self._columns.group)).encode()
        return digest([what, *(part.digest() for part in self._opened)])


def _total(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else sum(count or 0 for count in counts)


def _from(first: int, wanted: Wanted) -> Wanted:
    return lambda number: wanted(first + number)


def open_vectors(
    where: Any,
    *,
    column: str | None = None,
    group: str | None = None,
    ids: str | None = None,
    groups: Sequence[Any] | None = None,
) -> VectorSource:
    """Open files, folders (recursive) and globs of vectors; see the module for what is read and what is refused.

    - `where`: a path or several; or an array (n, d), a tensor, a list of rows, an Arrow table or column of lists, a
      data frame (a column of lists, or one column of floats per dimension), or several of them.
    - `column` chooses the array, column or field that holds the vectors, where there are several; of a CSV file with
      one column per dimension it is a pattern, such as `d*`. `group` names the one with the sequence of each row, `ids`
      the one with its id.
    - `groups`, for what is in memory: the sequence of each row.
    """
    columns, where = Columns(column, group, ids), memory.rows_of_numbers(where)
    try:
        places = [where] if isinstance(where, str | Path) or memory.in_memory(where) else list(where)
    except TypeError:
        lazy = "pass its `collect()`" if type(where).__name__ == "LazyFrame" else None
        raise UsageError("not vectors", got=type(where).__name__, expected=_EXPECTED, do=lazy) from None
    if not places:
        raise UsageError("no file of vectors is named")
    if all(map(memory.in_memory, places)):
        return _open_arrays(places, columns, groups)
    if not all(isinstance(place, str | Path) for place in places):
        got = ", ".join(sorted({type(place).__name__ for place in places}))
        raise UsageError("not vectors", got=f"a list of {got}", expected=_EXPECTED)
    if groups is not None:
        raise UsageError(
            "`groups` labels rows in memory", got=name_of(places), do="name the file's column with `group`"
        )
    return _open_files(places, columns)


def _open_arrays(arrays: Sequence[Any], columns: Columns, groups: Sequence[Any] | None) -> VectorSource:
    keys = None if groups is None else iter(memory.row_labels(groups))
    opened = []
    for number, array in enumerate(arrays):
        last = number == len(arrays) - 1
        own = None if keys is None else list(keys if last else islice(keys, len(array)))
        vectors = memory.open_memory(array, columns, own)
        key = memory.NAME if len(arrays) == 1 else f"{memory.NAME} {number}"
        opened.append(Opened(key, vectors, cache(partial(memory.digest_of, vectors)), lambda: None))
    _check_dimensions(opened)
    return VectorSource(opened, name=memory.NAME, columns=columns, grouped=groups is not None)


def _open_files(places: Sequence[str | Path], columns: Columns) -> VectorSource:
    opened: list[Opened] = []
    unreadable: list[tuple[str, str]] = []
    for file in find_files(places, suffixes=READERS, what="vectors"):
        try:
            opened.append(_open_file(file, columns))
        except InputError as problem:
            if file.named:
                raise
            unreadable.append((file.key, problem.what if problem.got is None else f"{problem.what}: {problem.got}"))
    name = name_of(places)
    if not opened:
        got = "; ".join(f"{file}: {why}" for file, why in unreadable[:3])
        raise InputError("no vectors could be read", where=name, got=got)
    _check_dimensions(opened)
    return VectorSource(opened, name=name, columns=columns, unreadable=unreadable)


def _open_file(file: FoundFile, columns: Columns) -> Opened:
    path = file.path
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise UsageError(
            "not a file of vectors",
            where=path,
            got=path.suffix or "no suffix",
            expected=" ".join(READERS),
            do="anisoscope measure MODEL --data FILE, for texts" if path.suffix == ".txt" else None,
        )
    before = stamp(path)

    def check() -> None:
        check_unchanged(path, before)

    @cache
    def contents() -> bytes:
        try:
            return file_digest(path)
        except OSError as problem:
            raise InputError("cannot read the file", where=path, got=problem.strerror) from problem

    def digested() -> bytes:
        found = contents()  # read once: it is asked for several times, and takes as long as a pass
        check()
        return found

    try:
        vectors = reader(path, columns)
    except OSError as problem:
        raise InputError("cannot open the file", where=path, got=problem.strerror or str(problem)) from problem
    return Opened(file.key, vectors, digested, check, lambda: before)


def _check_dimensions(opened: Sequence[Opened]) -> None:
    first = opened[0]
    for part in opened[1:]:
        if part.vectors.dim != first.vectors.dim:
            got, expected = part.vectors.dim, f"{first.vectors.dim}, as in {first.key}"
            raise UsageError("vectors of another dimension", where=part.key, got=got, expected=expected)
