"""Sums of the passes: each is a collection that can be saved within a pass, merged and read again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.accumulate.attention.rows import Rows
from anisoscope.accumulate.keys import GROUPS
from anisoscope.accumulate.moments import Moments
from anisoscope.runs.work.collected import Accumulator, Collection


@dataclass
class VectorSum:
    """A sum of `n` vectors (of any shape), in float64."""

    total: Tensor
    n: int

    def mean(self) -> Tensor:
        return (self.total / self.n).float()

    def merge(self, other: VectorSum) -> None:
        self.total, self.n = self.total + other.total, self.n + other.n

    def state(self) -> dict[str, Tensor]:
        return {"total": self.total, "n": torch.tensor([self.n])}

    @classmethod
    def from_state(cls, state: Mapping[str, NDArray]) -> Self:
        return cls(torch.from_numpy(state["total"]), int(state["n"][0]))


class Scores:
    """What the tokens that are asked for cost, by jackknife group; the change is that of the untouched model's loss."""

    NAMES = ("tokens", "loss", "change", "kl")

    def __init__(self) -> None:
        self.sums = {name: torch.zeros(GROUPS, dtype=torch.float64) for name in self.NAMES}

    def add(self, group: int, **numbers: float) -> None:
        for name, number in numbers.items():
            self.sums[name][group] += number

    def merge(self, other: Scores) -> None:
        self.sums = {name: mine + other.sums[name] for name, mine in self.sums.items()}

    def state(self) -> dict[str, Tensor]:
        return dict(self.sums)

    @classmethod
    def from_state(cls, state: Mapping[str, NDArray]) -> Self:
        found = cls()
        found.sums = {name: torch.from_numpy(state[name]) for name in cls.NAMES}
        return found


_KINDS = {"state": Moments, "rows": Rows, "scores": Scores}


class Sums(Collection):
    """Accumulators by `place/kind`: moments of states, attention rows, scores; sums of vectors under other kinds."""

    def __init__(self, about: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._about = about or {}

    def read(self, key: str, state: Mapping[str, NDArray]) -> Accumulator:
        return _KINDS.get(key.rpartition("/")[2], VectorSum).from_state(state)

    def of(self, kind: str) -> dict[str, Any]:
        """The accumulators of a kind, by place."""
        return {place: part for key, part in self.parts.items() for place, _, k in [key.rpartition("/")] if k == kind}

    def about(self) -> dict[str, Any]:
        return {"protocol": {}, "sites": [], "notes": [], **self._about}
