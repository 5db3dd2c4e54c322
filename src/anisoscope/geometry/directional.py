"""Tests of uniformity on the sphere, and the concentration of a cloud of directions.

Is a cloud isotropic at all? Two classical tests answer for its directions u = x/‖x‖:

- **Rayleigh**: is the mean direction zero? T = d·n·R̄². It sees drift and nothing else.
- **Bingham**: is E[uuᵀ] = I/d? B = (d(d+2)/2)·n·(tr T̄² − 1/d), T̄ = Σuuᵀ/n. It sees axes, not drift's sign.

Both are sums over pairs of a function of the cosine, and on the sphere different pairs are uncorrelated, so under
uniformity their first three moments are known exactly at every n and d: mean ν, variance 2ν(n−1)/n, …, with ν = d for T
and (d−1)(d+2)/2 for B. P-values come from the shifted Gamma law with these moments (`isotropic.pair_sum_law`): the χ²_ν
of the textbooks as n grows, and right for n < d too.

**Dependence.** Tokens of one sequence are not independent, so n is replaced by an effective sample size: n over the
design effect of Kish (*Survey Sampling*, 1965), 1 + (Σn_seq²/n − 1)·ρ, ρ the correlation within sequences.

Sources: Mardia & Jupp, *Directional Statistics*, 2000, ch. 10; Bingham, Ann. Stat. 1974; Cutting, Paindaveine &
Verdebout, Ann. Stat. 2017 (Rayleigh in high dimension); Banerjee et al., JMLR 2005 and Sra, Comput. Stat. 2012 (κ).

>>> u = np.eye(3)[[0, 1, 2] * 40] * np.array([1, -1])[[0, 1] * 60, None]
>>> rayleigh_test(u.sum(axis=0), 120).p_value > 0.5, bingham_test(u).p_value > 0.5
(True, True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from anisoscope.errors import InputError
from anisoscope.geometry.nulls.isotropic import pair_sum_law
from anisoscope.geometry.rows import unit_rows


@dataclass(frozen=True, slots=True)
class DirectionTest:
    """A test of uniformity: `degrees` is the mean of the statistic under uniformity, `p_value` its upper tail."""

    statistic: float
    degrees: float
    p_value: float
    n_effective: float


def effective_sample_size(n: int, energy: float, pairs: float, *, inter: float = 0.0) -> float | None:
    """Number of independent directions that would make the mean direction as uncertain as these n correlated ones.

    energy = Σ_seq ‖Σ_seq u‖² and pairs = Σ_seq n_seq², as in `cosine`. With intra = (energy − n)/(pairs − n) the
    average cosine within sequences and `inter` that between them, ρ = (intra − inter)/(1 − inter) is the intra-class
    correlation and n_eff = n / (1 + (pairs/n − 1)·ρ), ρ clipped to [0, 1]. Range [n²/pairs, n]. Leave `inter` at 0 for
    a test of uniformity, under which it is 0: then n_eff = n²/energy. Give `mean_cosine_inter` for an error bar under
    drift. Missing if n = 0. Cost O(1).

    >>> effective_sample_size(100, energy=400.0, pairs=1000.0)  # ten sequences of ten, cosine 1/3 within
    25.0
    """
    if n < 1:
        return None
    if pairs <= n:
        return float(n)
    intra = (energy - n) / (pairs - n)
    correlation = min(max((intra - inter) / (1 - inter), 0.0), 1.0) if inter < 1 else 1.0
    return n / (1 + (pairs / n - 1) * correlation)


def rayleigh_test(sum_unit: ArrayLike, n: int, *, n_effective: float | None = None) -> DirectionTest | None:
    """Test of zero mean direction: T = d·n_eff·‖Σu/n‖², from the sum of unit vectors alone. Missing if n_eff < 2.

    Under uniformity T has mean d. Blind to a cloud that is symmetric about the origin, whatever its shape. Cost O(d).

    >>> rayleigh_test(np.array([30.0, 0.0, 0.0]), 100).p_value < 1e-5
    True
    """
    total = np.asarray(sum_unit, dtype=np.float64)
    size = float(n if n_effective is None else n_effective)
    if size < 2:
        return None
    d = len(total)
    statistic = d * size * float(total @ total) / n**2
    return DirectionTest(statistic, float(d), _upper_tail(statistic, d, size), size)


def bingham_test(
    u: ArrayLike, *, d: int = 0, sequences: ArrayLike | None = None, cosines: np.ndarray | None = None
) -> DirectionTest | None:
    """Test of E[uuᵀ] = I/d on a sample of vectors (m, d), normalised here. Missing if m_eff < 2 or d = 1.

    `d` is the dimension where u holds coordinates in a subspace (`rows.in_span`).
    `sequences` (m,) holds the key of each row's sequence. The effective sample size is then that of the second moment:
    m²(1 − 1/d) / Σ_seq Σ_{i,j in seq} (cos²_ij − 1/d), which is m when rows are independent. Under uniformity B has
    mean (d−1)(d+2)/2. Blind to drift as such: a cloud on one side of the origin fails it only through its axis. Cost
    O(m·d·min(m, d)); O(m²) with the `cosines` (m, m) of all pairs.
    """
    units = unit_rows(u) if cosines is None else np.asarray(u)
    m, width = units.shape
    d = d or width
    if d < 2:
        return None
    squared = cosines if cosines is not None else units.T @ units if width <= m else units @ units.T
    excess = float(np.vdot(squared, squared)) / m**2 - 1 / d  # tr T̄² − 1/d: tr T̄² is the same of all
    size = float(m) if sequences is None else _axial_sample_size(units, d, np.asarray(sequences), cosines)
    if size < 2:
        return None
    statistic, degrees = d * (d + 2) / 2 * size * excess, (d - 1) * (d + 2) / 2
    sixth, fourth = 15 / (d * (d + 2) * (d + 4)), 3 / (d * (d + 2))  # E cos⁶ and E cos⁴
    third = (sixth - 3 * fourth / d + 2 / d**3) / (1 - 1 / d) ** 3
    return DirectionTest(statistic, degrees, _upper_tail(statistic, degrees, size, third=third), size)


def vmf_kappa(resultant: float, d: int) -> float | None:
    """Concentration κ of the von Mises–Fisher law on the sphere of R^d whose mean resultant length is R̄.

    Solves I_{d/2}(κ)/I_{d/2−1}(κ) = R̄ by Newton's method from κ ≈ R̄(d − R̄²)/(1 − R̄²). Range [0, ∞): 0 is uniform.
    Missing for R̄ ≥ 1. Under uniformity R̄ of n vectors is about n^(−1/2); √max(mean_cosine, 0) is R̄ without that bias.

    >>> round(vmf_kappa(0.5, 3), 4)
    1.7968
    """
    if not 0 <= resultant <= 1 + 1e-12 or d < 2:
        raise InputError("impossible mean resultant length", got=f"{resultant} in d = {d}", expected="0 to 1, d >= 2")
    if resultant >= 1:
        return None
    kappa = resultant * (d - resultant**2) / (1 - resultant**2)
    for _ in range(50):
        if kappa == 0:
            return 0.0
        found = bessel_ratio(d / 2 - 1, kappa)
        step = (found - resultant) / (1 - found * found - (d - 1) / kappa * found)
        kappa = max(kappa - step, kappa / 4)
        if abs(step) <= 1e-13 * kappa:
            break
    return kappa


def bessel_ratio(order: float, x: float) -> float:
    """I_{order+1}(x) / I_order(x) for x > 0, without overflow or underflow.

    scipy's scaled functions where they do not vanish. Where they do (the order far above √x) the ratio is well below
    1, and the recurrence r_ν = 1/(2(ν+1)/x + r_{ν+1}), started 100 orders up from Amos's bound, contracts its error by
    r² per step.

    >>> round(bessel_ratio(2047.0, 1.0) * 4096, 6)
    1.0
    """
    from scipy.special import ive

    above, below = float(ive(order + 1, x)), float(ive(order, x))
    if above > 1e-280:
        return above / below
    start = order + 100
    value = x / (start + 0.5 + math.sqrt((start + 1.5) ** 2 + x * x))
    for step in range(99, -1, -1):
        value = 1 / (2 * (order + step + 1) / x + value)
    return value


def _axial_sample_size(units: np.ndarray, d: int, sequences: np.ndarray, cosines: np.ndarray | None) -> float:
    m = len(units)
    if sequences.shape != (m,):
        raise InputError("every row needs the key of its sequence", got=f"shape {sequences.shape}", expected=f"({m},)")
    _, numbers, sizes = np.unique(sequences, return_inverse=True, return_counts=True)
    energy = int((sizes == 1).sum()) * (1 - 1 / d)
    for rows in np.split(np.argsort(numbers, kind="stable"), np.cumsum(sizes)[:-1]):
        if len(rows) > 1:
            within = units[rows] @ units[rows].T if cosines is None else cosines[np.ix_(rows, rows)]
            energy += float(np.square(within).sum()) - len(rows) ** 2 / d
    return min(m * m * (1 - 1 / d) / energy, float(m)) if energy > 0 else float(m)


def _upper_tail(statistic: float, degrees: float, n: float, *, third: float = 0.0) -> float:
    """Chance of a larger statistic under uniformity; statistic/degrees − 1 has the law of `pair_sum_law`."""
    from scipy.special import gammaincc

    shape, scale = pair_sum_law(n, degrees, third=third)
    return float(gammaincc(shape, max(shape + (statistic / degrees - 1) / scale, 0.0)))
