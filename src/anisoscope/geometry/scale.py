"""Numbers whose squares float64 cannot hold (beyond 1e±140): divide by a scale first, multiply by it after.

>>> x = np.array([3e200, 4e200])
>>> scale = scale_of(np.abs(x).max())
>>> round(float(np.linalg.norm(x / scale) * scale / 1e200), 12), float(scale_of(5.0))
(5.0, 1.0)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

SAFE = (1e-140, 1e140)


def scale_of(largest: ArrayLike) -> NDArray[np.float64]:
    """What to divide by, from the largest magnitude: itself where its square is lost, else 1, which changes nothing."""
    value = np.asarray(largest, np.float64)
    lost = (value > 0) & (value < SAFE[0]) | (value > SAFE[1]) & np.isfinite(value)
    return np.where(lost, value, 1.0)
