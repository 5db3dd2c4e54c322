"""What is collected of vectors that come from files, without a model: whole clouds, folds of them, partners, texts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.aligned import Aligned
from anisoscope.accumulate.blocks import rows_of
from anisoscope.accumulate.keys import GROUPS, Keys, group_of
from anisoscope.accumulate.moments import Moments
from anisoscope.accumulate.texts import Texts
from anisoscope.runs.work.blocks import Rows
from anisoscope.runs.work.collected import Collection

FOLDS = 4
TOKENS = "tokens"  # the texts of single vectors
LONGEST = 240  # characters of a text that are kept


def exact_rows(block: Rows) -> NDArray[np.floating]:
    """The vectors of a block; in float64 where they have groups.

    Shares of groups cut the rows otherwise than one pass does, and only float64 adds up to the last digits.
    """
    x = np.ascontiguousarray(block.x)
    return x if block.keys is None else x.astype(float)


class Clouds(Collection):
    """Moments by site."""

    kind = Moments


class AlignedClouds(Collection):
    """The sums of two clouds whose rows are partners."""

    kind = Aligned


class Folds(Clouds):
    """The moments of vectors in four folds, `fold.0` … `fold.3`; all rows of a sequence fall into one."""

    def __init__(self, **made: Any) -> None:
        super().__init__()
        self.made = made

    def add_rows(self, x: Any, keys: Keys, positions: NDArray[np.int64] | None, *, whole: bool = False) -> None:
        """Add vectors (n, d) of these sequences."""
        folds = group_of(keys, groups=GROUPS) % FOLDS
        for fold in np.unique(folds):
            mine = folds == fold
            name = f"fold.{fold}"
            if name not in self.parts:
                self.parts[name] = Moments(x.shape[1], **{**self.made, "reservoir": self.made["reservoir"] // FOLDS})
            at = None if positions is None else positions[mine]
            self.parts[name].update(rows_of(x, mine), sequences=keys[mine], positions=at, whole=whole)


class KeptTexts(Collection):
    """The texts of what reservoirs of the same seed, and of at most this capacity, hold."""

    kind = Texts

    def __init__(self, *, capacity: int = 4096, seed: int = 0) -> None:
        super().__init__()
        self.made = {"capacity": capacity, "seed": seed}

    def texts(self, key: str) -> Texts:
        return self.parts.setdefault(key, Texts(**self.made))


def excerpt(text: str) -> str:
    """The beginning of a long text."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
