"""Rows of an array: checked, as unit vectors, and in blocks that fit in memory.

>>> [len(range(100)[block]) for block in row_blocks(100, 1_000_000, numbers=40_000_000)]
[40, 40, 20]
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from anisoscope.errors import InputError

BLOCK_NUMBERS = 4_000_000
"""Float64 numbers in one block: 32 MB."""
CACHED = 2**17
"""Float64 numbers that stay in the cache."""


def as_rows(x: ArrayLike) -> np.ndarray:
    """`x` as a finite float64 array of shape (m, d), or an `InputError` that says what is wrong with it."""
    rows = np.asarray(x, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise InputError("vectors must be the rows of a matrix", got=f"shape {rows.shape}", expected="shape (m, d)")
    if not np.isfinite(rows).all():
        bad = int((~np.isfinite(rows)).any(axis=1).sum())
        raise InputError("some vectors are not finite", got=f"{bad} of {len(rows)} rows", do="leave those rows out")
    return rows


def unit_rows(x: ArrayLike) -> np.ndarray:
    """Each row divided by its norm, in float64. A zero row has no direction and is refused."""
    rows = as_rows(x)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if not norms.all():
        zeros = int((norms == 0).sum())
        raise InputError("a zero vector has no direction", got=f"{zeros} zero rows", do="leave those rows out")
    return rows / norms


def row_blocks(rows: int, width: int, *, numbers: int = BLOCK_NUMBERS) -> Iterator[slice]:
    """Slices that cover range(rows) in order, each of at most `numbers` numbers when a row needs `width` of them."""
    step = max(1, numbers // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def largest(values: np.ndarray, k: int) -> np.ndarray:
    """The columns of the k largest numbers of each row of values (m, n), in no order: (m, k).

    >>> largest(np.array([[0.0, 2.0, 1.0], [5.0, 3.0, 4.0]]), 1).tolist()
    [[1], [0]]
    """
    blocks = row_blocks(*values.shape, numbers=CACHED)
    return np.concatenate([np.argpartition(-values[block], k - 1, axis=1)[:, :k] for block in blocks])


def in_span(x: ArrayLike) -> np.ndarray:
    """The rows of x (m, d) in an orthonormal basis of their span, (m, m): norms, cosines and distances stay the same.

    For few vectors of many dimensions. x is read in blocks of columns, so that no float64 copy of it is made; equal
    rows stay exactly equal. Cost O(m²·d), error a few ε of the norms.

    >>> x = np.random.default_rng(0).standard_normal((3, 1000))
    >>> y = in_span(x)
    >>> y.shape, bool(np.allclose(y @ y.T, x @ x.T))
    ((3, 3), True)
    """
    rows = np.asarray(x)
    m, d = rows.shape
    triangle = np.zeros((0, m))
    for block in row_blocks(d, m, numbers=max(CACHED, 2 * m * m)):  # columns are turned one by one: from the cache
        triangle = np.asarray(np.linalg.qr(np.concatenate([triangle, rows[:, block].T]), mode="r"))
    first: dict[bytes, int] = {}
    return triangle.T[[first.setdefault(row.tobytes(), number) for number, row in enumerate(rows)]]
