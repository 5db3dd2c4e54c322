"""The cosines of all pairs in a sample, and the average cosine after the usual post-processing.

The average over all pairs of a cloud is a sum (`cosine`); its quantiles are not, so they come from a sample of vectors
x (m, d).

Cost: O(m²·d) time and 8 bytes per pair. Sources: centring and removing the top principal components, Mu & Viswanath,
ICLR 2018 ("all-but-the-top"). There the removal acts on *centred* vectors, as it does here; a widely copied gist
projects the uncentred ones, which is another thing.

>>> above_diagonal(cosines([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])).round(3).tolist()
[0.0, 0.707, 0.707]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from anisoscope.errors import UsageError
from anisoscope.geometry.cosine import mean_cosine
from anisoscope.geometry.rows import CACHED, as_rows, row_blocks, unit_rows

_SMALL = 256  # rows of a matrix of which all eigenvectors cost less than to import scipy.linalg for a few
_SHORT = 16.0  # how much larger the square of the mean may be than that of the shortest row
NOTHING_LEFT = 1e-10
"""A row this much shorter than the cloud's root mean square is what rounding left of a zero row."""


def centred_products(x: ArrayLike) -> np.ndarray:
    """The product of every two rows of x (m, d) less their mean, (m, m): distances and cosines follow from it."""
    rows = as_rows(x)
    centred = rows - rows.mean(axis=0)
    return centred @ centred.T


def cosines(x: ArrayLike, *, products: np.ndarray | None = None) -> np.ndarray:
    """The cosine of every two rows of x (m, d), (m, m); `products`, if given, is turned into them in place.

    Isotropic null: each follows `isotropic.cosine_density(c, d)` exactly, with mean 0 and sd 1/√d. With the mean μ,
    x·y = (x−μ)·(y−μ) + (x−μ)·μ + y·μ; beside rows far shorter than the mean that would cost digits, and the rows are
    multiplied instead.
    """
    rows = as_rows(x)
    mean, norms = rows.mean(axis=0), np.linalg.norm(rows, axis=1)
    if products is None or not mean @ mean <= _SHORT * norms.min(initial=np.inf) ** 2:
        units = unit_rows(rows)
        return units @ units.T
    along = rows @ mean
    for block in row_blocks(len(rows), len(rows), numbers=CACHED):
        part = products[block]
        part += along[None, :]
        part += (along[block] - mean @ mean)[:, None]
        part /= norms[block, None]
        part /= norms[None, :]
    return products


def above_diagonal(square: np.ndarray) -> np.ndarray:
    """The entries of a matrix (m, m) at i < j, row by row."""
    return np.concatenate([row[i + 1 :] for i, row in enumerate(square)])


def sorted_quantiles(values: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    """Quantiles of values in ascending order, as `np.quantile`, which would order them again.

    >>> sorted_quantiles(np.array([0.0, 1.0, 5.0]), [0.5, 0.75]).tolist()
    [1.0, 3.0]
    """
    place = np.asarray(levels) * (len(values) - 1)
    below = np.floor(place).astype(int)
    low, high = values[below], values[np.minimum(below + 1, len(values) - 1)]
    return low + (high - low) * (place - below)


def without_top(x: ArrayLike, k: int, *, centred: np.ndarray | None = None) -> np.ndarray:
    """Unit rows after centring and removing the top k principal components (k = 0 only centres).

    A row of which nothing is left is zero. Needs k < min(m − 1, d); `centred` is x less its mean, if already computed.
    Cost O(m·d·min(m, d)).
    """
    rows = as_rows(x)
    if k and not 0 < k < min(len(rows) - 1, rows.shape[1]):
        raise UsageError(
            "cannot remove that many principal components",
            got=f"k = {k} of {len(rows)} vectors in {rows.shape[1]} dimensions",
            expected="0 <= k < min(m - 1, d)",
        )
    left = rows - rows.mean(axis=0) if centred is None else centred
    if k:
        top = principal_directions(left, k)
        removed = (left @ top) @ top.T
        left = np.subtract(left, removed, out=removed)
    norms = np.sqrt(np.einsum("ij,ij->i", left, left))
    scale = np.sqrt(np.einsum("ij,ij->", rows, rows) / len(rows))
    return left * np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > NOTHING_LEFT * scale)[:, None]


def mean_cosine_of(units: np.ndarray) -> float | None:
    """Average cosine over all pairs of the rows that are not zero; missing where fewer than two are left.

    Of centred vectors, drift is gone, so what remains is shape: clusters and skew. Range [−1/(m−1), 1]; null ≈
    −1/(m−1), since centring makes m isotropic vectors that much opposed.

    >>> mean_cosine_of(without_top([[5.0, 1.0], [5.0, -1.0]], 0))
    -1.0
    >>> x = np.random.default_rng(0).normal(size=(400, 6)) + [9.0, 0, 0, 0, 0, 0]
    >>> abs(mean_cosine_of(without_top(x, 1))) < 0.01
    True
    """
    return mean_cosine(units.sum(axis=0), int(units.any(axis=1).sum()))


def principal_directions(centred: np.ndarray, k: int) -> np.ndarray:
    """The k directions of largest variance of centred rows, as orthonormal columns (d, k), largest first."""
    m, d = centred.shape
    small = centred @ centred.T if m < d else centred.T @ centred
    if len(small) <= _SMALL:
        vectors = np.linalg.eigh(small)[1][:, : -k - 1 : -1]
    else:
        from scipy.linalg import eigh

        vectors = eigh(small, subset_by_index=[len(small) - k, len(small) - 1])[1][:, ::-1]
    return np.linalg.qr(centred.T @ vectors)[0] if m < d else vectors
