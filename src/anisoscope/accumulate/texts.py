"""The texts of sampled vectors: what stood at the positions that a reservoir of the same seed and capacity holds.

A reservoir chooses by sequence, position and seed alone, so a second one can hold texts instead of vectors, and both
choose the same positions in any split of the data. Texts are asked for only where they stay.
Memory O(capacity) texts; time O(1) amortised per position once it is full.

>>> texts = Texts(capacity=2)
>>> texts.offer(np.arange(9, dtype=np.uint64), np.zeros(9, np.int64), lambda row: f"row {row}")
>>> len(texts.kept), texts.of(np.array([99], np.uint64), np.array([0]))
(2, [None])
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.keys import Keys, priority


class Texts:
    """Keep the texts of the `capacity` positions of smallest hashed priority."""

    def __init__(self, *, capacity: int, seed: int = 0) -> None:
        self.capacity, self.seed = capacity, seed
        self.kept: dict[tuple[int, int], tuple[int, str]] = {}  # (key, position) → (priority, text)
        self._highest: int | None = None  # priority of the last one kept, once it is full

    def offer(self, keys: Keys, positions: NDArray[np.int64], text: Callable[[int], str]) -> None:
        """Consider the positions of these sequences; `text(row)` gives the text of one."""
        ranks = priority(keys, positions, seed=self.seed)
        wanted = np.arange(len(keys)) if self._highest is None else np.flatnonzero(ranks < np.uint64(self._highest))
        wanted = wanted[np.argsort(ranks[wanted], kind="stable")][: self.capacity]
        for row in wanted.tolist():
            self.kept[int(keys[row]), int(positions[row])] = int(ranks[row]), text(row)
        self._cut()

    def _cut(self) -> None:
        if len(self.kept) >= self.capacity:
            lowest = sorted(self.kept.items(), key=lambda item: (item[1][0], item[0]))[: self.capacity]
            self.kept, self._highest = dict(lowest), lowest[-1][1][0]

    def merge(self, other: Texts) -> None:
        self.kept |= other.kept
        self._cut()

    def of(self, keys: Keys, positions: NDArray[np.int64]) -> list[str | None]:
        """The text of each position, None where none is kept."""
        places = zip(keys.tolist(), positions.tolist(), strict=True)
        return [self.kept[place][1] if place in self.kept else None for place in places]

    def state(self) -> dict[str, NDArray]:
        packed = json.dumps([text for _, text in self.kept.values()], ensure_ascii=False).encode()
        return {
            "keys": np.array([key for key, _ in self.kept], np.uint64).view(np.int64),
            "positions": np.array([place for _, place in self.kept], np.int64),
            "texts": np.frombuffer(packed, np.uint8),
            "meta": np.array([self.capacity, self.seed]),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Texts:
        capacity, seed = (int(value) for value in state["meta"])
        texts, told = cls(capacity=capacity, seed=seed), json.loads(bytes(state["texts"]).decode())
        keys, positions = state["keys"].view(np.uint64), state["positions"]
        texts.offer(keys, positions, lambda row: str(told[row]))
        return texts
