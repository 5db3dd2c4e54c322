"""Intervals for what comes from the reservoir: a bootstrap over sequences.

Whole sequences are drawn with replacement, so that the correlation of tokens within a text is respected. A statistic
takes the weights of the points (how often each point's sequence was drawn) and not the points again: distances and
neighbours are computed once and held fixed, which also keeps a resampled point from becoming its own neighbour.
Cost: B evaluations of the weighted statistic, vectorised over a (B, m) matrix of weights.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

DRAWS = 400
FEWEST_SEQUENCES = 8

Array = NDArray[np.float64]


def sequence_weights(keys: NDArray[np.uint64], *, draws: int = DRAWS, seed: int = 0) -> Array | None:
    """How often each point is drawn, (draws, m): a multinomial over sequences; None with fewer than eight sequences."""
    unique, sequence_of = np.unique(keys, return_inverse=True)
    if len(unique) < FEWEST_SEQUENCES:
        return None
    counts = np.random.default_rng(seed).multinomial(len(unique), np.full(len(unique), 1 / len(unique)), size=draws)
    return counts[:, sequence_of].astype(float)


def bootstrap(
    statistic: Callable[[Array], Array], weights: Array | None, full: float | None, *, level: float = 0.95
) -> tuple[float | None, float | None]:
    """Low and high of a statistic of weights, by the normal interval around the full value.

    The spread of the draws is used and not their quantiles: with neighbours held fixed the draws are centred slightly
    off the full value, and an interval must hold the value that it belongs to.

    >>> keys = np.repeat(np.arange(50, dtype=np.uint64), 4)
    >>> x = np.random.default_rng(1).standard_normal(50).repeat(4)
    >>> low, high = bootstrap(lambda w: (w @ x) / w.sum(1), sequence_weights(keys), float(x.mean()))
    >>> bool(low < x.mean() < high and 0.4 < high - low < 0.7)
    True
    """
    if weights is None or full is None:
        return None, None
    values = np.asarray(statistic(weights), float)
    values = values[np.isfinite(values)]
    if len(values) < len(weights) // 2:
        return None, None
    from scipy.special import ndtri

    reach = float(ndtri(0.5 + level / 2) * values.std(ddof=1))
    return full - reach, full + reach
