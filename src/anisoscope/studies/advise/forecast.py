"""Neighbour overlap forecast from sums alone: from n, the mean and the covariance, without looking at a neighbour.

The cloud is taken to be Gaussian with the mean μ and the covariance V·diag(λ)·Vᵀ of the sums. Points

    x = μ + V·√λ·z,    z ~ N(0, I)

are drawn (seeded), stored as each variant says, and searched as the real ones are. At most 16,384 points stand for n
rows: with m of them the m·k/n nearest stand for the k nearest, the same share of the cloud, and at least one. What is
missing is what a mean and a covariance cannot know: topics and near-duplicates put real neighbours nearer than those of
a Gaussian cloud, and then coarse storage keeps more of them than forecast.

A closed form (the correlation ρ of a row's score with its score under the variant, and the tail of a bivariate normal
law) was tried and given up: neighbours are not the bulk, and on truly Gaussian clouds it was off by up to 0.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anisoscope.geometry.corrections import Corrections
from anisoscope.studies.advise.neighbours import Search
from anisoscope.studies.advise.variants import Variant

POINTS, QUERIES = 16384, 256
_BLOCK = 4096


def forecast(
    fitted: Corrections, groups: Sequence[Sequence[Variant]], *, n: int, k: int, seed: int = 0
) -> dict[Variant, float]:
    """The overlap of every variant with the vectors as they are; the first variant is these."""
    rng = np.random.default_rng(seed)
    spread = (fitted.axes * np.sqrt(fitted.values)).T  # (d, d)
    m = min(n, POINTS)
    x = (rng.standard_normal((m, len(fitted.mean))) @ spread + fitted.mean).astype(np.float32)
    own = np.arange(min(QUERIES, m))
    search = Search(groups, x[own], own, k=min(m - 1, max(1, round(k * m / n))))
    for at in range(0, m, _BLOCK):
        search.add(x[at : at + _BLOCK], np.arange(at, min(at + _BLOCK, m)))
    return {variant: float(shares.mean()) for variant, shares in search.overlap().items()}
