"""Which sequences of a cloud are unfinished: a sequence may arrive in pieces, and its energy ‖Σu‖² needs all of them.

An unfinished ("open") sequence costs two vectors, the unit sums of its first position and of the rest. No more than
`limit` are open at a time: the one that waited longest is finished when another comes. The keys of the last 16,384
finished sequences are remembered, so that a late piece is refused instead of counted as a sequence of its own; of
sequences finished before those nothing is known any more. Rows that come without a sequence are numbered, and the
numbers are remembered as ranges. So memory is constant in the number of sequences: O(limit · d).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.keys import Keys
from anisoscope.errors import InputError, UsageError

REMEMBERED = 16_384  # keys of finished sequences, and ranges of numbered rows
_AT_ONCE = 512

Array = NDArray[np.float64]
Finished = tuple[Keys, Array, NDArray[np.int64]]
"""Keys (S,), unit sums (S, 2, d) and counts (S, 2) of some sequences; `rest` comes before `first`."""


class Piece:
    """What has come of a sequence that may still go on: one row for `rest`, one for `first`."""

    __slots__ = ("arrived", "counts", "sums")

    def __init__(self, d: int) -> None:
        self.sums = np.zeros((2, d))
        self.counts = np.zeros(2, dtype=np.int64)
        self.arrived = 0


class Sequences:
    """The unfinished sequences of a cloud, the keys of those finished lately, and the ranges of numbered rows."""

    def __init__(self, d: int, *, limit: int) -> None:
        self.d, self.limit = d, limit
        self.open: OrderedDict[int, Piece] = OrderedDict()
        self._closed: dict[int, None] = {}  # in order of closing
        self._numbered: list[tuple[int, int]] = []

    def number(self, n: int, start: int | None) -> Keys:
        """The numbers of n rows that have no sequence, which are their keys; from `start`, or after the highest."""
        start = (self._numbered[-1][1] if self._numbered else 0) if start is None else start
        if n:
            self._numbered = joined(self._numbered, [(start, start + n)])
        return np.arange(start, start + n, dtype=np.uint64)

    def check(self, keys: Keys) -> None:
        """Refuse a piece of a sequence that was finished."""
        if self._closed and not self._closed.keys().isdisjoint(np.unique(keys).tolist()):
            raise self._too_late()

    def arrivals(self, sequences: Keys, *, whole: bool) -> NDArray[np.int64]:
        """Order of arrival within each sequence, going on from what an open sequence has already seen."""
        positions = np.empty(len(sequences), dtype=np.int64)
        order = np.argsort(sequences, kind="stable")
        keys, starts, counts = np.unique(sequences[order], return_index=True, return_counts=True)
        positions[order] = np.arange(len(sequences)) - np.repeat(starts, counts)
        if not whole:
            pieces = [self.open.setdefault(key, Piece(self.d)) for key in keys.tolist()]
            positions[order] += np.repeat(np.array([piece.arrived for piece in pieces], dtype=np.int64), counts)
            for piece, count in zip(pieces, counts.tolist(), strict=True):
                piece.arrived += count  # also what is left out later: a place in the sequence stays a place
        return positions

    def add(self, keys: Keys, unit: Array, counts: NDArray[np.int64], *, whole: bool) -> Iterator[Finished]:
        """Take pieces in, unit sums (S, 2, d) and counts (S, 2); what is finished by that comes back."""
        names = keys.tolist()
        if whole and self.open.keys().isdisjoint(names):
            self._remember(names)
            yield keys, unit, counts
            return
        for key, sums, n in zip(names, unit, counts, strict=True):
            piece = self.open.get(key) or Piece(self.d)
            piece.sums += sums
            piece.counts += n
            self.open[key] = piece
            self.open.move_to_end(key)
        yield from self.finish(names if whole else self._beyond_limit())

    def finish(self, keys: Iterable[int]) -> Iterator[Finished]:
        """Take these sequences out of the open ones."""
        names = list(keys)
        pieces = {key: self.open.pop(key) for key in names}
        self._remember(names)
        yield from self.stacked(pieces)

    def stacked(self, pieces: Mapping[int, Piece]) -> Iterator[Finished]:
        """Pieces as arrays, some at a time."""
        everything = iter(pieces.items())
        while some := list(islice(everything, _AT_ONCE)):
            keys = np.array([key for key, _ in some], dtype=np.uint64)
            sums, counts = (np.stack([getattr(piece, name) for _, piece in some]) for name in ("sums", "counts"))
            yield keys, sums, counts

    def _beyond_limit(self) -> list[int]:
        return list(islice(self.open, max(0, len(self.open) - self.limit)))

    def _remember(self, closed: Iterable[int]) -> None:
        self._closed |= dict.fromkeys(closed)
        for key in list(islice(self._closed, max(0, len(self._closed) - REMEMBERED))):
            del self._closed[key]

    def check_merge(self, other: Sequences) -> None:
        """Refuse what would count a sequence or a row twice; changes nothing."""
        joined(self._numbered, other._numbered)
        seen = self._closed.keys() | self.open.keys()
        if (other._closed.keys() & seen) or (self._closed.keys() & other.open.keys()):
            raise self._too_late()

    def merge(self, other: Sequences) -> Iterator[Finished]:
        """Add the open sequences of another; what is beyond the limit then comes back as finished."""
        self._numbered = joined(self._numbered, other._numbered)
        for key, theirs in other.open.items():
            piece = self.open.setdefault(key, Piece(self.d))
            piece.sums += theirs.sums
            piece.counts += theirs.counts
            piece.arrived += theirs.arrived
        self._remember(other._closed)
        yield from self.finish(self._beyond_limit())

    def state(self) -> dict[str, NDArray]:
        pieces = list(self.open.values())
        counts = [[*map(int, piece.counts), piece.arrived] for piece in pieces]
        return {
            "open.keys": _int64(self.open),
            "open.sums": np.stack([piece.sums for piece in pieces]) if pieces else np.zeros((0, 2, self.d)),
            "open.counts": np.array(counts, dtype=np.int64).reshape(-1, 3),
            "closed.keys": _int64(self._closed),
            "numbered": np.array(self._numbered, dtype=np.int64).reshape(-1, 2),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], d: int, *, limit: int) -> Self:
        found = cls(d, limit=limit)
        columns = (np.asarray(state[f"open.{name}"]) for name in ("keys", "sums", "counts"))
        for key, sums, counts in zip(*columns, strict=True):
            piece = found.open[int(key.view(np.uint64))] = Piece(d)
            piece.sums += sums
            piece.counts += counts[:2]
            piece.arrived = int(counts[2])
        found._remember(np.asarray(state["closed.keys"]).view(np.uint64).tolist())
        if "numbered" in state:  # runs of earlier versions have none
            found._numbered = [(start, stop) for start, stop in np.asarray(state["numbered"]).tolist()]
        return found

    def _too_late(self) -> InputError:
        return InputError(
            "a sequence arrived in pieces too far apart",
            got="a piece of a sequence that was already closed",
            expected=f"the pieces of a sequence within {self.limit} sequences of each other, and in one shard",
            do="sort the rows by sequence (group), or give each shard whole sequences",
        )


def joined(ranges: list[tuple[int, int]], more: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of rows together, touching ones made one; refuses rows that are in both. The highest 16,384 are kept.

    >>> joined([(0, 5)], [(9, 12), (5, 9)]), joined([(8, 9)], [(0, 2)])
    ([(0, 12)], [(0, 2), (8, 9)])
    """
    found: list[tuple[int, int]] = []
    for start, stop in sorted([*ranges, *more]):
        if found and start < found[-1][1]:
            raise UsageError(
                "the same rows would be counted twice",
                got=f"rows {start} to {min(stop, found[-1][1]) - 1} in two places",
                expected="numbers of rows that differ between shards, where vectors have no sequences",
                do="give `start`, the number of the first row over all shards, or `sequences`, to every update",
            )
        if found and start == found[-1][1]:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found[-REMEMBERED:]


def _int64(keys: Iterable[int]) -> NDArray[np.int64]:  # as earlier versions wrote them; the bits are kept
    return np.array(list(keys), dtype=np.uint64).view(np.int64)
