"""Local geometry from nearest neighbours in a sample: intrinsic dimension and hubness.

One pass (`nearest`) gives the distances and the indices from which everything else follows:

- TwoNN (Facco et al., Sci. Rep. 2017): μ = r_2/r_1 follows a Pareto law with exponent the dimension;
- maximum likelihood (Levina & Bickel, NeurIPS 2004), pooled over points as MacKay & Ghahramani proposed;
- hubness (Radovanović et al., JMLR 2010): skewness of how often a point is among the k nearest of others.

A point that coincides with another has no ratio of distances; it is left out, and `duplicates` counts such points.
Coinciding is to be nearer than a ten-thousandth of the median r_1: what a model makes of one text in two batches
differs by rounding, and the ratio to a distance of rounding errors would outweigh all others. All of these depend on
the scale of sampling: m Gaussian vectors in R^768 look far less than 768-dimensional, so compare with
`isotropic.neighbour_null` at the same m and d.

Cost: O(m²·d) time in blocks of 32 MB; then O(m·k).

>>> grid = np.stack(np.meshgrid(np.arange(3.0), np.arange(3.0)), axis=-1).reshape(-1, 2)
>>> distances, indices = nearest(grid, 2)
>>> distances[4], sorted(indices[0].tolist())
(array([1., 1.]), [1, 3])
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from anisoscope.errors import UsageError
from anisoscope.geometry.missing import settle
from anisoscope.geometry.rows import CACHED, as_rows, row_blocks

SPARE = 8
"""Candidates beyond k that the fast search hands on, so that rounding cannot change the k nearest."""

DISCARDED = 0.1
COINCIDING = 1e-4
_CLOSE = 2.0**-6  # below this share of (‖x‖ + ‖y‖)², a squared distance from products has lost digits


def nearest(x: ArrayLike, k: int, *, products: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Euclidean distances (m, k), ascending, to the k nearest other rows of x (m, d), and their indices (m, k). Exact.

    Candidates come from ‖x‖² + ‖y‖² − 2x·y on the centred cloud (one matrix product; `products` (m, m), if already
    computed). Rows whose candidates are so near, to them or to each other, that rounding could be seen (1e−12 of a
    distance) are computed again as ‖x − y‖, so that a drift of 1e4 or a pair of near-duplicates costs no digits.
    Candidates tied at one distance come in the order of their indices. Only where more than k + 8 points lie within
    1e−8 of the cloud's radius of each other may one be taken for another.
    """
    rows = as_rows(x)
    m, d = rows.shape
    if not 1 <= k < m:
        raise UsageError("cannot find that many neighbours", got=f"k = {k} among {m} vectors", expected="1 <= k < m")
    centred = rows - rows.mean(axis=0) if products is None else rows[:0]
    squares = np.einsum("ij,ij->i", centred, centred) if products is None else np.diag(products).copy()
    candidates = min(k + SPARE, m - 1)
    near, distances = np.empty((m, candidates), dtype=np.int64), np.empty((m, candidates))
    for block in row_blocks(m, m, **({} if products is None else {"numbers": CACHED})):
        score = (centred[block] @ centred.T if products is None else products[block]) * -2  # (rows, m)
        score += squares
        np.fill_diagonal(score[:, block.start :], np.inf)
        near[block] = np.sort(np.argpartition(score, candidates - 1, axis=1)[:, :candidates], axis=1)
        distances[block] = np.take_along_axis(score, near[block], axis=1) + squares[block, None]
    again = np.flatnonzero(_unsure(distances, squares, near, k, d))
    np.sqrt(np.maximum(distances, 0, out=distances), out=distances)
    for block in row_blocks(len(again), candidates * d, numbers=CACHED):
        apart = rows[near[again[block]]]
        apart -= rows[again[block], None]
        distances[again[block]] = np.sqrt(np.einsum("nkd,nkd->nk", apart, apart))
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(near, order, axis=1)


def _unsure(found: np.ndarray, squares: np.ndarray, near: np.ndarray, k: int, d: int) -> np.ndarray:
    """Rows (m,) whose squared distances to candidates (m, c) rounding may have moved by 2e−12, or past one another.

    A product of d terms is off by about √d·ε of the norms, eight times that here.
    """
    scale = np.square(np.sqrt(squares) + np.sqrt(squares[near].max(axis=1)))
    ordered = np.sort(found, axis=1)[:, : k + 1]
    apart = np.diff(ordered, axis=1).min(axis=1, initial=np.inf)
    return (ordered[:, 0] <= _CLOSE * scale) | (apart <= 16 * d**0.5 * np.finfo(float).eps * scale)


def duplicates(distances: ArrayLike) -> int:
    """Number of points that coincide with their nearest neighbour: left out of the dimensions below.

    >>> duplicates([[0.0, 1.0], [2.0, 3.0], [1e-7, 2.0]])
    2
    """
    return int((~_apart(distances)).sum())


def _apart(distances: ArrayLike) -> np.ndarray:
    """Which points (m,) do not coincide with their nearest, by its distance beside the median of those above 0."""
    first = np.asarray(distances, np.float64)[:, 0]
    positive = first[first > 0]
    return first > COINCIDING * np.median(positive) if len(positive) else np.zeros(len(first), bool)


def twonn_point_terms(distances: ArrayLike) -> np.ndarray:
    """log(r_2/r_1) of every point, shape (m,), NaN for a duplicated point.

    A bootstrap over points with their neighbours kept counts these terms differently in `twonn_weighted`.
    """
    first, second = np.asarray(distances, np.float64)[:, :2].T
    usable = _apart(distances)
    return np.log(second, out=np.full(len(first), np.nan), where=usable) - np.log(
        first, out=np.zeros(len(first)), where=usable
    )


def twonn_weighted(terms: np.ndarray, often: np.ndarray, *, discard: float = DISCARDED) -> np.ndarray:
    """Slopes through the origin of −log(1 − i/N) on log ratios (m,) in ascending order, NaN last, (B,).

    Each ratio counts as many times as `often` (B, m) says, N in all; the largest `discard` of them do not count. NaN
    where fewer than two are left, or all are 0. A ratio at ranks a + 1 … b adds itself times Σ −log(1 − i/N) over them.
    """
    ratios = terms[: np.searchsorted(terms, np.inf, side="right")]
    ranks = np.cumsum(often[:, : len(ratios)], axis=1, dtype=np.int64)  # the last rank of each ratio
    n = ranks[:, -1:] if len(ratios) else np.zeros((len(often), 1), np.int64)
    kept = (n * (1 - discard)).astype(np.int64)
    ranks = np.minimum(ranks, kept)
    counts, of = np.unique(n, return_inverse=True)  # many draws have as many points: one row of levels for them
    share = np.arange(kept.max(initial=0) + 1) / np.maximum(counts, 1)[:, None]
    levels = np.cumsum(-np.log1p(-np.where(share < 1, share, 0.0)), axis=1)  # up to each rank
    across = np.diff(levels[of.reshape(-1, 1), ranks], axis=1, prepend=0.0) @ ratios
    squares = np.diff(ranks, axis=1, prepend=0) @ np.square(ratios)
    usable = (kept[:, 0] >= 2) & (squares > 0)
    return np.divide(across, squares, out=np.full(len(often), np.nan), where=usable)


def twonn(distances: ArrayLike, *, discard: float = DISCARDED) -> float | None:
    """TwoNN intrinsic dimension from the two smallest distances of each point, (m, ≥ 2).

    Range (0, ∞). The linear fit of Facco et al. with the top 10 % of the ratios discarded, as scikit-dimension's
    `TwoNN()`. Missing with fewer than two usable points, or if the neighbours are all tied.

    >>> points = np.random.default_rng(0).uniform(size=(2000, 2))
    >>> round(twonn(nearest(points, 2)[0]), 1)
    2.0
    """
    terms = np.sort(twonn_point_terms(distances))
    return settle(twonn_weighted(terms, np.ones((1, len(terms)), np.int64), discard=discard)[0])


def mle_point_terms(distances: ArrayLike, k: int) -> np.ndarray:
    """Inverse local dimension of every point: the mean over j < k of log(r_k/r_j), shape (m,), NaN for a duplicate."""
    near = np.asarray(distances, dtype=np.float64)
    if not 2 <= k <= near.shape[1]:
        raise UsageError("there are not that many neighbours", got=f"k = {k}", expected=f"2 <= k <= {near.shape[1]}")
    usable = _apart(near)
    logs = np.log(near[:, :k], out=np.full((len(near), k), np.nan), where=usable[:, None])
    return (logs[:, -1:] - logs[:, :-1]).mean(axis=1)


def mle_dimension(distances: ArrayLike, k: int) -> float | None:
    """Levina–Bickel maximum-likelihood dimension from the k nearest distances: the inverse of the mean inverse.

    Range (0, ∞). Convention: the k−1 ratios to the k-th distance, divided by k−1 (not the k−2 that would be unbiased at
    one point), and points pooled by averaging 1/dimension (MacKay & Ghahramani). That is scikit-dimension's
    `MLE().fit(x, n_neighbors=k)` with its defaults. Distances, not their squares: squares would halve the answer.

    >>> points = np.random.default_rng(0).uniform(size=(2000, 2))
    >>> round(mle_dimension(nearest(points, 20)[0], 20), 1)  # the edges of the square pull it down
    1.9
    """
    terms = mle_point_terms(distances, k)
    terms = terms[~np.isnan(terms)]
    mean = float(terms.mean()) if len(terms) else 0.0
    return 1.0 / mean if mean > 0 else None


def hubness(indices: ArrayLike, m: int, *, k: int = 10) -> float | None:
    """Skewness of the k-occurrence: how often each of m points is among the k nearest of another.

    0 for a symmetric spread; large when a few hubs are near to everything. It grows with the dimension even for an
    isotropic cloud: read it against `isotropic.neighbour_null`. Missing if all counts are equal. As scikit-hubness's
    "k-skewness" (the population skewness).

    >>> round(hubness([[1], [0], [0], [0]], 4, k=1), 3)
    0.816
    """
    near = np.asarray(indices)
    if not 1 <= k <= near.shape[1]:
        raise UsageError("there are not that many neighbours", got=f"k = {k}", expected=f"1 <= k <= {near.shape[1]}")
    return skewness(np.bincount(near[:, :k].ravel(), minlength=m))


def skewness(counts: ArrayLike) -> float | None:
    """The population skewness; None where all are equal.

    >>> round(skewness([3, 1, 0, 0]) or 0, 3)
    0.816
    """
    values = np.asarray(counts, np.float64)
    deviation = values - values.mean()
    variance = float(np.square(deviation).mean())
    return float((deviation**3).mean()) / variance**1.5 if variance > 0 else None
