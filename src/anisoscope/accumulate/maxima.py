"""Running maxima: the largest activation of every dimension, the greatest logit of every head, and where they were.

A maximum merges like a sum: that of two sets is the greater of their maxima, so chunks, shards and processes combine in
any order. Equal maxima are told apart by where they were (the smallest sequence key, then the positions).

`Extremes` holds the largest |x| of each dimension of a cloud. Where it was is looked up only in the dimensions whose
maximum rises, and only in the blocks of rows that hold it, so that most rows cost no more than their greatest entries.
The greatest logits are in `attention.peaks`.

Memory O(d), constant in the corpus; time two passes over activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.blocks import Block, array_of, is_tensor
from anisoscope.accumulate.keys import Keys
from anisoscope.accumulate.threads import by_slices
from anisoscope.errors import StoreError

_BLOCK = 128  # rows that are looked through at a time: they stay in the cache
_WIDE = 65_536  # dimensions of flattened maps, of which there are few
_COLUMNS = 2**14  # of those at a time
Vectors = NDArray[np.floating]


class Running:
    """Arrays by name: `greatest` (m,) with the `where` (m, 3) of each and what goes with it, and plain sums."""

    follows: tuple[str, ...] = ()  # arrays whose rows belong to a maximum

    def __init__(self, m: int, arrays: Mapping[str, NDArray] | None = None) -> None:
        nowhere = np.full((m, 3), np.iinfo(np.int64).max)
        self.arrays: dict[str, NDArray] = {"greatest": np.full(m, -np.inf), "where": nowhere, **(arrays or {})}

    def take(self, found: Mapping[str, NDArray]) -> None:
        """Take over each maximum that is greater, or equal and earlier."""
        mine, theirs = self.arrays["greatest"], found["greatest"]
        better, tied = theirs > mine, theirs == mine
        if tied.any():
            better |= tied & _earlier(found["where"], self.arrays["where"])
        for name in ("greatest", "where", *self.follows):
            self.arrays[name][better] = found[name][better]

    def merge(self, other: Running) -> None:
        shapes = [{name: array.shape for name, array in one.arrays.items()} for one in (self, other)]
        if shapes[0] != shapes[1]:
            raise StoreError("cannot join the maxima of other shapes", got=shapes[1], expected=shapes[0])
        self.take(other.arrays)
        for name in self.arrays.keys() - {"greatest", "where", *self.follows}:
            self.arrays[name] += other.arrays[name]

    def state(self) -> dict[str, NDArray]:
        return dict(self.arrays)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        made = cls.__new__(cls)
        made.arrays = {name: np.array(array) for name, array in state.items()}
        return made


class Extremes(Running):
    """The largest |x| of each dimension, and where it was (sequence, position)."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        return super().from_state({name: state[name] for name in ("greatest", "where")})

    def update(self, x: Block, sequences: Keys, positions: NDArray[np.int64]) -> None:
        """Add finite vectors x (n, d) of the given sequences and positions."""
        if not len(x):
            return
        columns = np.arange(x.shape[1])
        if is_tensor(x):  # only dimensions whose maximum rises come down from an accelerator
            columns = np.flatnonzero(array_of(x.abs().amax(0)) >= self.arrays["greatest"])
            x = array_of(x[:, columns.tolist()])
        if len(columns):
            find = _tops_of_few if x.shape[1] > _WIDE else _tops
            owner, top, row = find(x, self.arrays["greatest"][columns], sequences, positions)
            self._take_at(columns[owner], top.astype(float), _places(row, sequences, positions))

    def _take_at(self, columns: NDArray[np.int64], greatest: NDArray, where: NDArray[np.int64]) -> None:
        """Take over maxima of some dimensions."""
        some = Extremes.from_state({name: array[columns] for name, array in self.arrays.items()})
        some.take({"greatest": greatest, "where": where})
        for name, array in some.arrays.items():
            self.arrays[name][columns] = array


Tops = tuple[NDArray[np.int64], Vectors, NDArray[np.int64]]
"""Dimensions (m,), the largest |x| of each, and the row that holds it: of several the earliest."""


def _places(row: NDArray[np.int64], sequences: Keys, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack([sequences.view(np.int64)[row], positions[row], np.zeros(len(row), np.int64)], 1)


def _tops(x: Vectors, before: NDArray, sequences: Keys, positions: NDArray[np.int64]) -> Tops:
    """The tops of dimensions that are no less than `before`."""
    peaks = _peaks(x)
    top = peaks.max(0)
    rising = np.flatnonzero(top >= before)
    blocks, place = np.nonzero(peaks[:, rising] == top[rising])  # most have one block
    owner = rising[place]
    numbers, counts = np.unique(blocks, return_counts=True)
    parts = zip(numbers.tolist(), np.split(owner, np.cumsum(counts)), strict=False)
    found = [_rows_of(x, some, top[some], number, sequences, positions) for number, some in parts]
    row = np.concatenate(found) if found else np.zeros(0, np.int64)
    if len(owner) > len(rising):  # the same in several blocks: the earliest
        order = np.lexsort((positions[row], sequences.view(np.int64)[row], owner))
        owner, first = np.unique(owner[order], return_index=True)
        row = row[order[first]]
    return owner, top[owner], row


def _tops_of_few(x: Vectors, before: NDArray, sequences: Keys, positions: NDArray[np.int64]) -> Tops:
    """The same for few rows of many dimensions: each row meets the maxima of those before it, in order of places, by
    blocks that stay in the cache.
    """
    order = np.lexsort((positions, sequences.view(np.int64)))
    top, row = np.full(x.shape[1], -1.0, x.dtype), np.zeros(x.shape[1], np.int64)
    room, higher = np.empty(_COLUMNS, x.dtype), np.empty(_COLUMNS, bool)
    for start in range(0, x.shape[1], _COLUMNS):
        columns = slice(start, start + _COLUMNS)
        best, holder = top[columns], row[columns]
        size, above = room[: len(best)], higher[: len(best)]
        for number in order.tolist():
            np.abs(x[number, columns], out=size)
            holder[np.greater(size, best, out=above)] = number
            np.maximum(best, size, out=best)
    risen = np.flatnonzero(top >= before)
    return risen, top[risen], row[risen]


def _rows_of(
    x: Vectors, columns: NDArray[np.int64], top: Vectors, block: int, sequences: Keys, positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The row of a block that holds the largest |x| of each of some dimensions; of several the earliest."""
    start, rows = block * _BLOCK, slice(block * _BLOCK, (block + 1) * _BLOCK)
    marked = np.abs(x[rows] if len(columns) == x.shape[1] else x[rows][:, columns]) == top
    if int(np.count_nonzero(marked)) == len(columns):
        return start + marked.argmax(0)
    order = np.lexsort((positions[rows], sequences[rows].view(np.int64)))
    return start + order[marked[order].argmax(0)]


def _peaks(x: Vectors) -> Vectors:
    """The largest |x| of each dimension in each block of rows, (blocks, d)."""
    peaks = np.empty((-(-len(x) // _BLOCK), x.shape[1]), x.dtype)

    def look(some: slice) -> None:
        room = np.empty((min(_BLOCK, len(x)), x.shape[1]), x.dtype)
        for number in range(some.start, some.stop):
            rows = x[number * _BLOCK : (number + 1) * _BLOCK]
            np.abs(rows, out=room[: len(rows)]).max(0, out=peaks[number])

    by_slices(look, len(peaks))
    return peaks


def _earlier(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each row of integers a (m, k) comes before that of b in lexical order."""
    first = (a != b).argmax(1)[:, None]
    return (np.take_along_axis(a, first, 1) < np.take_along_axis(b, first, 1))[:, 0]
