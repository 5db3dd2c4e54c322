"""Nearest neighbours against brute force; intrinsic dimension and hubness on clouds whose answer is known."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.stats import skew

from anisoscope.errors import InputError, UsageError
from anisoscope.geometry.neighbours import (
    duplicates,
    hubness,
    mle_dimension,
    mle_point_terms,
    nearest,
    twonn,
    twonn_point_terms,
    twonn_weighted,
)
from anisoscope.geometry.pairs import centred_products


def brute_force(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    distances = cdist(x, x)
    np.fill_diagonal(distances, np.inf)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, order, axis=1), order


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), m=st.integers(3, 80), d=st.integers(1, 12), data=st.data())
def test_neighbours_equal_brute_force(seed: int, m: int, d: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, m - 1))
    x = np.random.default_rng(seed).standard_normal((m, d))
    distances, indices = nearest(x, k)
    expected, order = brute_force(x, k)
    np.testing.assert_allclose(distances, expected, rtol=1e-12)
    np.testing.assert_array_equal(indices, order)


@pytest.mark.parametrize("drift", [0.0, 30.0, 1e4])
def test_neighbours_from_products_that_are_there_are_the_same(drift: float) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.standard_normal((300, 40)), np.repeat(rng.integers(0, 2, size=(20, 40)), 3, axis=0)])
    x[:40] = x[40:80] + 1e-3 * x[80:120]  # near-duplicates, and above exact ones and many ties
    x = np.round(x * 2**20) / 2**20 + drift
    distances, indices = nearest(x, 10, products=centred_products(x))
    expected, order = brute_force(x, 10)
    np.testing.assert_allclose(distances, expected, rtol=1e-12)
    np.testing.assert_array_equal(indices, order)


def test_blocks_of_rows_do_not_show() -> None:
    x = np.random.default_rng(0).standard_normal((2300, 3))  # two blocks
    distances, indices = nearest(x, 4)
    expected, order = brute_force(x, 4)
    np.testing.assert_allclose(distances, expected, rtol=1e-12)
    np.testing.assert_array_equal(indices, order)


def test_drift_and_outlier_dimensions_cost_no_digits() -> None:
    rng = np.random.default_rng(0)
    x = np.round(rng.standard_normal((300, 8)) * 2**20) / 2**20
    far = x + 2.0**26  # exact in float64, and hopeless for ‖y‖² − 2x·y without centring
    far[:, 3] += 3000 * rng.integers(0, 2, size=300)
    distances, indices = nearest(far, 5)
    expected, order = brute_force(far, 5)
    np.testing.assert_allclose(distances, expected, rtol=1e-12)
    np.testing.assert_array_equal(indices, order)


def test_near_duplicates_keep_their_distance() -> None:
    x = np.random.default_rng(0).standard_normal((100, 6)) * 10
    x = np.concatenate([x, x + 1e-9])
    distances, indices = nearest(x, 1)
    np.testing.assert_allclose(distances[:, 0], 1e-9 * np.sqrt(6), rtol=1e-4)
    np.testing.assert_array_equal(indices[:100, 0], np.arange(100) + 100)


def test_tight_clusters_far_apart_are_told_apart_by_exact_distances() -> None:
    rng = np.random.default_rng(0)
    x = np.repeat(rng.standard_normal((50, 4)) * 1e6, 6, axis=0) + rng.standard_normal((300, 4)) * 1e-3
    distances, indices = nearest(x, 2)
    expected, order = brute_force(x, 2)
    np.testing.assert_allclose(distances, expected, rtol=1e-12)
    np.testing.assert_array_equal(indices, order)


def test_tied_neighbours_come_in_the_order_of_their_indices() -> None:
    x = np.random.default_rng(0).permutation(np.array([[i, j] for i in range(3) for j in range(3)], dtype=float))
    np.testing.assert_array_equal(nearest(x, 8)[1], brute_force(x, 8)[1])


@pytest.mark.parametrize("k", [0, 5])
def test_more_neighbours_than_there_are_is_refused(k: int) -> None:
    with pytest.raises(UsageError):
        nearest(np.eye(5), k)


def test_what_is_not_a_cloud_is_refused() -> None:
    with pytest.raises(InputError, match="rows of a matrix"):
        nearest(np.ones(5), 1)
    with pytest.raises(InputError, match="1 of 3 rows"):
        nearest(np.array([[1.0], [np.nan], [2.0]]), 1)


@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_dimension_of_a_flat_cloud_in_a_larger_space(dimension: int) -> None:
    rng = np.random.default_rng(0)
    flat = rng.uniform(size=(3000, dimension)) @ np.linalg.qr(rng.standard_normal((20, dimension)))[0].T
    distances, _ = nearest(flat, 20)
    assert twonn(distances) == pytest.approx(dimension, rel=0.08)
    assert mle_dimension(distances, 20) == pytest.approx(dimension, rel=0.12)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.floats(1e-3, 1e3))
def test_rotation_scale_and_order_do_not_matter(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((60, 4))
    rotation = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    y = scale * rng.permutation(x) @ rotation + 3.0
    (before, first), (after, second) = nearest(x, 10), nearest(y, 10)
    assert twonn(after) == pytest.approx(twonn(before), rel=1e-6)
    assert mle_dimension(after, 10) == pytest.approx(mle_dimension(before, 10), rel=1e-6)
    assert hubness(second, 60) == pytest.approx(hubness(first, 60), rel=1e-9)


def test_duplicated_points_are_counted_and_left_out() -> None:
    x = np.random.default_rng(0).standard_normal((200, 3))
    doubled = np.concatenate([x, x[:7]])
    distances, _ = nearest(doubled, 10)
    assert duplicates(distances) == 14
    clean = distances[distances[:, 0] > 0]
    assert twonn(distances) == twonn(clean)
    assert mle_dimension(distances, 10) == mle_dimension(clean, 10)
    assert np.isnan(twonn_point_terms(distances)).sum() == 14
    assert np.isnan(mle_point_terms(distances, 10)).sum() == 14


def test_only_duplicates_have_no_dimension() -> None:
    distances, _ = nearest(np.repeat(np.eye(3), 4, axis=0), 3)
    assert twonn(distances) is None
    assert mle_dimension(distances, 3) is None


def test_tied_neighbours_have_no_dimension() -> None:
    tied = np.ones((50, 5))
    assert twonn(tied) is None
    assert mle_dimension(tied, 5) is None


def test_point_terms_let_a_bootstrap_keep_the_neighbours() -> None:
    distances, _ = nearest(np.random.default_rng(0).uniform(size=(1500, 3)), 2)
    terms = twonn_point_terms(distances)
    np.testing.assert_allclose(terms, np.log(distances[:, 1] / distances[:, 0]), rtol=1e-9)
    often = np.random.default_rng(1).multinomial(1500, np.full(1500, 1 / 1500), size=200)
    resampled = twonn_weighted(np.sort(terms), often)
    assert np.mean(resampled) == pytest.approx(twonn(distances), rel=0.02)
    assert 0.02 < np.std(resampled) < 0.3


def test_a_ratio_that_counts_several_times_is_one_that_is_there_several_times() -> None:
    rng = np.random.default_rng(0)
    terms = np.sort(np.append(rng.exponential(size=200).round(2), [np.nan] * 9))
    often = rng.integers(0, 4, size=(30, len(terms)))
    often[0], often[1, 5:] = 0, 0  # nothing, and next to nothing
    for found, row in zip(twonn_weighted(terms, often), often, strict=True):
        ratios = np.repeat(terms, row)
        ratios = ratios[np.isfinite(ratios)]
        kept = int(0.9 * len(ratios))
        x, y = ratios[:kept], -np.log(1 - np.arange(1, kept + 1) / max(len(ratios), 1))
        expected = x @ y / (x @ x) if kept >= 2 and x.any() else np.nan
        assert found == pytest.approx(expected, rel=1e-12, nan_ok=True)


def test_hubness_is_the_skewness_of_occurrences() -> None:
    _, indices = nearest(np.random.default_rng(0).standard_normal((400, 50)), 12)
    counts = np.bincount(indices[:, :10].ravel(), minlength=400)
    assert hubness(indices, 400) == pytest.approx(skew(counts), rel=1e-12)


def test_hubs_appear_with_dimension_and_not_on_a_ring() -> None:
    rng = np.random.default_rng(0)
    low, high = (hubness(nearest(rng.standard_normal((500, d)), 10)[1], 500) for d in (2, 200))
    assert low is not None
    assert high is not None
    assert high > low + 1.5
    angle = 2 * np.pi * np.arange(40) / 40
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    counts = hubness(nearest(ring, 2)[1], 40, k=2)
    assert counts is None or abs(counts) < 2


def test_asking_for_columns_that_are_not_there_is_refused() -> None:
    distances, indices = nearest(np.random.default_rng(0).standard_normal((30, 2)), 5)
    with pytest.raises(UsageError):
        mle_dimension(distances, 6)
    with pytest.raises(UsageError):
        hubness(indices, 30, k=6)


def test_copies_that_differ_by_rounding_are_copies() -> None:
    """Before, 40 of them lowered the dimension of 500 points from 7.9 to 1.1."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 10)) + 5
    x[:40] = x[0]
    noisy = x.copy()
    noisy[:40] += 1e-7 * rng.standard_normal((40, 10))
    exact, rounded = (nearest(one, 60)[0] for one in (x, noisy))
    assert duplicates(exact) == duplicates(rounded) == 40
    for dimension in (twonn, partial(mle_dimension, k=60)):
        assert dimension(rounded) == pytest.approx(dimension(exact), rel=1e-6)
