"""What isotropy would look like at the same n and d: the null beside every measured value.

**The cosine of isotropic pairs** in R^d is exactly Beta: (1 + c)/2 ~ Beta((d−1)/2, (d−1)/2), whatever the law of the
norms. Hence density, quantiles and moments without simulation: mean 0, sd 1/√d.

**The average cosine of n isotropic vectors** has mean 0 and sd √(2/(d·n(n−1))), exactly, since cosines of different
pairs are uncorrelated on the sphere. Its quantiles come from the shifted Gamma law with its exact first three moments
(`pair_sum_law`), at every n and d; it becomes the χ²_d law of Rayleigh's test as n grows. For n = 2 it is Beta.

**Spectral metrics** of n isotropic Gaussian vectors come from `wishart`: closed forms with their sd, or, for
min(n − 1, d) < 16, a cached simulation; `how` says which. **Neighbour metrics** have no closed form: one cached
simulated cloud.

>>> round(cosine_quantile(0.975, 768), 4), equivalent_dimension(1 / 768)
(0.0707, 768.0)
>>> null = spectral_null("isoscore", 256, 256)
>>> round(null.value, 3), round(null.sd, 4), null.how
(0.496, 0.002, 'closed form')
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import ArrayLike

from anisoscope.errors import UsageError
from anisoscope.geometry import neighbours
from anisoscope.geometry.missing import Values, settle
from anisoscope.geometry.nulls.wishart import Noise
from anisoscope.geometry.spectrum import OF_EIGENVALUES, of_leading
from anisoscope.geometry.uniformity import uniformity_null, uniformity_null_sd

SIMULATED_BELOW, DRAWS = 16, 1000
_TAIL = 1e-4  # probabilities below which, and 1 less it above which, a quantile is left to scipy
_WIDE = 8192  # above this d, a cloud is not drawn whole


@dataclass(frozen=True, slots=True)
class NullValue:
    """What isotropy would give for a metric, its sd over samples (missing if not known), and how that was found."""

    value: float | None
    sd: float | None
    how: str


def cosine_density(c: ArrayLike, d: int) -> Values:
    """Density of the cosine of two isotropic vectors: (1 − c²)^((d−3)/2) / B(½, (d−1)/2) on [−1, 1], 0 outside.

    >>> cosine_density([0.0, 0.5], 3)  # uniform in three dimensions (Archimedes)
    array([0.5, 0.5])
    """
    cosine, power = np.asarray(c, dtype=np.float64), (_dimension(d) - 3) / 2
    inside = np.where(np.abs(cosine) <= 1, cosine, 0.0)
    with np.errstate(divide="ignore"):
        density = _density_at_zero(d) * (np.exp(power * np.log1p(-inside * inside)) if power else 1.0)
    return settle(np.where(np.abs(cosine) <= 1, density, 0.0))


def cosine_cdf(c: ArrayLike, d: int) -> Values:
    """Probability that the cosine of two isotropic vectors of R^d is at most c."""
    from scipy.special import betainc

    half = (_dimension(d) - 1) / 2
    return settle(betainc(half, half, np.clip((1 + np.asarray(c, np.float64)) / 2, 0.0, 1.0)))


def cosine_quantile(p: ArrayLike, d: int) -> Values:
    """The cosine that isotropic pairs stay below with probability p: the inverse of `cosine_cdf`.

    The angle θ = arcsin c has a density of cos^(d−2) θ. Unless p is a far tail, Newton's method from θ = 0 finds it,
    by Gauss's quadrature from there: importing scipy takes longer than most commands.
    """
    levels, power = np.asarray(p, np.float64), (_dimension(d) - 2) / 2
    if not ((levels > _TAIL) & (levels < 1 - _TAIL)).all():
        from scipy.special import betaincinv

        return settle(2 * betaincinv((d - 1) / 2, (d - 1) / 2, levels) - 1)
    nodes, weights = _gauss()
    shares = np.append((1 + nodes) / 2, 1.0)
    angle, highest = np.zeros(levels.shape), _density_at_zero(d)
    for _ in range(64):
        along = np.exp(power * np.log1p(-np.square(np.sin(angle[..., None] * shares))))
        reached = highest * angle / 2 * (along[..., :-1] @ weights)
        step = (levels - 0.5 - reached) / (highest * along[..., -1])
        angle = angle + step
        if (np.abs(step) <= 1e-15 * np.abs(angle)).all():
            break
    return settle(np.sin(angle))


@cache
def _gauss() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of a quadrature on [−1, 1]; computing them takes longer than using them."""
    return np.polynomial.legendre.leggauss(64)


def _density_at_zero(d: int) -> float:
    """Γ(d/2) / (√π·Γ((d−1)/2)) = 1/B(½, (d−1)/2)."""
    x = (d - 1) / 2
    if x < 20:
        return math.gamma(x + 0.5) / math.gamma(x) / math.sqrt(math.pi)
    series = -1 / (8 * x) + 1 / (192 * x**3) - 1 / (640 * x**5) + 17 / (14336 * x**7) - 31 / (18432 * x**9)  # Stirling
    return math.sqrt(x / math.pi) * math.exp(series)


def cosine_mean_square(d: int) -> float:
    """E[cos²] = 1/d, for every law of the norms; so sd(cos) = 1/√d."""
    return 1.0 / _dimension(d)


def cosine_mean_absolute(d: int) -> float:
    """E|cos| = Γ(d/2) / (√π·Γ((d+1)/2)) ≈ √(2/(πd)).

    >>> round(cosine_mean_absolute(3), 12)
    0.5
    """
    return 1 / (math.pi * _density_at_zero(_dimension(d) + 1))


def equivalent_dimension(mean_square_cosine: float) -> float | None:
    """The dimension whose isotropic pairs would have this E[cos²]: 1/E[cos²]. Range [1, ∞); missing for 0.

    >>> equivalent_dimension(0.04)
    25.0
    """
    return 1.0 / mean_square_cosine if mean_square_cosine > 0 else None


def mean_cosine_sd(n: float, d: int) -> float | None:
    """Sd of the average cosine over all pairs of n independent isotropic vectors: √(2/(d·n(n−1))), exact.

    n may be an effective sample size. Missing if n ≤ 1.
    """
    return math.sqrt(2.0 / (_dimension(d) * n * (n - 1))) if n > 1 else None


def pair_sum_law(n: float, d: float, *, third: float = 0.0) -> tuple[float, float]:
    """Gamma law (shape, scale) of X, where n‖v̄‖² − 1 = X − shape·scale for n random unit vectors v of R^d.

    For vectors whose products over different pairs are uncorrelated with E⟨v_i,v_j⟩² = 1/d (uniform directions, and the
    tensors uuᵀ − I/d of Bingham's test), the left side has mean 0, variance 2(n−1)/(nd) and third moment
    4(n−1)·third/n² + 8(n−1)(n−2)/(n²d²), `third` being E⟨v_i,v_j⟩³: 0 on the sphere. The law matches all three.
    """
    variance = 2 * (n - 1) / (n * d)
    # at n = 2 the sum is symmetric; a floor keeps the law a Gamma, there indistinguishable from a normal law
    triangles = 8 * (n - 1) * max(n - 2, 1e-3) / (n * d) ** 2
    skewness = 4 * (n - 1) * third / n**2 + triangles
    return 4 * variance**3 / skewness**2, skewness / (2 * variance)


def direction_null(metric: str, n: int, d: int) -> NullValue | None:
    """Null of `mean_cosine`, `mean_cosine_inter`, `mean_cosine_intra`, `resultant` or `drift_ratio`; `None` for others.

    >>> round(direction_null("resultant", 100, 768).value, 3)
    0.1
    """
    if n < 1:
        return None
    if metric in ("mean_cosine", "mean_cosine_inter", "mean_cosine_intra"):
        return NullValue(0.0, mean_cosine_sd(n, d) if metric == "mean_cosine" else None, "exact")
    if metric == "resultant":
        mean = math.sqrt(2 * math.pi / (d * n)) * _density_at_zero(d + 1)
        return NullValue(mean, math.sqrt(max(1 / n - mean * mean, 0.0)), "closed form, large n")
    if metric == "drift_ratio":
        return NullValue(1 / n, None, "exact for vectors of equal norm")
    return None


@lru_cache(maxsize=4096)
def spectral_null(metric: str, n: int, d: int) -> NullValue:
    """Null of a spectral metric, or of `uniformity`, for n isotropic Gaussian vectors in R^d, n < d included.

    Names: those of `spectrum`, and `uniformity`. The value is missing where the metric is (n < 2, d = 1, …).
    """
    if metric == "uniformity":
        return NullValue(uniformity_null(d), uniformity_null_sd(n, d), "exact mean of the potential")
    if metric not in OF_EIGENVALUES:
        raise UsageError("no spectral null for this metric", got=repr(metric), expected=", ".join(sorted(SPECTRAL)))
    noise = Noise(n if metric == "rankme" else n - 1, d)
    if noise.freedom < 1:
        return NullValue(None, None, "undefined for so few vectors")
    if noise.rank < SIMULATED_BELOW:
        return _simulated(metric, noise, n)
    closed = _CLOSED.get(metric)
    if closed is not None:
        return NullValue(*closed(noise), "closed form")
    return NullValue(OF_EIGENVALUES[metric](noise.typical_spectrum(), n), None, "Marchenko–Pastur quantiles")


@lru_cache(maxsize=256)
def neighbour_null(metric: str, m: int, d: int, *, k: int = 10, seed: int = 0) -> NullValue:
    """Null of `twonn`, `mle_dimension` (at k) or `hubness` (at k): one simulated Gaussian cloud of m vectors in R^d.

    Costs one neighbour search, O(m²·d), on the first call for each (m, d); the other metrics reuse it. The sd over
    clouds is not known from one draw and is missing.
    """
    if metric not in NEIGHBOUR:
        raise UsageError("no neighbour null for this metric", got=repr(metric), expected=", ".join(NEIGHBOUR))
    if m <= max(k, 2):
        return NullValue(None, None, "undefined for so few vectors")
    distances, indices = _gaussian_neighbours(m, d, k, seed)
    value = {
        "twonn": lambda: neighbours.twonn(distances),
        "mle_dimension": lambda: neighbours.mle_dimension(distances, k),
        "hubness": lambda: neighbours.hubness(indices, m, k=k),
    }[metric]()
    return NullValue(value, None, f"simulation, one Gaussian cloud, seed {seed}")


@lru_cache(maxsize=4)
def _gaussian_neighbours(m: int, d: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Of a Gaussian cloud; of many dimensions only its shape is drawn, the triangle of Bartlett's decomposition."""
    generator = np.random.default_rng(seed)
    if d <= max(_WIDE, m):
        return neighbours.nearest(generator.standard_normal((m, d)), max(k, 2))
    shape = np.tril(generator.standard_normal((m, m)), -1)
    np.fill_diagonal(shape, np.sqrt(generator.chisquare(d - np.arange(m))))
    return neighbours.nearest(shape, max(k, 2))


def _isoscore(noise: Noise) -> tuple[float, float]:
    value, sd = noise.participation_ratio()
    return (value - 1) / (noise.d - 1), sd / (noise.d - 1)


def _unbiased(noise: Noise) -> tuple[float, float]:
    return float(noise.d), 2 * noise.d / noise.freedom


def _stable_rank(noise: Noise) -> tuple[float, float]:
    share, sd = noise.pc1_share()
    spread = sd / share
    return (1 + spread * spread) / share, spread / share


_CLOSED: dict[str, Callable[[Noise], tuple[float, float]]] = {
    "isoscore": _isoscore,
    "participation_ratio": Noise.participation_ratio,
    "participation_ratio_unbiased": _unbiased,
    "effective_rank": Noise.effective_rank,
    "rankme": Noise.rankme,
    "pc1_share": Noise.pc1_share,
    "stable_rank": _stable_rank,
}

SPECTRAL = (*OF_EIGENVALUES, "uniformity")
NEIGHBOUR = ("twonn", "mle_dimension", "hubness")


def _simulated(metric: str, noise: Noise, n: int) -> NullValue:
    drawn = np.asarray(of_leading(OF_EIGENVALUES[metric], noise.draw(DRAWS), n, noise.d), float)
    drawn = drawn[~np.isnan(drawn)]
    how = f"simulation, {DRAWS} spectra, seed 0"
    if metric == "condition_number":  # heavy-tailed near n = d: its mean is not a summary
        return NullValue(float(np.median(drawn)) if len(drawn) else None, None, how + ", median")
    return NullValue(float(drawn.mean()), float(drawn.std(ddof=1)), how) if len(drawn) else NullValue(None, None, how)


def _dimension(d: int) -> int:
    if d < 2:
        raise UsageError("the cosine has a continuous law only in two dimensions or more", got=f"d = {d}")
    return d
