"""The distribution of pair cosines and the average after post-processing, against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from scipy.stats import kstest

from anisoscope.errors import InputError, UsageError
from anisoscope.geometry.nulls.isotropic import cosine_cdf
from anisoscope.geometry.pairs import (
    above_diagonal,
    centred_products,
    cosines,
    mean_cosine_of,
    principal_directions,
    sorted_quantiles,
    without_top,
)


def average_cosine(x: np.ndarray) -> float:
    return float((1 - pdist(x, "cosine")).mean())


def test_all_pairs_equal_brute_force() -> None:
    x = np.random.default_rng(0).standard_normal((300, 4)) + 0.5
    np.testing.assert_allclose(above_diagonal(cosines(x)), 1 - pdist(x, "cosine"), atol=1e-12)


@pytest.mark.parametrize(("drift", "shortest"), [(0.0, 1.0), (3.0, 1.0), (1e3, 1.0), (3.0, 1e-6), (1e3, 1e-6)])
def test_cosines_from_centred_products_lose_no_digits(drift: float, shortest: float) -> None:
    x = np.random.default_rng(0).standard_normal((300, 40)) + drift
    x[:5] *= shortest
    found = cosines(x, products=centred_products(x))
    np.testing.assert_allclose(found, cosines(x), rtol=0, atol=1e-14)


def test_quantiles_of_ordered_values_are_those_of_numpy() -> None:
    values, levels = np.sort(np.random.default_rng(0).standard_normal(1234)), (0.0, 0.01, 0.5, 0.77, 1.0)
    np.testing.assert_allclose(sorted_quantiles(values, levels), np.quantile(values, levels), rtol=1e-13)


@pytest.mark.parametrize("d", [2, 3, 10, 300])
def test_disjoint_isotropic_pairs_follow_the_exact_law(d: int) -> None:
    x, y = np.random.default_rng(d).standard_normal((2, 4000, d))
    cosines = (x * y).sum(axis=1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
    assert kstest(cosines, lambda c: cosine_cdf(c, d)).pvalue > 0.01
    assert cosines.std() == pytest.approx(1 / np.sqrt(d), rel=0.05)


def test_centring_removes_drift() -> None:
    x = np.random.default_rng(0).standard_normal((800, 10)) + 100.0
    assert mean_cosine_of(without_top(x, 0)) == pytest.approx(average_cosine(x - x.mean(axis=0)), abs=1e-12)
    assert mean_cosine_of(without_top(x, 0)) == pytest.approx(-1 / 799, abs=5e-4)


@pytest.mark.parametrize("shape", [(300, 12), (12, 300), (40, 40)])
@pytest.mark.parametrize("k", [0, 1, 4])
def test_removing_principal_components_equals_an_svd(shape: tuple[int, int], k: int) -> None:
    x = np.random.default_rng(0).standard_normal(shape) * np.linspace(3, 0.5, shape[1]) + 1.0
    centred = x - x.mean(axis=0)
    top = np.linalg.svd(centred, full_matrices=False)[2][:k].T
    assert mean_cosine_of(without_top(x, k)) == pytest.approx(
        average_cosine(centred - centred @ top @ top.T), abs=1e-11
    )
    found = principal_directions(centred, k) if k else np.zeros((shape[1], 0))
    np.testing.assert_allclose(found @ found.T, top @ top.T, atol=1e-10)
    np.testing.assert_allclose(found.T @ found, np.eye(k), atol=1e-12)


def test_two_islands_survive_centring_and_not_the_removal_of_their_axis() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 8)) * 0.5
    x[:150, 0] += 10
    centred, without = mean_cosine_of(without_top(x, 0)), mean_cosine_of(without_top(x, 1))
    assert centred is not None
    assert without is not None
    assert centred > 0.1
    assert abs(without) < 0.01


def test_nothing_left_is_missing_and_not_rounding() -> None:
    line = np.outer(np.linspace(-3, 5, 60), np.random.default_rng(0).standard_normal(9)) + 7.0
    assert mean_cosine_of(without_top(line, 1)) is None
    assert mean_cosine_of(without_top(np.tile([0.1, 0.7, 0.3], (50, 1)), 0)) is None


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(InputError, match="no direction"):
        cosines(np.zeros((4, 3)))
    with pytest.raises(UsageError):
        without_top(np.ones((10, 3)), 3)
