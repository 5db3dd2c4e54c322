"""Uniformity: its invariances, its exact null and what it says of simple clouds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from anisoscope.errors import InputError
from anisoscope.geometry.nulls.isotropic import cosine_density
from anisoscope.geometry.uniformity import uniformity, uniformity_null, uniformity_null_sd


@pytest.mark.parametrize("t", [0.5, 2.0, 5.0])
def test_equals_the_published_formula(t: float) -> None:
    x = np.random.default_rng(0).standard_normal((2500, 5)) + 0.3  # two blocks
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert uniformity(x, t=t) == pytest.approx(np.log(np.exp(-t * pdist(u) ** 2).mean()), rel=1e-12)


def test_one_direction_gives_zero_and_one_vector_nothing() -> None:
    assert uniformity(np.outer([1.0, 2.0, 3.0], [3.0, 4.0])) == pytest.approx(0.0, abs=1e-12)
    assert uniformity([[1.0, 2.0]]) is None


def test_zero_vectors_are_refused() -> None:
    with pytest.raises(InputError, match="no direction"):
        uniformity([[0.0, 0.0], [1.0, 0.0]])


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


def test_null_has_the_mean_and_sd_of_simulated_clouds() -> None:
    rng = np.random.default_rng(0)
    found = [uniformity(rng.standard_normal((40, 6))) for _ in range(600)]
    sd = uniformity_null_sd(40, 6)
    assert sd is not None
    assert np.mean(found) == pytest.approx(uniformity_null(6), abs=4 * sd / np.sqrt(600))
    assert np.std(found) == pytest.approx(sd, rel=0.12)
    assert uniformity_null_sd(1, 6) is None
