"""What every reader of vectors makes of its file: a `VectorFile`, read in pieces that belong to chunks.

A *chunk* is the unit that workers share out: a row group of Parquet, a record batch of Arrow, a run of 8,192 rows of
anything else. Chunks depend on the file alone, never on the machine or on the size of blocks, and a piece never crosses
one. A chunk that is not wanted is passed over, but its rows are counted: the number of a row is its place in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

CHUNK = 8192  # rows of a chunk, where the format has no chunks of its own

Wanted = Callable[[int], bool]


class Rows(NamedTuple):
    """Consecutive vectors, with the sequence and the id of each where they were asked for."""

    x: np.ndarray  # (b, d) float32 or float64
    keys: list[str] | None = None
    ids: list[str] | None = None

    def part(self, start: int, stop: int) -> Rows:
        keys = None if self.keys is None else self.keys[start:stop]
        return Rows(self.x[start:stop], keys, None if self.ids is None else self.ids[start:stop])


class Piece(NamedTuple):
    """Rows of one chunk, or, with `rows` None, a chunk that was passed over."""

    chunk: int
    length: int
    rows: Rows | None


@dataclass(frozen=True, slots=True)
class VectorFile:
    """One opened file, or one array in memory.

    `read(rows, wanted)` streams all chunks in order, in pieces of at most `rows` rows. `rows` and `chunks` are None
    when only a pass can tell; `dtype` names the type that is stored; `notes` are words about how it was read.
    """

    dim: int
    rows: int | None
    chunks: int | None
    dtype: str
    read: Callable[[int, Wanted], Iterator[Piece]]
    notes: tuple[str, ...] = ()
    groups: bool = False  # whether chunks are the file's own (row groups, record batches), which can be read alone


def steps(length: int, rows: int) -> Iterator[tuple[int, int]]:
    """First and last row (exclusive) of each piece of at most `rows` rows that crosses no chunk.

    >>> list(steps(10_000, 5_000))
    [(0, 5000), (5000, 8192), (8192, 10000)]
    """
    for first in range(0, length, CHUNK):
        last = min(first + CHUNK, length)
        yield from ((start, min(start + rows, last)) for start in range(first, last, rows))


@dataclass(frozen=True, slots=True)
class Labels:
    """The sequence and the id of every row of a file that keeps them in arrays of their own."""

    keys: list[str] | None = None
    ids: list[str] | None = None

    def beside(self, x: np.ndarray, start: int) -> Rows:
        """The rows `x`, of which the first is number `start`, with their labels."""
        part = slice(start, start + len(x))
        return Rows(x, None if self.keys is None else self.keys[part], None if self.ids is None else self.ids[part])


def seekable(
    take: Callable[[int, int], np.ndarray], labels: Labels, *, dim: int, length: int, dtype: str
) -> VectorFile:
    """A file of which any rows can be taken alone: `take(start, stop)`."""

    def read(rows: int, wanted: Wanted) -> Iterator[Piece]:
        for start, stop in steps(length, rows):
            here = labels.beside(take(start, stop), start) if wanted(start // CHUNK) else None
            yield Piece(start // CHUNK, stop - start, here)

    return VectorFile(dim, length, count_chunks(length), dtype, read)


def count_chunks(length: int) -> int:
    return -(-length // CHUNK)


def cut(parts: Iterable[Rows], rows: int, wanted: Wanted) -> Iterator[Piece]:
    """A stream of rows as pieces of chunks of 8,192 rows. A part that fits is passed on uncopied."""
    held: list[Rows] = []
    place = count = 0  # rows before those that are held, and rows that are held
    for part in parts:
        done = 0
        while done < len(part.x):
            room = min(rows, CHUNK - place % CHUNK) - count
            held.append(part.part(done, done + room))
            done, count = done + room, count + len(held[-1].x)
            if len(held[-1].x) == room:
                yield _piece(held, place, count, wanted)
                held, place, count = [], place + count, 0
    if held:
        yield _piece(held, place, count, wanted)


def _piece(held: Sequence[Rows], place: int, count: int, wanted: Wanted) -> Piece:
    number = place // CHUNK
    return Piece(number, count, _join(held) if wanted(number) else None)


def _join(parts: Sequence[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    keys = None if parts[0].keys is None else [key for part in parts for key in part.keys or ()]
    ids = None if parts[0].ids is None else [name for part in parts for name in part.ids or ()]
    return Rows(np.concatenate([part.x for part in parts]), keys, ids)
