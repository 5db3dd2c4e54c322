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

    @cached_property
    def _points(self) -> list[NDArray[np.int64]]:
        """The points of each sequence."""
        sizes = np.bincount(self.of, minlength=self.counts.shape[1])
        return np.split(np.argsort(self.of, kind="stable"), np.cumsum(sizes)[:-1])

    def sums(self, x: Array) -> Array:
        """Σ over the drawn points of x (m, …): (B, …)."""
        if self.counts.shape[1] == len(self.of):  # every point is a sequence of its own
            return self.weights @ x
        return self.counts @ np.stack([x[points].sum(0) for points in self._points])

    def totals(self, points: Array | None = None) -> tuple[Array, Array]:
        """Σ over drawn points (m,) of what each counts, 1 by default, times how often, and its square: (B,) each."""
        sizes = np.bincount(self.of, points, minlength=self.counts.shape[1]).astype(float)
        return self.counts @ sizes, np.square(self.counts) @ sizes

    def pair_sums(self, matrix: Array, kernel: Callable[[Array], Array]) -> Array:
        """Σ over pairs of different drawn points of a function of their entry in a matrix (m, m): (B,).

        The rows of a sequence stay in the cache and are added up first, unless there are more sequences than draws.
        """
        if self.counts.shape[1] < len(self.counts):
            along = self.counts @ np.stack([kernel(matrix[points]).sum(0) for points in self._points])
        else:
            along = self.weights @ kernel(matrix)
        own = np.square(self.weights) @ kernel(np.diag(matrix))
        return np.einsum("bm,bm->b", along, self.weights) - own


def sequence_draws(keys: NDArray[np.uint64], *, draws: int = DRAWS, seed: int = 0) -> Draws | None:
    """A multinomial over sequences; None with fewer than eight of them."""
    unique, of = np.unique(keys, return_inverse=True)
    if len(unique) < FEWEST_SEQUENCES:
        return None
    counts = np.random.default_rng(seed).multinomial(len(unique), np.full(len(unique), 1 / len(unique)), size=draws)
    return Draws(counts.astype(float), of)


def bootstrap(
    statistic: Callable[[Draws], Array], draws: Draws | None, full: float | None
) -> tuple[float | None, float | None]:
    """Low and high of the 95 % interval of a statistic of the draws, by the normal interval around the full value.

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

    reach = float(ndtri(0.975) * values.std(ddof=1))
    return full - reach, full + reach
