"""The covariance part of a cloud: how many directions it uses, and how evenly.

Everything is a function of the eigenvalues λ_1 ≥ … ≥ λ_d of the covariance, so it cannot see where the mean is: read it
beside `drift`. The functions of λ take any leading axes and do not care about the scale of λ. They are missing when
there is no variance at all.

**Sample size.** Noise spreads eigenvalues: an isotropic Gaussian cloud in d = 256 has participation ratio 128 at
n = 256, 205 at n = 1,024 and 241 at n = 4,096. Below n ≈ 10·d only the comparison with `isotropic.spectral_null` at the
same n and d means something; `participation_ratio_unbiased` is the one number here that corrects for it.

Cost: O(d³) for the eigenvalues, O(d) for the rest.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from anisoscope.errors import InputError, UsageError
from anisoscope.geometry.missing import Values, ratio, settle
from anisoscope.geometry.rows import as_rows

ROUNDING = 2.0**-43
"""About 1,000 units in the last place: what blocked float64 sums may lose. A smaller remainder is not variance."""

RANKME_EPSILON = 1e-7
FEWEST_FOR_POWER_LAW = 10


def covariance(second_moment: ArrayLike, sum_x: ArrayLike, n: int) -> np.ndarray:
    """Unbiased covariance (d, d) from the raw sums: (Σxxᵀ − (Σx)(Σx)ᵀ/n) / (n−1), symmetric, no negative variance.

    Raw sums merge by plain addition, which is why they are kept; the price is that the subtraction loses about
    log10(‖x̄‖²/variance) of the 16 digits. When nothing but rounding is left (a remainder below 2⁻⁴³ of the raw
    moment, as for a cloud of identical vectors) the answer is exactly zero, and the metrics of it are missing,
    instead of the spectrum of rounding errors.

    >>> x = np.array([[1.0, 0.0], [3.0, 0.0], [2.0, 3.0]])
    >>> covariance(x.T @ x, x.sum(axis=0), 3)
    array([[1., 0.],
           [0., 3.]])
    """
    raw, total = np.asarray(second_moment, np.float64), np.asarray(sum_x, np.float64)
    if n < 2:
        raise InputError("a covariance needs two vectors", got=f"n = {n}")
    scatter = raw - np.outer(total, total) / n
    if np.trace(scatter) <= ROUNDING * np.trace(raw):
        return np.zeros_like(raw)
    result = (scatter + scatter.T) / (2 * (n - 1))
    np.fill_diagonal(result, np.maximum(np.diagonal(result), 0.0))
    return result


def eigenvalues(cov: ArrayLike) -> np.ndarray:
    """Eigenvalues of a symmetric positive matrix (or a stack of them), descending, clipped at 0.

    >>> eigenvalues([[1.0, 0.0], [0.0, 3.0]])
    array([3., 1.])
    """
    return np.maximum(np.linalg.eigvalsh(np.asarray(cov, np.float64))[..., ::-1], 0.0)


def eigenvalues_from_rows(x: ArrayLike, *, centred: bool = True) -> np.ndarray:
    """Eigenvalues (d,) of the covariance of the rows of x (m, d), descending; of Σxxᵀ/m with `centred=False`.

    When m < d the m×m Gram matrix has the same non-zero eigenvalues (the rest are exactly 0), so the cost is
    O(min(m, d)²·max(m, d)) and no d×d matrix is formed.

    >>> eigenvalues_from_rows([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    array([2., 0., 0.])
    """
    rows = as_rows(x)
    m, d = rows.shape
    divisor = m - 1 if centred else m
    if divisor < 1:
        raise InputError("too few vectors for a spectrum", got=f"{m} rows", expected="at least 2")
    rows = rows - rows.mean(axis=0) if centred else rows
    small = rows @ rows.T if m < d else rows.T @ rows
    found = eigenvalues(small)[: min(divisor, d)] / divisor
    return np.concatenate([found, np.zeros(d - len(found))])


def participation_ratio(eigenvalues: ArrayLike) -> Values:
    """Number of directions that share the variance: (Σλ)² / Σλ².

    Range [1, d]; d for equal eigenvalues. Isotropic null at n vectors ≈ (n−1)d/(n+d). Source: the inverse
    participation ratio of physics; for neural data Gao et al. 2017 and Recanatesi et al. 2019.

    >>> participation_ratio([1.0, 1.0, 0.0, 0.0])
    2.0
    """
    return ratio(1.0, np.square(_shares(eigenvalues)).sum(axis=-1))


def isoscore(eigenvalues: ArrayLike) -> Values:
    """IsoScore of Rudman et al. (ACL Findings 2022): (PR − 1)/(d − 1), with PR the participation ratio.

    Their steps (normalise λ to length √d, distance to (1, …, 1), rescale) reduce to this exactly. Range [0, 1]; k equal
    eigenvalues out of d give (k−1)/(d−1). Isotropic null ≈ ((n−1)d/(n+d) − 1)/(d−1), not 1. Missing for d = 1.

    >>> isoscore([1.0, 1.0, 1.0, 0.0, 0.0])
    0.5
    """
    d = np.asarray(eigenvalues).shape[-1]
    return ratio(1.0 / np.square(_shares(eigenvalues)).sum(axis=-1) - 1.0, d - 1)


def participation_ratio_unbiased(trace: ArrayLike, trace_of_square: ArrayLike, n: ArrayLike) -> Values:
    """Participation ratio without the bias of few samples, from tr S and tr S² of the sample covariance of n vectors.

    With ν = n−1 and Gaussian vectors, ν²/((ν−1)(ν+2))·(tr S² − (tr S)²/ν) is unbiased for tr Σ² and
    ν(ν+1)/((ν−1)(ν+2))·((tr S)² − 2 tr S²/(ν+1)) for (tr Σ)²; this is their ratio. It recovers 256 ± 8 of d = 256 from
    n = 64, where the plain ratio says 50. Not bounded by d. Missing for n < 3 or a non-positive estimate of tr Σ².
    Vectors of one sequence are not independent: a correction at the nominal n is then too small. Cost O(1). Source:
    the second moments of the Wishart law; the estimator of tr Σ² is that of Bai & Saranadasa 1996.

    >>> participation_ratio_unbiased(trace=4.0, trace_of_square=4.0 + 16.0 / 100, n=101) < 4.1
    True
    """
    first, second = np.asarray(trace, np.float64), np.asarray(trace_of_square, np.float64)
    freedom = np.where(np.asarray(n) >= 3, np.asarray(n, dtype=np.float64) - 1, np.nan)
    square_of_trace = (freedom + 1) / freedom * (first * first - 2 * second / (freedom + 1))
    below = second - first * first / freedom
    return ratio(square_of_trace, np.where(below > 0, below, np.nan))


def effective_rank(eigenvalues: ArrayLike) -> Values:
    """exp of the entropy of p = λ/Σλ, the eigenvalues of the *covariance* (Roy & Vetterli, EUSIPCO 2007, use σ).

    Range [1, d]. Isotropic null ≈ d·exp(−d/2n) for n > d and n·exp(−n/2d) below.

    >>> round(effective_rank([1.0, 1.0, 1.0, 0.0]), 12)
    3.0
    """
    return settle(np.exp(_entropy(_shares(eigenvalues))))


def rankme(second_moment_eigenvalues: ArrayLike, *, n: int | None = None) -> Values:
    """RankMe (Garrido et al., ICML 2023): exp of the entropy of p_k = σ_k/Σσ + 1e−7, σ the *uncentred* singular values.

    Takes the eigenvalues σ² of Σxxᵀ (any scale). The paper has min(n, d) singular values: give `n` when n < d, or each
    of the d − n zeros adds 1.6e−6 to the entropy. Range [1, min(n, d)], up to 1e−7. Drift lowers it, unlike
    `effective_rank`. Isotropic null: `isotropic.spectral_null("rankme", n, d)`.

    >>> round(rankme([4.0, 4.0, 4.0, 4.0]), 4)
    4.0
    """
    singular = np.sqrt(np.maximum(np.asarray(second_moment_eigenvalues, np.float64), 0.0))
    kept = singular[..., : min(n, singular.shape[-1])] if n is not None else singular
    return settle(np.exp(_entropy(_shares(kept) + RANKME_EPSILON)))


def pc1_share(eigenvalues: ArrayLike) -> Values:
    """Share of the variance on the first principal component: λ_1/Σλ ("anisotropy" of Razzhigaev et al. 2024).

    Range [1/d, 1]. Isotropic null ≈ (1 + √(d/n))²/d, with Tracy–Widom fluctuations.

    >>> pc1_share([3.0, 1.0])
    0.75
    """
    return settle(_shares(eigenvalues).max(axis=-1))


def stable_rank(eigenvalues: ArrayLike) -> Values:
    """Σλ/λ_1 = ‖X‖_F²/‖X‖_2² of the centred cloud: the inverse of `pc1_share`. Range [1, d].

    >>> stable_rank([2.0, 1.0, 1.0])
    2.0
    """
    return ratio(1.0, _shares(eigenvalues).max(axis=-1))


def condition_number(eigenvalues: ArrayLike) -> Values:
    """√(λ_1/λ_d): how much longer the longest axis is than the shortest. Range [1, ∞).

    Missing when λ_d is zero to rounding (λ_d ≤ d·ε·λ_1), as it is whenever n ≤ d. Isotropic null for n > d:
    (√n + √d)/(√n − √d).

    >>> condition_number([9.0, 1.0]), condition_number([1.0, 0.0])
    (3.0, None)
    """
    values = np.asarray(eigenvalues, dtype=np.float64)
    largest, smallest = values.max(axis=-1), values.min(axis=-1)
    floor = values.shape[-1] * np.finfo(np.float64).eps * largest
    return ratio(np.sqrt(largest), np.sqrt(np.where(smallest > floor, smallest, np.nan)))


def power_law_alpha(eigenvalues: ArrayLike, first: int = 11, last: int = 100) -> Values:
    """Exponent α of λ_j ∝ j^(−α): slope of log λ_j on −log j by least squares with weight 1/j, j from first to last.

    Small d: the range ends at the last eigenvalue that is not zero to rounding, and α is missing when fewer than 10 are
    left in it (so d ≥ 20 with the default range). α ≈ 1 is the critical decay of Stringer et al., Nature 2019; the
    weights and the default range are those of α-ReQ (Agrawal et al., NeurIPS 2022). The eigenvalues before `first` do
    not count, nor does the mean. The null of noise is not 0: see `isotropic.spectral_null("power_law_alpha", n, d)`.

    >>> round(power_law_alpha(np.arange(1, 201) ** -1.3), 12)
    1.3
    """
    if not 1 <= first < last:
        raise UsageError("the range of a power law must be first < last", got=f"first={first}, last={last}")
    values = np.asarray(eigenvalues, dtype=np.float64)
    floor = values.shape[-1] * np.finfo(np.float64).eps * values.max(axis=-1, keepdims=True)
    fitted = values[..., first - 1 : last]
    usable = fitted > floor
    ranks = np.arange(first, first + fitted.shape[-1], dtype=np.float64)
    x, y = -np.log(ranks), np.log(fitted, out=np.zeros_like(fitted), where=usable)
    weight = usable / ranks
    total = np.where(usable.sum(axis=-1) >= FEWEST_FOR_POWER_LAW, weight.sum(axis=-1), np.nan)
    centred = x - ((weight * x).sum(axis=-1) / total)[..., None]
    return ratio((weight * centred * y).sum(axis=-1), (weight * centred * centred).sum(axis=-1))


def explained_k(eigenvalues: ArrayLike, share: float = 0.9) -> Values:
    """Fewest principal components that hold at least `share` of the variance: a whole number in [1, d].

    >>> explained_k([6.0, 3.0, 1.0])
    2.0
    """
    if not 0 < share <= 1:
        raise UsageError("a share of the variance lies in (0, 1]", got=share)
    held = np.cumsum(_shares(eigenvalues), axis=-1)
    short = (held < share - 1e-12).sum(axis=-1)  # the tolerance keeps 9 of 10 equal eigenvalues at 0.9
    return settle(np.where(np.isnan(held[..., -1]), np.nan, short + 1))


OF_EIGENVALUES: dict[str, Callable[[np.ndarray, int], Values]] = {
    "isoscore": lambda values, n: isoscore(values),
    "participation_ratio": lambda values, n: participation_ratio(values),
    "participation_ratio_unbiased": lambda values, n: participation_ratio_unbiased(
        1.0, np.square(_shares(values)).sum(axis=-1), n
    ),
    "effective_rank": lambda values, n: effective_rank(values),
    "rankme": lambda values, n: rankme(values, n=n),
    "pc1_share": lambda values, n: pc1_share(values),
    "stable_rank": lambda values, n: stable_rank(values),
    "condition_number": lambda values, n: condition_number(values),
    "power_law_alpha": lambda values, n: power_law_alpha(values),
    "explained_k": lambda values, n: explained_k(values),
}
"""Every spectral metric as a function of eigenvalues (…, d) and n; `rankme` takes those of the second moment."""


def of_leading(of: Callable[[np.ndarray, int], Values], leading: np.ndarray, n: int, d: int) -> Values:
    """A spectral metric of d eigenvalues whose first (…, r) are given, the others zero. Cost that of r, not of d.

    Give every eigenvalue that can differ from zero, min(n, d) of them.

    >>> of_leading(OF_EIGENVALUES["isoscore"], np.array([1.0, 1.0, 1.0]), 3, 5)
    0.5
    """
    absent = d - leading.shape[-1]
    known = of in OF_EIGENVALUES.values()
    few = np.concatenate([leading, np.zeros((*leading.shape[:-1], min(absent, 1) if known else absent))], axis=-1)
    found, width = of(few, n), few.shape[-1]
    by_dimension = width < d and of is OF_EIGENVALUES["isoscore"] and found is not None
    return found * ((width - 1) / (d - 1)) if by_dimension else found


def _shares(eigenvalues: ArrayLike) -> np.ndarray:
    """λ/Σλ; NaN when there is no variance."""
    values = np.asarray(eigenvalues, dtype=np.float64)
    total = values.sum(axis=-1, keepdims=True)
    return np.divide(values, total, out=np.full(values.shape, np.nan), where=total > 0)


def _entropy(shares: np.ndarray) -> np.ndarray:
    logarithms = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return -(shares * logarithms).sum(axis=-1)
