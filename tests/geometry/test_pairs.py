"""The distribution of pair cosines and the average after post-processing, against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from scipy.stats import kstest

from anisoscope.errors import InputError, UsageError
from anisoscope.geometry.nulls.isotropic import cosine_cdf
from anisoscope.geometry.pairs import (
    mean_cosine_centred,
    mean_cosine_without_top,
    pair_cosines,
    principal_directions,
)


def average_cosine(x: np.ndarray) -> float:
    return float((1 - pdist(x, "cosine")).mean())


def test_all_pairs_equal_brute_force() -> None:
    x = np.random.default_rng(0).standard_normal((2300, 4)) + 0.5  # two blocks
    found = pair_cosines(x)
    assert found.exact
    assert found.pairs == 2300 * 2299 // 2
    np.testing.assert_allclose(found.cosines, np.sort(1 - pdist(x, "cosine")), atol=1e-12)
    assert found.mean() == pytest.approx(average_cosine(x), abs=1e-12)


def test_a_sample_of_pairs_is_seeded_sorted_never_of_a_vector_with_itself_and_fair() -> None:
    x = np.random.default_rng(0).standard_normal((500, 6)) + 0.5
    every, some = pair_cosines(x), pair_cosines(x, limit=20_000, seed=3)
    assert not some.exact
    assert len(some.cosines) == 20_000
    assert (np.diff(some.cosines) >= 0).all()
    assert some.cosines[-1] < 1 - 1e-6
    np.testing.assert_array_equal(some.cosines, pair_cosines(x, limit=20_000, seed=3).cosines)
    assert (some.cosines != pair_cosines(x, limit=20_000, seed=4).cosines).any()
    assert some.mean() == pytest.approx(every.mean(), abs=4 * every.sd() / np.sqrt(20_000))
    assert some.quantile(0.9) == pytest.approx(every.quantile(0.9), abs=0.02)


def test_quantiles_shares_and_histogram_agree_with_numpy() -> None:
    x = np.random.default_rng(0).standard_normal((200, 5)) + 0.3
    found, cosines = pair_cosines(x), 1 - pdist(x, "cosine")
    np.testing.assert_allclose(found.quantile([0.05, 0.5, 0.95]), np.quantile(cosines, [0.05, 0.5, 0.95]), atol=1e-12)
    assert found.above(0.7) == pytest.approx((cosines >= 0.7).mean(), abs=1e-12)
    assert found.above(-1.1) == 1.0
    assert found.mean_square() == pytest.approx(np.square(cosines).mean(), rel=1e-12)
    density, edges = found.histogram(bins=40)
    np.testing.assert_allclose(density, np.histogram(cosines, bins=40, range=(-1, 1), density=True)[0], atol=1e-9)
    assert (density * np.diff(edges)).sum() == pytest.approx(1.0)


def test_cosines_of_parallel_vectors_stay_in_the_histogram() -> None:
    x = np.outer(np.arange(1.0, 40.0), np.random.default_rng(0).standard_normal(7))
    density, edges = pair_cosines(x).histogram()
    assert (density * np.diff(edges)).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("d", [2, 3, 10, 300])
def test_disjoint_isotropic_pairs_follow_the_exact_law(d: int) -> None:
    x, y = np.random.default_rng(d).standard_normal((2, 4000, d))
    cosines = (x * y).sum(axis=1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
    assert kstest(cosines, lambda c: cosine_cdf(c, d)).pvalue > 0.01
    assert cosines.std() == pytest.approx(1 / np.sqrt(d), rel=0.05)


def test_centring_removes_drift() -> None:
    x = np.random.default_rng(0).standard_normal((800, 10)) + 100.0
    assert mean_cosine_centred(x) == pytest.approx(average_cosine(x - x.mean(axis=0)), abs=1e-12)
    assert mean_cosine_centred(x) == pytest.approx(-1 / 799, abs=5e-4)


@pytest.mark.parametrize("shape", [(300, 12), (12, 300), (40, 40)])
@pytest.mark.parametrize("k", [0, 1, 4])
def test_removing_principal_components_equals_an_svd(shape: tuple[int, int], k: int) -> None:
    x = np.random.default_rng(0).standard_normal(shape) * np.linspace(3, 0.5, shape[1]) + 1.0
    centred = x - x.mean(axis=0)
    top = np.linalg.svd(centred, full_matrices=False)[2][:k].T
    assert mean_cosine_without_top(x, k) == pytest.approx(average_cosine(centred - centred @ top @ top.T), abs=1e-11)
    found = principal_directions(centred, k)
    np.testing.assert_allclose(found @ found.T, top @ top.T, atol=1e-10)
    np.testing.assert_allclose(found.T @ found, np.eye(k), atol=1e-12)


def test_two_islands_survive_centring_and_not_the_removal_of_their_axis() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 8)) * 0.5
    x[:150, 0] += 10
    centred, without = mean_cosine_centred(x), mean_cosine_without_top(x, 1)
    assert centred is not None
    assert without is not None
    assert centred > 0.1
    assert abs(without) < 0.01


def test_nothing_left_is_missing_and_not_rounding() -> None:
    line = np.outer(np.linspace(-3, 5, 60), np.random.default_rng(0).standard_normal(9)) + 7.0
    assert mean_cosine_without_top(line, 1) is None
    assert mean_cosine_centred(np.tile([0.1, 0.7, 0.3], (50, 1))) is None


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(InputError):
        pair_cosines(np.ones((1, 3)))
    with pytest.raises(InputError, match="no direction"):
        pair_cosines(np.zeros((4, 3)))
    with pytest.raises(UsageError):
        mean_cosine_without_top(np.ones((10, 3)), 3)
