"""The spectrum of pure noise: what the eigenvalues of an isotropic Gaussian cloud look like at f degrees of freedom.

The covariance of n isotropic Gaussian vectors in R^d is a Wishart matrix with f = n − 1 (n if it is not centred). Only
the shape of its spectrum matters here, which is symmetric in f and d: with m = min(f, d), M = max(f, d) and y = m/M

- the m non-zero eigenvalues follow the Marchenko–Pastur law, x = 1 + y + 2√y·cos θ with density (2/π)·sin²θ/x in θ;
- a sum Σ g(λ) over them has mean m·∫g + [g(a) + g(b)]/4 − (1/2π)∫g dθ, a and b the edges (the correction for real
  matrices), and variance ½·Σ_k k·a_k² with a_k the cosine coefficients of g(θ) (Bai & Silverstein, Ann. Prob. 2004);
- the largest follows Tracy–Widom (Johnstone, Ann. Stat. 2001, with the centring of Ma, Bernoulli 2012);
- the shape is independent of the trace, so moments of trace-free ratios are ratios of moments: exact for (tr)² and tr².

Below m = 16, where asymptotics are rough, eigenvalues are simulated through the bidiagonal model of Dumitriu & Edelman
(J. Math. Phys. 2002), whose cost does not depend on M. Cost: about a millisecond for the integrals.

>>> noise = Noise(255, 256)  # n = 256 vectors in R^256
>>> [round(value, 1) for value, sd in (noise.participation_ratio(), noise.effective_rank())]
[127.5, 154.7]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anisoscope.geometry.spectrum import RANKME_EPSILON

NODES = 4096
TRACY_WIDOM_MEAN, TRACY_WIDOM_VARIANCE = -1.2065335745820, 1.607781034581

Statistic = Callable[[np.ndarray], np.ndarray]
MeanSd = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Noise:
    """A Wishart spectrum with `freedom` degrees of freedom in d dimensions; each method gives (mean, sd)."""

    freedom: int
    d: int

    @property
    def rank(self) -> int:
        return min(self.freedom, self.d)

    @property
    def aspect(self) -> float:
        return self.rank / max(self.freedom, self.d)

    def participation_ratio(self) -> MeanSd:
        """E[tr²/(tr)²] = (f + d + 1)/(f·d + 2) exactly, and d·tr²/(tr)² has sd 2/f (Ledoit & Wolf, Ann. Stat. 2002)."""
        f, d = self.freedom, self.d
        value = (f * d + 2) / (f + d + 1)
        return value, 2 * value * value / (f * d)

    def effective_rank(self) -> MeanSd:
        """From Σ λ·log λ: m·exp(−y/2) to leading order, the entropy of Page (PRL 1993)."""
        loss = self._mean(_x_log_x) / self.rank
        value = math.exp(math.log(self.rank) - loss)
        spread = self._variance(lambda x: (1 + loss) * x - _x_log_x(x)) / self.rank**2
        return value, value * math.sqrt(spread)

    def rankme(self) -> MeanSd:
        """As the effective rank, of the square roots; with the 1e−7 that RankMe adds to each share."""
        total, weighted = self._mean(np.sqrt), self._mean(_root_log_root)
        loss = weighted / total
        entropy = math.log(total) - loss + RANKME_EPSILON * self.rank * (math.log(self.rank) - 1)
        value = math.exp(entropy)
        spread = self._variance(lambda x: ((1 + loss) * np.sqrt(x) - _root_log_root(x)) / total)
        return value, value * math.sqrt(spread)

    def pc1_share(self) -> MeanSd:
        """λ_1/Σλ, from the first two moments of λ_1 (Tracy–Widom) over those of the trace (exact)."""
        f, d = self.freedom, self.d
        a, b = math.sqrt(f - 0.5), math.sqrt(d - 0.5)
        centre, scale = (a + b) ** 2, (a + b) * (1 / a + 1 / b) ** (1 / 3)
        largest = centre + scale * TRACY_WIDOM_MEAN
        value = largest / (f * d)
        square = (largest**2 + scale**2 * TRACY_WIDOM_VARIANCE) / (f * d * (f * d + 2))
        return value, math.sqrt(max(square - value * value, 0.0))

    def typical_spectrum(self) -> np.ndarray:
        """d eigenvalues, descending: the Marchenko–Pastur quantiles at (k − ½)/m, then d − m zeros."""
        theta, x = self._law()
        mass = np.cumsum(np.sin(theta) ** 2 / x)
        levels = (np.arange(self.rank) + 0.5) / self.rank
        angles = np.interp(levels, (mass - mass[0] / 2) / mass[-1], theta)  # from the largest eigenvalue down
        values = 1 + self.aspect + 2 * math.sqrt(self.aspect) * np.cos(angles)
        return np.concatenate([values, np.zeros(self.d - self.rank)])

    def draw(self, draws: int, *, seed: int = 0) -> np.ndarray:
        """Simulated spectra (draws, m), descending, of the same law; the other d − m eigenvalues are zero."""
        m, large = self.rank, max(self.freedom, self.d)
        generator = np.random.default_rng(seed)
        diagonal = generator.chisquare(large - np.arange(m), size=(draws, m))
        below = generator.chisquare(np.arange(m - 1, 0, -1), size=(draws, m - 1)) if m > 1 else np.zeros((draws, 0))
        tridiagonal = np.zeros((draws, m, m))  # B·Bᵀ of the bidiagonal B
        k = np.arange(m)
        tridiagonal[:, k, k] = diagonal + np.concatenate([np.zeros((draws, 1)), below], axis=1)
        tridiagonal[:, k[1:], k[:-1]] = np.sqrt(below * diagonal[:, :-1])
        return np.maximum(np.linalg.eigvalsh(tridiagonal)[:, ::-1], 0.0)

    def _law(self) -> tuple[np.ndarray, np.ndarray]:
        theta = (np.arange(NODES) + 0.5) * (math.pi / NODES)
        return theta, 1 + self.aspect + 2 * math.sqrt(self.aspect) * np.cos(theta)

    def _mean(self, statistic: Statistic) -> float:
        theta, x = self._law()
        values = statistic(x)
        edges = statistic(np.array([(1 - math.sqrt(self.aspect)) ** 2, (1 + math.sqrt(self.aspect)) ** 2]))
        bulk = float((2 * np.sin(theta) ** 2 / x * values).mean())
        return self.rank * bulk + float(edges.sum()) / 4 - float(values.mean()) / 2

    def _variance(self, statistic: Statistic) -> float:
        _, x = self._law()
        values, k = statistic(x), np.arange(NODES)
        mirrored = np.fft.rfft(np.concatenate([values, values[::-1]]))[:NODES]
        coefficients = (np.exp(-0.5j * math.pi / NODES * k) * mirrored).real / NODES  # 2·mean(g·cos kθ)
        return 0.5 * float((k * coefficients**2).sum())


def _x_log_x(x: np.ndarray) -> np.ndarray:
    return x * np.log(x, out=np.zeros_like(x), where=x > 0)


def _root_log_root(x: np.ndarray) -> np.ndarray:
    return np.sqrt(x) * np.log(x, out=np.zeros_like(x), where=x > 0) / 2
