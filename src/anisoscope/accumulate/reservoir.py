"""A seeded, mergeable sample of whole vectors, for whatever cannot be a sum (neighbours, quantiles, bootstraps).

Every vector has a priority that depends only on its sequence, its position and the seed; the reservoir holds the
`capacity` vectors of smallest priority. That is a uniform sample without replacement, and the union of two reservoirs
cut back to `capacity` is the reservoir of the union: any split of the data gives the same set.
Memory O(capacity · d), float32; time O(1) amortised per vector once it is full. float64 vectors that float32 cannot
hold (entries beyond 3e38, or none above 1e-30) are counted and left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.blocks import Block, array_of, block_of, is_tensor, rows_of
from anisoscope.accumulate.keys import Keys, priority
from anisoscope.accumulate.sums import Sample
from anisoscope.geometry.rows import CACHED, row_blocks

CAPACITY = 4096
_BYTES = 256 * 2**20  # of vectors at most: flattened maps have d in the hundreds of thousands
_FLOAT32 = (1e-30, 3e38)  # largest entries of vectors that float32 holds to its full precision


class Reservoir:
    """Keep the `capacity` vectors of smallest hashed priority.

    >>> a, b, whole = Reservoir(2, capacity=3), Reservoir(2, capacity=3), Reservoir(2, capacity=3)
    >>> x, keys = np.random.default_rng(0).standard_normal((10, 2)), np.arange(10, dtype=np.uint64)
    >>> a.offer(x[:4], keys[:4]); b.offer(x[4:], keys[4:]); whole.offer(x, keys); a.merge(b)
    >>> a.sample().keys.tolist() == whole.sample().keys.tolist()
    True
    """

    def __init__(self, d: int, *, capacity: int = CAPACITY, seed: int = 0) -> None:
        self.d, self.seed = d, seed
        self.capacity = max(1, min(capacity, _BYTES // (4 * d))) if capacity else 0
        self._x = np.empty((self.capacity, d), np.float32)  # pages that are never written cost nothing
        self._priorities = np.empty(0, np.uint64)
        self._keys, self._positions = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._first = np.empty(0, bool)
        self._lent = False  # whether somebody reads these vectors: then they are not written to
        self.unfit = 0  # vectors that float32 cannot hold

    def offer(
        self,
        x: Any,
        keys: Keys,
        positions: NDArray[np.int64] | None = None,
        first: NDArray[np.bool_] | None = None,
    ) -> None:
        """Consider the vectors x (n, d), an array or a tensor, of the given sequences and positions."""
        if not self.capacity or not len(keys):
            return
        positions = np.zeros(len(keys), dtype=np.int64) if positions is None else positions
        first = np.zeros(len(keys), dtype=bool) if first is None else first
        x = block_of(x)
        fits = self._fits(x)
        if not fits.all():
            x, keys = rows_of(x, fits), keys[fits]
            positions, first = positions[fits], first[fits]
        priorities = priority(keys, positions, seed=self.seed)
        full = len(self._priorities) == self.capacity
        chosen = np.flatnonzero(priorities <= self._priorities.max()) if full else np.arange(len(keys))
        if len(chosen):
            self._take(x, chosen, priorities[chosen], keys[chosen], positions[chosen], first[chosen])

    def _fits(self, x: Block) -> NDArray[np.bool_]:
        """Which vectors float32 can hold; the others are counted."""
        if x.itemsize <= 4:
            return np.ones(len(x), bool)
        largest = array_of(x.abs().amax(1)) if is_tensor(x) else np.maximum(x.max(1), -x.min(1))
        fits = (largest > _FLOAT32[0]) & (largest < _FLOAT32[1])
        self.unfit += int((~fits).sum())
        return fits

    def _take(
        self,
        x: Block,
        rows: NDArray[np.int64],
        priorities: Keys,
        keys: Keys,
        positions: NDArray[np.int64],
        first: NDArray[np.bool_],
    ) -> None:
        """Keep the smallest of what is held and of these; newcomers are written where others leave."""
        held = len(self._priorities)
        priorities, keys = np.concatenate([self._priorities, priorities]), np.concatenate([self._keys, keys])
        positions, first = np.concatenate([self._positions, positions]), np.concatenate([self._first, first])
        order = self._smallest(priorities, keys, positions)
        stays = np.zeros(held, dtype=bool)
        stays[order[order < held]] = True
        new = np.sort(order[order >= held])
        slots = np.concatenate([np.flatnonzero(~stays), np.arange(held, len(order))])
        if self._lent and len(slots):
            room = np.empty_like(self._x)
            room[:held] = self._x[:held]
            self._x, self._lent = room, False
        taken = rows_of(x, rows[new - held])
        self._x[slots] = array_of(taken.float() if is_tensor(taken) else taken)
        source = np.arange(len(order))  # which of the joined columns each slot now holds
        source[slots] = new
        self._priorities, self._keys = priorities[source], keys[source]
        self._positions, self._first = positions[source], first[source]

    def _smallest(self, priorities: Keys, keys: Keys, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places of the `capacity` smallest priorities, in order; equal ones in order of keys and positions."""
        near = np.arange(len(priorities))
        if len(near) > self.capacity:
            near = np.flatnonzero(priorities <= np.partition(priorities, self.capacity - 1)[self.capacity - 1])
        return near[np.lexsort((positions[near], keys[near], priorities[near]))][: self.capacity]

    def merge(self, other: Reservoir) -> None:
        """Add what another reservoir of the same seed saw."""
        theirs = other.sample()
        self.unfit += other.unfit
        self.offer(theirs.x, theirs.keys, theirs.positions, theirs.first)

    def sample(self) -> Sample:
        """What is held, in order of priority. The vectors are not copied unless more are taken after this."""
        order = np.lexsort((self._positions, self._keys, self._priorities))
        if not np.array_equal(order, np.arange(len(order))):
            self._sort(order)
        self._lent = True
        return Sample(self._x[: len(order)], self._keys, self._positions, self._first)

    def _sort(self, order: NDArray[np.int64]) -> None:
        """Put what is held into this order, one block of columns after the other. (What is lent is in order.)"""
        for block in row_blocks(self.d, len(order), numbers=CACHED):
            self._x[: len(order), block] = self._x[order, block]
        self._priorities, self._keys = self._priorities[order], self._keys[order]
        self._positions, self._first = self._positions[order], self._first[order]

    def state(self) -> dict[str, NDArray]:
        sample = self.sample()
        return {
            "x": sample.x,
            "keys": sample.keys.view(np.int64),
            "positions": sample.positions,
            "first": sample.first,
            "meta": np.array([self.d, self.capacity, self.seed, self.unfit]),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Reservoir:
        d, capacity, seed, *unfit = (int(value) for value in state["meta"])
        reservoir = cls(d, capacity=capacity, seed=seed)
        reservoir.unfit = unfit[0] if unfit else 0  # runs of earlier versions did not count them
        x, keys, positions, first = (np.asarray(state[name]) for name in ("x", "keys", "positions", "first"))
        reservoir.offer(x, keys.view(np.uint64), positions, first)
        return reservoir


def under(prefix: str, state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arrays whose names begin with a prefix, without it."""
    return ((name.removeprefix(prefix), array) for name, array in state.items() if name.startswith(prefix))
