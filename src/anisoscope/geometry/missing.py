"""How an undefined number leaves a formula.

A metric is a ratio, and where its denominator is zero (one vector, no such pair, no variance) there is nothing to
report. For one cloud that is `None`. For a stack of clouds (leading axes, as the jackknife passes) the answer is an
array, which has no `None`: there, and only there, a missing entry is NaN.

>>> ratio(1.0, 0.0) is None
True
>>> ratio(np.array([1.0, 3.0]), np.array([0.0, 2.0]))
array([nan, 1.5])
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = Any
"""`float | None` for one cloud, a float64 array (NaN where missing) for a stack: the axes decide, as in numpy."""


def settle(values: ArrayLike) -> Values:
    """The number itself, `None` if it is not finite; an array keeps its shape, with NaN for whatever is not finite."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0:
        return float(array) if np.isfinite(array) else None
    return np.where(np.isfinite(array), array, np.nan)


def geometric_mean(first: ArrayLike, second: ArrayLike) -> NDArray[np.float64]:
    """√(first·second); NaN where a leave-one-out value is below zero, as beside a vector that outweighs all others."""
    with np.errstate(invalid="ignore"):
        return np.sqrt(np.asarray(first, np.float64) * np.asarray(second, np.float64))


def ratio(numerator: ArrayLike, denominator: ArrayLike) -> Values:
    """numerator / denominator, missing where the denominator is zero. Broadcasts."""
    above, below = np.broadcast_arrays(np.asarray(numerator, np.float64), np.asarray(denominator, np.float64))
    return settle(np.divide(above, below, out=np.full(below.shape, np.nan), where=below != 0))
