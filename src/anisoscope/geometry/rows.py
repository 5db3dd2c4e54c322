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
"""Float64 numbers that stay in the processor's cache: 1 MB."""
_ALIKE = 1e4  # of the eigenvalues of a Gram matrix: the smallest keep twelve digits


def as_rows(x: ArrayLike) -> np.ndarray:
    """`x` as a finite float64 array of shape (m, d), or an `InputError` that says what is wrong with it."""
    rows = np.asarray(x, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise InputError("vectors must be the rows of a matrix", got=f"shape {rows.shape}", expected="shape (m, d)")
    if not np.isfinite(rows).all():
        bad = int((~np.isfinite(rows)).any(axis=1).sum())
        raise InputError("some vectors are not finite", got=f"{bad} of {len(rows)} rows", do="leave out those rows")
    return rows


def unit_rows(x: ArrayLike) -> np.ndarray:
    """Each row divided by its norm, in float64. A zero row has no direction and is refused."""
    rows = as_rows(x)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if not norms.all():
        zeros = int((norms == 0).sum())
        raise InputError("a zero vector has no direction", got=f"{zeros} zero rows", do="leave out those rows")
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
    rows stay exactly equal. Where the Gram matrix has all its digits (its eigenvalues lie within a factor of 1e4) it
    is one symmetric product, and inner products are right to a few ε of the norms; else the columns are turned one by
    one, several times slower, and coordinates are. Cost O(m²·d).

    >>> x = np.random.default_rng(0).standard_normal((3, 1000))
    >>> y = in_span(x)
    >>> y.shape, bool(np.allclose(y @ y.T, x @ x.T))
    ((3, 3), True)
    """
    rows = np.asarray(x)
    m, d = rows.shape
    first = _first_equal(rows)
    blocks = list(row_blocks(d, m, numbers=max(CACHED, 2 * m * m)))
    if np.array_equal(first, np.arange(m)):
        gram = sum((part @ part.T for part in (rows[:, block].astype(float) for block in blocks)), np.zeros((m, m)))
        values = np.linalg.eigvalsh(gram)
        if _ALIKE * values[0] > values[-1]:
            return np.linalg.cholesky(gram)
    triangle = np.zeros((0, m))
    for block in blocks:  # columns are turned one by one: from the cache
        triangle = np.asarray(np.linalg.qr(np.concatenate([triangle, rows[:, block].T]), mode="r"))
    return triangle.T[first]


def _first_equal(rows: np.ndarray) -> np.ndarray:
    """For each row the first one that is equal to it. A few columns tell most of them apart."""
    found, alike = np.arange(len(rows)), {}
    for number, some in enumerate(rows[:, :: max(1, rows.shape[1] // 64)]):
        earlier = alike.setdefault(some.tobytes(), [])
        found[number] = next((one for one in earlier if np.array_equal(rows[one], rows[number])), number)
        earlier += [number] * bool(found[number] == number)
    return found


def middle_pair(rows: np.ndarray, place: int) -> tuple[np.ndarray, np.ndarray]:
    """The entries at `place` − 1 and `place` of each row (m, k), if it were sorted. Rows are contiguous and their
    entries are reordered. Entries are non-negative floats or −∞: those compare like integers, which are selected in two
    thirds of the time.

    >>> [float(one[0]) for one in middle_pair(np.array([[0.5, 0.1, 0.3, 0.2]], np.float32), 2)]
    [0.20000000298023224, 0.30000001192092896]
    """
    bits = rows.view(f"i{rows.itemsize}")
    bits.partition(place, axis=-1)
    return bits[:, :place].max(-1).view(rows.dtype), rows[:, place]


def distinct_rows(x: np.ndarray) -> np.ndarray:
    """The places of the rows that repeat none before them, in order.

    >>> distinct_rows(np.array([[1.0, 0.0], [2.0, 0.0], [1.0, -0.0]])).tolist()
    [0, 1]
    """
    seen: dict[bytes, int] = {}
    for place, row in enumerate(x):
        seen.setdefault((row + 0.0).tobytes(), place)
    return np.array(list(seen.values()), dtype=np.int64)
