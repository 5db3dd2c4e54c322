"""Uniformity: the log of the average Gaussian potential between unit vectors.

    uniformity = log mean_{i<j} exp(−t‖u_i − u_j‖²),   t = 2

Range [−4t, 0]: 0 when all directions coincide, lower when they spread. For the uniform law on the sphere the average
potential has a closed form: E exp(−t‖u − v‖²) = e^(−2t) · ₀F₁(; d/2; t²), so the null is −2t + 2t²/d to first order,
−4 + 8/d at t = 2. The definition is about directions: leaving out the normalisation is the most common mistake with it.

The value itself comes from the pair cosines of a sample (`inference.neighbourhoods`): ‖u − v‖² = 2 − 2·cos. Source:
Wang & Isola, ICML 2020.

>>> round(uniformity_null(2), 6)
-1.575027
"""

from __future__ import annotations

import math


def uniformity_null(d: int, *, t: float = 2.0) -> float:
    """Log of the expected potential for directions uniform on the sphere of R^d: −2t + log ₀F₁(; d/2; t²), exact.

    >>> abs(uniformity_null(768) - (-4 + 8 / 768)) < 1e-4
    True
    """
    term, total, k = 1.0, 0.0, 0
    while term > 1e-18 * total:  # ₀F₁ − 1 = Σ_k t^2k / (k! · d/2 · (d/2 + 1) ⋯ (d/2 + k − 1))
        term *= t * t / ((k + 1) * (d / 2 + k))
        total, k = total + term, k + 1
    return -2 * t + math.log1p(total)


def uniformity_null_sd(n: int, d: int) -> float | None:
    """Sd of `uniformity` of n directions uniform on the sphere. Missing if n < 2.

    On the sphere the potentials of two different pairs are uncorrelated (given u_i, the law of u_i·u_j does not depend
    on u_i), so the variance of the mean over pairs is exactly Var(potential)/(n(n−1)/2); the log is linearised.
    """
    if n < 2:
        return None
    relative_variance = math.expm1(uniformity_null(d, t=4) - 2 * uniformity_null(d, t=2))
    return math.sqrt(relative_variance / (n * (n - 1) / 2))
