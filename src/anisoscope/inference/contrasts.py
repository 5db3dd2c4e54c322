"""Differences between arms: tests, equivalence, correction for many of them.

- The mean of independent draws has Student's interval; a difference is tested by t over paired draws. "No difference"
  is a claim of its own: two one-sided tests (Schuirmann 1987) claim |μ| < δ at 5 % exactly where the 90 % interval lies
  within ±δ, so `equivalence_bound` is the smallest δ that the data support.
- Of several tests, Holm's step-down procedure keeps the chance of any false claim below 5 %.

>>> round(equivalence_bound([0.1, -0.2, 0.05, 0.0, -0.1]), 3), holm([0.01, 0.04, 0.03])
(0.145, [0.03, 0.06, 0.06])
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anisoscope.inference.jackknife import t_quantile


def interval_over_draws(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The 95 % interval of the mean of independent draws; missing for a single one.

    >>> low, high = interval_over_draws([1.0, 2.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    count = len(values)
    if count < 2:
        return None, None
    half = t_quantile(count - 1) * float(np.std(values, ddof=1)) / math.sqrt(count)
    centre = float(np.mean(values))
    return centre - half, centre + half


def paired_p(differences: Sequence[float]) -> float | None:
    """The two-sided p-value of a mean of zero; missing for a single draw, or where all draws are equal."""
    from scipy.stats import t

    n, sd = len(differences), float(np.std(differences, ddof=1)) if len(differences) > 1 else 0.0
    if not sd:
        return None
    return float(2 * t.sf(abs(np.mean(differences)) / (sd / math.sqrt(n)), n - 1))


def equivalence_bound(differences: Sequence[float]) -> float | None:
    """The smallest δ for which two one-sided tests claim |μ| < δ; missing for a single draw."""
    from scipy.stats import t

    n = len(differences)
    if n < 2:
        return None
    half = float(t.ppf(0.95, n - 1)) * float(np.std(differences, ddof=1)) / math.sqrt(n)
    return abs(float(np.mean(differences))) + half


def holm(p: Sequence[float]) -> list[float]:
    """The p-values of several tests, corrected: the smallest counts n times, the next n − 1 times, never falling."""
    order = sorted(range(len(p)), key=lambda place: p[place])
    corrected, least = [0.0] * len(p), 0.0
    for rank, place in enumerate(order):
        least = max(least, min(1.0, (len(p) - rank) * p[place]))
        corrected[place] = least
    return corrected
