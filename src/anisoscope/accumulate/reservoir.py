"""A seeded, mergeable sample of whole vectors, for whatever cannot be a sum (neighbours, quantiles, bootstraps).

Every vector has a priority that depends only on its sequence, its position and the seed; the reservoir holds the
`capacity` vectors of smallest priority. That is a uniform sample without replacement, and the union of two reservoirs
cut back to `capacity` is the reservoir of the union: any split of the data gives the same set.
Memory O(capacity · d), float32; time O(1) amortised a vector once it is full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope.accumulate.keys import Keys, priority

CAPACITY = 4096
_BYTES = 256 * 2**20  # of vectors at most: flattened maps have d in the hundreds of thousands


@dataclass(frozen=True)
class Sample:
    """The vectors of a reservoir, in order of priority (so a prefix is itself a uniform sample)."""

    x: NDArray[np.float32]  # (m, d)
    keys: Keys  # (m,)
    positions: NDArray[np.int64]  # (m,)
    first: NDArray[np.bool_]  # (m,)

    def __len__(self) -> int:
        return len(self.keys)

    def where(self, kept: NDArray[np.bool_]) -> Sample:
        return Sample(self.x[kept], self.keys[kept], self.positions[kept], self.first[kept])


class Reservoir:
    """Keep the `capacity` vectors of smallest hashed priority.

    >>> a, b, whole = Reservoir(2, capacity=3), Reservoir(2, capacity=3), Reservoir(2, capacity=3)
    >>> x, keys = torch.randn(10, 2), np.arange(10, dtype=np.uint64)
    >>> a.offer(x[:4], keys[:4]); b.offer(x[4:], keys[4:]); whole.offer(x, keys); a.merge(b)
    >>> a.sample().keys.tolist() == whole.sample().keys.tolist()
    True
    """

    def __init__(self, d: int, *, capacity: int = CAPACITY, seed: int = 0) -> None:
        self.d, self.seed = d, seed
        self.capacity = max(1, min(capacity, _BYTES // (4 * d))) if capacity else 0
        self._chunks: list[tuple[Keys, NDArray[np.float32], Keys, NDArray[np.int64], NDArray[np.bool_]]] = []
        self._held = 0
        self._threshold = np.uint64(2**64 - 1)

    def offer(
        self,
        x: torch.Tensor,
        keys: Keys,
        positions: NDArray[np.int64] | None = None,
        first: NDArray[np.bool_] | None = None,
    ) -> None:
        """Consider the vectors x (n, d) of the given sequences and positions."""
        if not self.capacity or not len(keys):
            return
        positions = np.zeros(len(keys), dtype=np.int64) if positions is None else positions
        first = np.zeros(len(keys), dtype=bool) if first is None else first
        priorities = priority(keys, positions, seed=self.seed)
        chosen = np.flatnonzero(priorities <= self._threshold)
        if not len(chosen):
            return
        vectors = x[torch.from_numpy(chosen).to(x.device)].detach().to("cpu", torch.float32).numpy()
        self._chunks.append((priorities[chosen], vectors, keys[chosen], positions[chosen], first[chosen]))
        self._held += len(chosen)
        if self._held > 2 * self.capacity:
            self._compact()

    def _compact(self) -> None:
        if not self._chunks:
            return
        priorities, x, keys, positions, first = (np.concatenate(column) for column in zip(*self._chunks, strict=True))
        order = np.lexsort((positions, keys, priorities))[: self.capacity]
        self._chunks = [(priorities[order], x[order], keys[order], positions[order], first[order])]
        self._held = len(order)
        if self._held == self.capacity:
            self._threshold = priorities[order[-1]]

    def merge(self, other: Reservoir) -> None:
        """Add what another reservoir of the same seed saw."""
        self._chunks += other._chunks
        self._held += other._held
        self._compact()

    def sample(self) -> Sample:
        """What is held, in order of priority."""
        self._compact()
        if not self._chunks:
            nothing = np.zeros(0, dtype=np.int64)
            return Sample(np.zeros((0, self.d), np.float32), nothing.astype(np.uint64), nothing, nothing.astype(bool))
        _, x, keys, positions, first = self._chunks[0]
        return Sample(x, keys, positions, first)

    def state(self) -> dict[str, torch.Tensor]:
        sample = self.sample()
        return {
            "x": torch.from_numpy(sample.x),
            "keys": torch.from_numpy(sample.keys.view(np.int64)),
            "positions": torch.from_numpy(sample.positions),
            "first": torch.from_numpy(sample.first),
            "meta": torch.tensor([self.d, self.capacity, self.seed]),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, torch.Tensor]) -> Reservoir:
        d, capacity, seed = (int(value) for value in state["meta"])
        reservoir = cls(d, capacity=capacity, seed=seed)
        keys = state["keys"].numpy().view(np.uint64)
        reservoir.offer(state["x"], keys, state["positions"].numpy(), state["first"].numpy())
        return reservoir
