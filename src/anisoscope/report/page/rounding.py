"""Numbers as the page keeps them: rounded to what an eye can see, missing where they are not finite."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def rounded_list(array: NDArray[Any], digits: int = 4) -> Any:
    """Nested lists of numbers with so many significant digits.

    >>> rounded_list(np.array([[1 / 3, np.nan]]))
    [[0.3333, None]]
    """
    if array.ndim > 1:
        return [rounded_list(part, digits) for part in array]
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in array.tolist()]


def short(value: Any) -> Any:
    """Six significant digits, and no `.0` at the end.

    >>> short(0.12345678), short(3.0), short(float("nan")), short(None)
    (0.123457, 3, None, None)
    """
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
