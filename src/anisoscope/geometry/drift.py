"""The mean part of a cloud: how long its vectors are and how far their mean is from the origin.

Drift is what the average cosine reacts to and what IsoScore cannot see. All from Σx, Σ‖x‖, Σ‖x‖² and n, over leading
axes as in `cosine`. Unlike the cosine these are weighted by norm: one token of norm 3,000 counts as such, so read them
beside `resultant`, which gives every vector the same weight.

Cost: O(d) per cloud. Sources: the mean's share of the energy, Biś et al., NAACL 2021; the drift of hidden states,
queries and keys, Godey et al., EACL 2024.

>>> x = np.array([[3.0, 4.0], [3.0, -4.0]])
>>> drift_norm(x.sum(axis=0), 2), drift_ratio(x.sum(axis=0), 50.0, 2)
(3.0, 0.36)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from anisoscope.geometry.missing import Values, ratio
from anisoscope.geometry.scale import scale_of


def mean_norm(sum_norm: ArrayLike, n: ArrayLike) -> Values:
    """Average length of a vector: Σ‖x‖ / n. Range [0, ∞); no isotropic null (a scale). Missing if n = 0.

    >>> mean_norm(30.0, 3)
    10.0
    """
    return ratio(sum_norm, n)


def norm_cv(sum_norm: ArrayLike, sum_norm2: ArrayLike, n: ArrayLike) -> Values:
    """Coefficient of variation of the lengths: sd(‖x‖) / mean(‖x‖), with the n−1 variance. Missing if n < 2.

    Range [0, ∞). Null for an isotropic Gaussian ≈ 1/√(2d). A value near or above 1 means that a few vectors dwarf the
    rest (massive activations): every metric weighted by norm then speaks of those few.

    >>> norm_cv(1.0 + 3.0, 1.0 + 9.0, 2)
    0.7071067811865476
    """
    first, second = np.asarray(sum_norm, np.float64), np.asarray(sum_norm2, np.float64)
    count = np.asarray(n, dtype=np.float64)
    with np.errstate(over="ignore"):  # then it is missing
        scatter = np.maximum(count * second - first * first, 0.0)  # n(n−1) times the variance
    return ratio(np.sqrt(count * scatter), np.sqrt(np.maximum(count - 1, 0.0)) * first)


def drift_norm(sum_x: ArrayLike, n: ArrayLike) -> Values:
    """Length of the mean vector: ‖Σx‖ / n. Range [0, mean_norm]. Null for zero mean: √(E‖x‖²/n). Missing if n = 0.

    >>> drift_norm(np.array([6.0, 8.0]), 5)
    2.0
    """
    total = np.asarray(sum_x, np.float64)
    scale = scale_of(np.abs(total).max(axis=-1, initial=0.0))
    return ratio(np.linalg.norm(total / scale[..., None], axis=-1) * scale, n)


def drift_ratio(sum_x: ArrayLike, sum_norm2: ArrayLike, n: ArrayLike) -> Values:
    """Share of the energy that the mean carries: ‖x̄‖² / mean(‖x‖²) = ‖Σx‖² / (n·Σ‖x‖²).

    Range [0, 1]; 1 − drift_ratio is the share of the covariance. Null for independent zero-mean vectors: 1/n.
    Missing if n = 0 or if every vector is zero.

    >>> drift_ratio(np.array([2.0, 0.0]), 2.0, 2)
    1.0
    """
    total = np.asarray(sum_x, dtype=np.float64)
    energy = np.asarray(n, dtype=np.float64) * np.asarray(sum_norm2, np.float64)
    return ratio(np.einsum("...k,...k->...", total, total), energy)
