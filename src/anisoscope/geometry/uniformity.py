"""Uniformity: the log of the average Gaussian potential between unit vectors.

    uniformity = log mean_{i<j} exp(−t‖u_i − u_j‖²),   t = 2

Range [−4t, 0]: 0 when all directions coincide, lower when they spread. For the uniform law on the sphere the average
potential has a closed form: E exp(−t‖u − v‖²) = e^(−2t) · ₀F₁(; d/2; t²), so the null is −2t + 2t²/d to first order,
−4 + 8/d at t = 2. The vectors are normalised here: the definition is about directions, and leaving that out is the
commonest mistake with this metric.

Cost: O(m²·d) time, exact over the pairs of the sample, O(1) blocks of memory. Source: Wang & Isola, ICML 2020.

>>> corners = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
>>> round(uniformity(corners), 6), round(uniformity_null(2), 6)
(-4.396349, -1.575027)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from anisoscope.geometry.rows import row_blocks, unit_rows


def uniformity(u: ArrayLike, *, t: float = 2.0) -> float | None:
    """Log mean potential over all pairs i < j of the rows of u (m, d). Missing if m < 2."""
    units = unit_rows(u)
    m = len(units)
    if m < 2:
        return None
    total = 0.0
    for block in row_blocks(m, m):
        tail = units[block.start :]  # (m − start, d): pairs with the rows before were counted there
        potential = np.exp(2 * t * (units[block] @ tail.T - 1.0))
        total += float(np.triu(potential, k=1).sum())
    return math.log(total / (m * (m - 1) / 2))


def uniformity_null(d: int, *, t: float = 2.0) -> float:
    """Log of the expected potential for directions uniform on the sphere of R^d: −2t + log ₀F₁(; d/2; t²), exact.

    >>> abs(uniformity_null(768) - (-4 + 8 / 768)) < 1e-4
    True
    """
    from scipy.special import hyp0f1

    return -2 * t + math.log(float(hyp0f1(d / 2, t * t)))


def uniformity_null_sd(n: int, d: int, *, t: float = 2.0) -> float | None:
    """Sd of `uniformity` of n directions uniform on the sphere. Missing if n < 2.

    On the sphere the potentials of two different pairs are uncorrelated (given u_i, the law of u_i·u_j does not depend
    on u_i), so the variance of the mean over pairs is exactly Var(potential)/(n(n−1)/2); the log is linearised.
    """
    if n < 2:
        return None
    relative_variance = math.expm1(uniformity_null(d, t=2 * t) - 2 * uniformity_null(d, t=t))
    return math.sqrt(relative_variance / (n * (n - 1) / 2))
