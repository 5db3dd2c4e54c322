"""The geometry of queries and keys: do their means agree, and what can that do to attention?

A head scores a pair by q·k. With Q̄, K̄ the mean query and key and δ the deviations from them,

    q·k = Q̄·K̄ + δq·K̄ + Q̄·δk + δq·δk.

Softmax runs over keys and drops whatever does not depend on the key: the first two terms. So the alignment of the
means, cos(Q̄, K̄), measures the drift that Godey et al. found to grow in training, but the mean key by itself cannot
sharpen attention (with rotary positions that holds for the rotated vectors only, and never under a soft cap).
What the drift of the queries can do is the third term, a **salience** of each key that no query has a say in; the
fourth is **content**. `split_variance` weighs the two by the variance that they give the scores of a row.

Directions: the eigenvectors of a second moment Σxxᵀ are the right singular vectors of the stacked x, so the SVD of a
union of clouds (all steps, queries and keys) is the eigendecomposition of one d×d sum; no vector has to be stored.

Cost: O(d³) per head for directions, O(d²) for the rest. As everywhere, leading axes are heads or jackknife groups.
Sources: Godey et al., EACL 2024, section 5; Q-Filters, Godey et al. 2025 (arXiv 2503.02812).

>>> query_key_cosine(np.array([2.0, 0.0]), np.array([-3.0, 0.0])), cosine_null_sd(64)
(-1.0, 0.125)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anisoscope.errors import InputError
from anisoscope.geometry.missing import Values, ratio, settle

Array = NDArray[np.float64]


def query_key_cosine(sum_query: ArrayLike, sum_key: ArrayLike) -> Values:
    """cos(Q̄, K̄), from the sums or the means of the two clouds (..., d). Missing if either is zero.

    Range [−1, 1]. Null for unrelated directions: mean 0, sd 1/√d (`cosine_null_sd`).
    """
    query, key = np.asarray(sum_query, np.float64), np.asarray(sum_key, np.float64)
    return ratio(_dot(query, key), np.sqrt(_dot(query, query) * _dot(key, key)))


def query_key_dot(sum_query: ArrayLike, queries: ArrayLike, sum_key: ArrayLike, keys: ArrayLike) -> Values:
    """⟨Q̄, K̄⟩, unscaled: multiply by the head's scale for its part in the scores. Null 0. Missing without vectors.

    >>> query_key_dot(np.array([4.0, 0.0]), 2, np.array([3.0, 1.0]), 1)
    6.0
    """
    counts = np.asarray(queries, np.float64) * np.asarray(keys, np.float64)
    return ratio(_dot(np.asarray(sum_query, np.float64), np.asarray(sum_key, np.float64)), counts)


def cosine_null_sd(d: int) -> float:
    """Standard deviation of the cosine of two unrelated isotropic directions in R^d."""
    return float(d) ** -0.5


# -- what the scores of a row vary by ----------------------------------------------------------------------------------


class ScoreVariance(NamedTuple):
    """Within-row variance of the scores and its parts; `total` = `salience` + `content` + `cross`."""

    total: Values
    salience: Values
    content: Values
    cross: Values
    share: Values


def split_variance(
    within: ArrayLike, spread: ArrayLike, spread_query: ArrayLike, sum_query: ArrayLike, n: ArrayLike
) -> ScoreVariance:
    """Split the mean within-row variance of the scores into salience, content and their covariance.

    Row i sees a set of keys with covariance C_i (in units of score: keys times the head's scale), so its scores vary by
    q_iᵀC_iq_i. With q_i = Q̄ + δq_i, averaged over the n rows,

        salience = Q̄ᵀ(ΣC_i)Q̄/n,    cross = 2·Q̄ᵀ(ΣC_iq_i)/n − 2·salience,    content = total − salience − cross,

    from four sums: `within` = Σq_iᵀC_iq_i (...), `spread` = ΣC_i (..., d, d), `spread_query` = ΣC_iq_i (..., d) and
    `sum_query` = Σq_i (..., d). None of them needs Q̄ in advance. `share` = salience/(salience + content), in [0, 1];
    null 1/n, the share of the mean of n independent queries without drift.

    >>> split_variance(1.0, np.eye(2), np.array([1.0, 0.0]), np.array([1.0, 0.0]), 1).share  # one row: all salience
    1.0
    """
    count = np.asarray(n, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.asarray(sum_query, np.float64) / count[..., None]
        total = np.asarray(within, np.float64) / count
        salience = np.einsum("...i,...ij,...j->...", mean, np.asarray(spread, np.float64), mean) / count
        cross = 2 * _dot(mean, np.asarray(spread_query, np.float64)) / count - 2 * salience
    content = np.maximum(total - salience - cross, 0.0)  # a variance: what is below zero is rounding
    share = ratio(salience, salience + content)
    return ScoreVariance(settle(total), settle(salience), settle(content), settle(cross), share)


class LogitParts(NamedTuple):
    """What a score is made of; the first two are the same for every key of a row, so softmax does not see them."""

    means: Values
    query: Values
    salience: Values
    content: Values


def split_logit(query: ArrayLike, key: ArrayLike, mean_query: ArrayLike, mean_key: ArrayLike) -> LogitParts:
    """A score q·k as Q̄·K̄ + δq·K̄ + Q̄·δk + δq·δk, with q = Q̄ + δq and k = K̄ + δk, over leading axes (..., d).

    >>> split_logit([3.0, 1.0], [2.0, 5.0], [1.0, 0.0], [1.0, 0.0])
    LogitParts(means=1.0, query=2.0, salience=1.0, content=7.0)
    """
    q, k, q0, k0 = (np.asarray(one, np.float64) for one in (query, key, mean_query, mean_key))
    dots = ((q0, k0), (q - q0, k0), (q0, k - k0), (q - q0, k - k0))
    return LogitParts(*(settle(_dot(a, b)) for a, b in dots))


# -- directions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Directions:
    """Principal directions of a union of clouds, about the origin (uncentred).

    `vectors` (..., d, d) has one direction per row, greatest first; `singular_values` (..., d) are those of the stacked
    vectors. The sign of a singular vector is arbitrary; here its entry of greatest magnitude is positive.
    """

    vectors: Array
    singular_values: Array


def union_directions(*second_moments: ArrayLike) -> Directions:
    """The SVD of a union of clouds from their second moments Σxxᵀ (..., d, d): queries, keys or both, of any steps.

    >>> x, y = np.array([[3.0, 0.0], [0.0, 1.0]]), np.array([[4.0, 0.0]])
    >>> union_directions(x.T @ x, y.T @ y).singular_values.tolist()
    [5.0, 1.0]
    """
    if not second_moments:
        raise InputError("no second moment to take the directions of", expected="at least one d×d sum")
    values, columns = np.linalg.eigh(np.sum([np.asarray(moment, np.float64) for moment in second_moments], axis=0))
    vectors = np.swapaxes(columns, -1, -2)[..., ::-1, :]
    leading = np.take_along_axis(vectors, np.abs(vectors).argmax(axis=-1, keepdims=True), axis=-1)
    vectors = vectors * np.where(leading < 0, -1.0, 1.0)
    return Directions(vectors, np.sqrt(np.maximum(values[..., ::-1], 0.0)))


def drift_direction(second_moment: ArrayLike, total: ArrayLike) -> Array:
    """The unit direction (..., d) that a cloud drifts along: the first uncentred singular direction, signed.

    `second_moment` = Σxxᵀ, `total` = Σx; the sign makes ⟨Σx, u⟩ ≥ 0. For queries after rotation this is the u_h of
    Q-Filters, which estimates it from 3,000 vectors and takes the sign of the majority of the projections: the two
    conventions agree unless the cloud hardly drifts. See `q_filters` for what its files hold.

    >>> drift_direction(np.diag([1.0, 9.0]), np.array([0.5, -3.0])).tolist()
    [-0.0, -1.0]
    """
    first = union_directions(second_moment).vectors[..., 0, :]
    return first * np.where(_dot(np.asarray(total, np.float64), first) < 0, -1.0, 1.0)[..., None]


def q_filters(directions: ArrayLike, *, group: int) -> Array:
    """Query drift directions (heads, d) as published Q-Filters files hold them: (key heads, d).

    The filter of a key head is −1 times the mean of the directions of the query heads that read it; a key is worth
    −⟨filter, k⟩. A mean of unit vectors is shorter than 1: compare by cosine.

    >>> q_filters(np.array([[1.0, 0.0], [0.0, 1.0]]), group=2).tolist()
    [[-0.5, -0.5]]
    """
    heads = np.asarray(directions, np.float64)
    return -heads.reshape(-1, group, heads.shape[-1]).mean(axis=1)


def _dot(a: Array, b: Array) -> Array:
    return np.asarray(np.einsum("...k,...k->...", a, b))
