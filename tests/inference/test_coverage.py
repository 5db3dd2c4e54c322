"""Do the intervals hold what they promise? On clouds of correlated sequences, 500 draws each, against the exact truth.

A vector is x = μ + a_s + e, with a_s shared by its sequence (sd 0.7) and e its own (sd 1), so x ~ N(μ, 1.49·I) and

    E u = μ̂ · r·Γ((d+1)/2) / (√2·Γ(d/2+1)) · ₁F₁(1/2; d/2+1; −r²/2)
    E‖x‖ = s√2·Γ((d+1)/2)/Γ(d/2) · ₁F₁(−1/2; d/2; −r²/2)

with s² = 1.49, r = ‖μ‖/s. A binomial of 500 draws at 0.95 has sd 0.01; the band is 0.92 to 0.98.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import gammaln, hyp1f1

from anisoscope.accumulate.moments import Moments
from anisoscope.geometry import cosine, drift
from anisoscope.inference.jackknife import jackknife_of
from anisoscope.inference.metrics import METRICS
from anisoscope.inference.spectra import cloud_spectrum

DRAWS, D, SEQUENCES = 500, 4, 200
MU, SHARED, OWN = 1.5, 0.7, 1.0
SPREAD = np.array([3.0, 2.0, 1.0, 1.0])  # sds of the axes, for the participation ratio


def mean_unit(mu, s, d=D):
    """Length of E u for x ~ N(μ, s²I)."""
    r = mu / s
    return r * np.exp(gammaln((d + 1) / 2) - gammaln(d / 2 + 1)) / np.sqrt(2) * hyp1f1(0.5, d / 2 + 1, -r * r / 2)


def mean_length(mu, s, d=D):
    r = mu / s
    return s * np.sqrt(2) * np.exp(gammaln((d + 1) / 2) - gammaln(d / 2)) * hyp1f1(-0.5, d / 2, -r * r / 2)


def truth() -> dict[str, float]:
    s2 = SHARED**2 + OWN**2
    centres = SHARED * np.random.default_rng(0).standard_normal((400_000, D)) + MU * np.eye(D)[0]
    within = np.square(mean_unit(np.linalg.norm(centres, axis=1), OWN)).mean()  # two vectors given their sequence
    return {
        "mean_cosine_inter": mean_unit(MU, s2**0.5) ** 2,
        "mean_cosine_intra": float(within),
        "resultant": mean_unit(MU, s2**0.5),
        "mean_norm": mean_length(MU, s2**0.5),
        "drift_norm": MU,
        "drift_ratio": MU**2 / (MU**2 + D * s2),
        "participation_ratio": float(np.square(SPREAD).sum() ** 2 / (SPREAD**4).sum()),
    }


def draw(rng: np.random.Generator, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    shared = SHARED * rng.standard_normal((len(lengths), D))[sequence]
    keys = rng.integers(0, 2**63, len(lengths)).astype(np.uint64)
    return shared + OWN * rng.standard_normal((len(sequence), D)), keys[sequence]


def intervals(noise: np.ndarray, keys: np.ndarray) -> dict[str, tuple[float, float]]:
    """The intervals of the directions of noise + μ, and of the spectrum of noise stretched along the axes."""
    moments = Moments(D, spectrum=False, reservoir=0)
    moments.update(torch.from_numpy(noise + MU * np.eye(D)[0]), sequences=keys, whole=True)
    s = moments.sums()
    n, unit, energy, pairs = s.group_n, s.group_unit, s.group_energy, s.group_pairs
    metrics = {
        "mean_cosine_inter": (cosine.mean_cosine_inter, (unit, n, energy, pairs)),
        "mean_cosine_intra": (cosine.mean_cosine_intra, (energy, n, pairs)),
        "resultant": (cosine.resultant, (unit, n)),
        "mean_norm": (drift.mean_norm, (s.group_norm, n)),
        "drift_norm": (drift.drift_norm, (s.group_x, n)),
        "drift_ratio": (drift.drift_ratio, (s.group_x, s.group_norm2, n)),
    }
    found = {name: jackknife_of(metric, *sums, sizes=n)[1:] for name, (metric, sums) in metrics.items()}
    stretched = Moments(D)
    stretched.update(torch.from_numpy(noise * SPREAD), sequences=keys, whole=True)
    shape = cloud_spectrum(stretched.sums(), stretched.reservoir.sample(), centred=True)
    ratio = METRICS["participation_ratio"]
    return found | {"participation_ratio": shape.interval(ratio, shape.value(ratio))}  # pyright: ignore


@pytest.mark.parametrize("lengths", ["equal", "unequal"])
def test_intervals_cover_the_truth_in_95_percent_of_draws(lengths: str) -> None:
    rng, true = np.random.default_rng(2024), truth()
    covered = dict.fromkeys(true, 0)
    for _ in range(DRAWS):
        counts = np.full(SEQUENCES, 5) if lengths == "equal" else rng.integers(1, 10, SEQUENCES)
        for name, (low, high) in intervals(*draw(rng, counts)).items():
            covered[name] += low <= true[name] <= high
    share = {name: count / DRAWS for name, count in covered.items()}
    assert all(0.92 <= value <= 0.98 for value in share.values()), share


def test_vectors_taken_for_independent_would_not_cover() -> None:
    """The same clouds with every vector as its own sequence: the test above has the power to see a wrong interval."""
    rng, true, covered = np.random.default_rng(1), truth()["mean_norm"], 0
    for _ in range(100):
        noise, keys = draw(rng, np.full(60, 20))
        low, high = intervals(noise, np.arange(len(keys), dtype=np.uint64))["mean_norm"]
        covered += low <= true <= high
    assert covered < 80
