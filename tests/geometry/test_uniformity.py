"""Uniformity: the published formula over the pairs of a sample, and its exact null."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from scipy.special import hyp0f1

import anisoscope
from anisoscope.geometry.nulls.isotropic import cosine_density
from anisoscope.geometry.uniformity import uniformity_null, uniformity_null_sd


def uniformity(x: np.ndarray, *, t: float = 2.0) -> float:
    """The published formula, over all pairs."""
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    return float(np.log(np.exp(-t * pdist(u) ** 2).mean()))


@pytest.mark.parametrize("shift", [0.3, 50.0])
def test_a_measured_cloud_has_the_uniformity_of_the_published_formula(shift: float) -> None:
    x = np.random.default_rng(0).standard_normal((600, 5)) + shift
    assert anisoscope.vectors(x).value("uniformity") == pytest.approx(uniformity(x), rel=1e-5)


@pytest.mark.parametrize("d", [2, 3, 10, 768])
@pytest.mark.parametrize("t", [0.5, 2.0])
def test_null_is_the_integral_over_the_sphere(d: int, t: float) -> None:
    theta = (np.arange(200_000) + 0.5) * np.pi / 200_000  # c = cos θ tames the edges at d = 2
    c = np.cos(theta)
    mean = (np.exp(-t * (2 - 2 * c)) * cosine_density(c, d) * np.sin(theta)).sum() * np.pi / 200_000
    assert uniformity_null(d, t=t) == pytest.approx(np.log(mean), abs=1e-8)


@pytest.mark.parametrize("d", [64, 768, 4096])
def test_null_is_minus_four_plus_eight_over_d_to_first_order(d: int) -> None:
    assert uniformity_null(d) == pytest.approx(-4 + 8 / d, abs=60 / d**2)


@pytest.mark.parametrize("d", [2, 3, 17, 300])
def test_null_has_all_the_digits_of_scipys_function(d: int) -> None:
    for t in (0.5, 2.0, 4.0):
        assert uniformity_null(d, t=t) == pytest.approx(-2 * t + np.log(hyp0f1(d / 2, t * t)), rel=1e-12)


def test_null_has_the_mean_and_sd_of_simulated_clouds() -> None:
    rng = np.random.default_rng(0)
    found = [uniformity(rng.standard_normal((40, 6))) for _ in range(600)]
    sd = uniformity_null_sd(40, 6)
    assert sd is not None
    assert np.mean(found) == pytest.approx(uniformity_null(6), abs=4 * sd / np.sqrt(600))
    assert np.std(found) == pytest.approx(sd, rel=0.12)
    assert uniformity_null_sd(1, 6) is None
