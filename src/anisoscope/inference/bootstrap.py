"""Intervals for what comes from the reservoir: a bootstrap over sequences.

Whole sequences are drawn with replacement, so that the correlation of tokens within a text is respected. A statistic
takes the weights of the points (how often each point's sequence was drawn) and not the points again: distances and
neighbours are computed once and held fixed, which also keeps a resampled point from becoming its own neighbour.
Points of one sequence have the same weight, so that sums over points need only their sums over sequences (`Draws`).
Cost: B evaluations of the weighted statistic, vectorised over a (B, m) matrix of weights, or (B, S) for S sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

DRAWS = 400
FEWEST_SEQUENCES = 8

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Draws:
    """How often each sequence was drawn, `counts` (B, S), and the number of each point's sequence, `of` (m,)."""

    counts: Array
    of: NDArray[np.int64]

    @cached_property
    def weights(self) -> Array:
        """How often each point was drawn, (B, m)."""
        return self.counts[:, self.of]

    def sums(self, x: Array) -> Array:
        """Σ over the drawn points of x (m, …): (B, …)."""
        count = self.counts.shape[1]
        if count == len(self.of):  # every point is a sequence of its own
            return self.weights @ x
        order = np.argsort(self.of, kind="stable")
        starts = np.searchsorted(self.of[order], np.arange(1, count))
        return self.counts @ np.stack([x[points].sum(0) for points in np.split(order, starts)])

    def pair_sums(self, kernel: Array) -> Array:
        """Σ over pairs of drawn points of a kernel (m, m), pairs of a point with itself left out: (B,)."""
        own = np.square(self.weights) @ np.diag(kernel)
        return np.einsum("bm,bm->b", self.sums(kernel), self.weights) - own


def sequence_draws(keys: NDArray[np.uint64], *, draws: int = DRAWS, seed: int = 0) -> Draws | None:
    """A multinomial over sequences; None with fewer than eight of them."""
    unique, of = np.unique(keys, return_inverse=True)
    if len(unique) < FEWEST_SEQUENCES:
        return None
    counts = np.random.default_rng(seed).multinomial(len(unique), np.full(len(unique), 1 / len(unique)), size=draws)
    return Draws(counts.astype(float), of)


def bootstrap(
    statistic: Callable[[Draws], Array], draws: Draws | None, full: float | None, *, level: float = 0.95
) -> tuple[float | None, float | None]:
    """Low and high of a statistic of the draws, by the normal interval around the full value.

    The spread of the draws is used and not their quantiles: with neighbours held fixed the draws are centred slightly
    off the full value, and an interval must hold the value that it belongs to.

    >>> keys = np.repeat(np.arange(50, dtype=np.uint64), 4)
    >>> x = np.random.default_rng(1).standard_normal(50).repeat(4)
    >>> low, high = bootstrap(lambda draws: draws.sums(x) / draws.weights.sum(1), sequence_draws(keys), float(x.mean()))
    >>> bool(low < x.mean() < high and 0.4 < high - low < 0.7)
    True
    """
    if draws is None or full is None:
        return None, None
    values = np.asarray(statistic(draws), float)
    values = values[np.isfinite(values)]
    if len(values) < len(draws.counts) // 2:
        return None, None
    from scipy.special import ndtri

    reach = float(ndtri(0.5 + level / 2) * values.std(ddof=1))
    return full - reach, full + reach
