"""Two clouds beside each other: how far apart, how alike in shape, and, where rows are partners, how alike in detail.

From sums alone, for clouds x and y with means μ, ν, unit vectors u, v, covariances A, B and cross covariance C:

| quantity | formula | source |
|---|---|---|
| gap | ‖μ − ν‖, or of the mean unit vectors | Liang et al. 2022, "Mind the gap" |
| cosine between | Σu·Σv / (n·m); p partners left out: (Σu·Σv − Σuᵢ·vᵢ) / (n·m − p) | |
| overlap of axes | ‖UᵀV‖²/k for the k top principal axes U, V | |
| linear CKA | ‖C‖² / (‖A‖·‖B‖) | Kornblith et al. 2019 |
| Procrustes distance | 2 − 2·‖C‖₁ / √(tr A · tr B), ‖·‖₁ the nuclear norm | Ding et al. 2021 |

The first two work over leading axes, as the jackknife needs. The last two do not see rotation and scale.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anisoscope.geometry.missing import Values, geometric_mean, ratio
from anisoscope.geometry.rows import largest

Array = NDArray[np.float64]


def gap(first: ArrayLike, n: ArrayLike, second: ArrayLike, m: ArrayLike) -> Values:
    """Distance of the means of two clouds, from their sums (..., d) and counts (...).

    >>> gap([3.0, 0.0], 3, [0.0, 2.0], 2) == 2**0.5
    True
    """
    apart = np.asarray(first) / np.asarray(n, float)[..., None] - np.asarray(second) / np.asarray(m, float)[..., None]
    return ratio(np.linalg.norm(apart, axis=-1), np.ones(apart.shape[:-1]))


def cosine_between(
    first: ArrayLike, n: ArrayLike, second: ArrayLike, m: ArrayLike, partners: ArrayLike = 0.0, p: ArrayLike = 0
) -> Values:
    """Average cosine of a vector of one cloud and one of the other, from sums of unit vectors (..., d).

    `partners` is the sum of the cosines of the `p` pairs of rows that belong together, which are left out.

    >>> cosine_between([2.0, 0.0], 2, [1.0, 1.0], 2), cosine_between([2.0, 0.0], 2, [1.0, 1.0], 2, 1.0, 2)
    (0.5, 0.5)
    """
    total = (np.asarray(first) * np.asarray(second)).sum(-1)
    return ratio(total - np.asarray(partners), np.asarray(n, float) * np.asarray(m, float) - np.asarray(p, float))


def axes_overlap(first: Array, second: Array, k: int) -> float:
    """Share of the k top principal axes (d, ≥ k) that two clouds have in common, 0 to 1; by chance k/d."""
    return float(np.square(first[:, :k].T @ second[:, :k]).sum() / k)


def linear_cka(cross: ArrayLike, first: ArrayLike, second: ArrayLike) -> Values:
    """From the squared Frobenius norms (...) of the cross covariance and of both covariances; 1 for the same shape."""
    return ratio(cross, geometric_mean(first, second))


def unrelated_cka(first: Array, second: Array, n: int) -> float | None:
    """The linear CKA of n rows of clouds with these covariances that have nothing to do with each other.

    >>> round(unrelated_cka(np.eye(4), np.eye(4), 101), 6)
    0.04
    """
    norms = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(np.trace(first) * np.trace(second)) / ((n - 1) * norms) if n > 1 and norms > 0 else None


def procrustes_distance(nuclear: ArrayLike, first: ArrayLike, second: ArrayLike) -> Values:
    """From the nuclear norm of the cross covariance and both traces (...): 0 for the same shape, 2 for none shared."""
    alike = ratio(nuclear, geometric_mean(first, second))
    return None if alike is None else 2 - 2 * alike


def nearest_by_cosine(unit: Array, k: int) -> NDArray[np.int64]:
    """The k rows of the highest cosine with each row of unit vectors (m, d), itself left out, in no order: (m, k)."""
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    return largest(cosines, k)


def shared_neighbours(first: NDArray[np.int64], second: NDArray[np.int64]) -> Array:
    """The share of each row's neighbours (m, k) that are neighbours in both clouds, (m,).

    >>> shared_neighbours(np.array([[1, 2]]), np.array([[2, 3]])).tolist()
    [0.5]
    """
    return (first[:, :, None] == second[:, None, :]).any(2).sum(1) / max(1, first.shape[1])
