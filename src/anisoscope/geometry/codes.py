"""Vectors in fewer bits: uniform codes of 8 and 4 bits, and signs.

A uniform code of b bits has 2^b levels of one width around a centre; a value is replaced by the middle of its level,
and what lies outside goes to the last one. Two ways to choose the width:

- `dimension_grid`: one range for each dimension, as in FAISS and sentence-transformers: centre the mean, width the
  one that loses least of a Gaussian (Max 1960): 0.3352 sd for 4 bits, 0.0308 sd for 8, so a range of ±2.7 and ±3.9 sd;
- `round_vectors`: one scale for each vector, its largest entry over 2^(b−1) − 1, as in caches of keys.

>>> grid = dimension_grid(np.array([[0.0, 5.0], [2.0, 5.0]]), 4)
>>> grid.round(np.array([[0.0, 5.0], [9.0, 5.0]])).round(2).tolist()  # 9 is outside; the second dimension is constant
[[0.16, 5.0], [3.51, 5.0]]
>>> round_vectors(np.array([[7.0, 3.4, 0.2]]), 4).tolist()
[[7.0, 3.0, 0.0]]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

CODES = {"float32": 32, "int8": 8, "int4": 4, "binary": 1}
"""Bits of a dimension under each code."""
STEPS = {4: 0.3352, 8: 0.0308}
"""Width of a level, in standard deviations, that loses least of a Gaussian."""


@dataclass(frozen=True)
class Grid:
    """A uniform code of every dimension: the middle of its range, and the width of a level."""

    centre: NDArray[np.float32]  # (d,)
    width: NDArray[np.float32]  # (d,)
    bits: int

    def round(self, x: NDArray[np.floating]) -> NDArray[np.floating]:
        """The rows x (m, d) as they are read back from their codes."""
        z = (x - self.centre) / np.where(self.width > 0, self.width, 1)
        half = 2 ** (self.bits - 1)
        levels = np.clip(np.floor(z), -half, half - 1) + np.float32(0.5)
        return levels * self.width + self.centre


def dimension_grid(x: ArrayLike, bits: int) -> Grid:
    """The uniform code with this many bits that fits the dimensions of the rows x (m, d)."""
    rows = np.asarray(x, np.float64)
    centre, spread = rows.mean(0), rows.std(0)
    return Grid(centre.astype(np.float32), (STEPS[bits] * spread).astype(np.float32), bits)


def round_vectors(x: NDArray[np.floating], bits: int) -> NDArray[np.floating]:
    """Vectors x (…, d) as they are read back from codes with one scale each; a zero vector stays."""
    scale = np.abs(x).max(-1, keepdims=True) / (2 ** (bits - 1) - 1)
    return np.round(x / np.where(scale > 0, scale, 1)) * scale
