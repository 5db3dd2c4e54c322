"""Few vectors of many dimensions (flattened maps): the same numbers as by the long way, at the cost of few."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from anisoscope.accumulate.moments import Moments
from anisoscope.accumulate.sums import Sample
from anisoscope.geometry import neighbours
from anisoscope.geometry.directional import bingham_test
from anisoscope.geometry.nulls.isotropic import neighbour_null, spectral_null
from anisoscope.geometry.rows import in_span, middle_pair
from anisoscope.geometry.spectrum import OF_EIGENVALUES, of_leading
from anisoscope.inference.cloud import measure_cloud
from anisoscope.inference.neighbourhoods import neighbourhood_estimates


def cloud(m: int, d: int) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((m, d)).astype(np.float32) + 0.3
    x[3] = x[7]  # a duplicate
    x[5] = x[6] * (1 + 1e-6)  # all but one
    return x


def test_coordinates_in_the_span_keep_distances_and_duplicates() -> None:
    x = cloud(40, 9000)
    y = in_span(x)
    expected = cdist(x.astype(float), x.astype(float))
    assert y.shape == (40, 40)
    np.testing.assert_allclose(cdist(y, y), expected, rtol=1e-9, atol=1e-9)
    assert np.array_equal(y[3], y[7])
    assert not np.array_equal(y[5], y[6])


@pytest.mark.parametrize("apart", [1.0, 0.1, 1e-3, 1e-7])
def test_coordinates_in_the_span_keep_small_distances(apart: float) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal(5000) + apart * rng.standard_normal((30, 5000))
    y, expected = in_span(x), cdist(x, x)
    np.testing.assert_allclose(cdist(y, y), expected, rtol=1e-11 / apart, atol=0)
    np.testing.assert_allclose(y @ y.T, x @ x.T, rtol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 7, 1000, 1001])
def test_the_middle_pair_of_unsigned_numbers(size: int) -> None:
    for dtype in (np.float32, np.float64):
        x = np.random.default_rng(size).gamma(0.3, size=(3, size)).astype(dtype)
        x[:, : size // 3] = np.inf
        ordered, place = np.sort(x, -1), size // 2
        if place:
            lower, upper = middle_pair(x.copy(), place)
            assert np.array_equal(lower, ordered[:, place - 1])
            assert np.array_equal(upper, ordered[:, place])


@pytest.mark.parametrize("name", sorted(OF_EIGENVALUES))
def test_a_metric_of_the_leading_eigenvalues_is_that_of_all(name: str) -> None:
    leading, n, d = np.sort(np.random.default_rng(1).gamma(1.0, size=(5, 30)))[:, ::-1], 30, 700
    expected = OF_EIGENVALUES[name](np.pad(leading, ((0, 0), (0, d - 30))), n)
    np.testing.assert_allclose(of_leading(OF_EIGENVALUES[name], leading, n, d), expected, rtol=1e-12)


def test_a_sample_within_its_span_gives_the_estimates_of_the_vectors() -> None:
    x = cloud(64, 1000)
    sample = Sample(x, np.arange(64, dtype=np.uint64), np.zeros(64, np.int64), np.zeros(64, bool))
    wide = neighbourhood_estimates(sample)
    assert sample.span.shape == (64, 64)
    sample.__dict__["span"] = x.astype(float)  # the long way
    for found, expected in zip(wide, neighbourhood_estimates(sample), strict=True):
        for side in ("value", "low", "high", "null"):
            a, b = getattr(found, side), getattr(expected, side)
            assert (a is None) == (b is None), found.metric
            assert a is None or a == pytest.approx(b, rel=1e-8, abs=1e-10), found.metric


def test_bingham_in_a_subspace() -> None:
    x, keys = cloud(20, 300), np.arange(20) // 2
    found, expected = bingham_test(in_span(x), d=300, sequences=keys), bingham_test(x, sequences=keys)
    assert found is not None
    assert expected is not None
    assert (found.statistic, found.p_value) == pytest.approx((expected.statistic, expected.p_value), rel=1e-9)


def test_the_null_of_a_wide_cloud_is_that_of_a_drawn_one() -> None:
    m, d = 200, 9000
    drawn = neighbours.nearest(np.random.default_rng(5).standard_normal((m, d)), 10)[0]
    found = neighbour_null("mle_dimension", m, d).value
    assert found == pytest.approx(neighbours.mle_dimension(drawn, 10), rel=0.05)


def test_the_null_of_few_vectors_takes_no_memory_for_zeros() -> None:
    assert spectral_null("isoscore", 8, 10**9).value == pytest.approx(6 / (10**9 - 1), rel=1e-3)  # PR ≈ 7


def test_sums_of_no_vectors_are_not_stored_and_read_as_zero() -> None:
    moments = Moments(6, spectrum=True)
    moments.update(torch.randn(50, 6))
    state = moments.state()
    assert not {f"first.{name}" for name in ("x", "unit", "unit2", "second")} & state.keys()
    again = Moments.from_state(state)
    assert again.sums("first").n == 0
    assert not again.sums("first").group_x.any()
    np.testing.assert_array_equal(again.sums().group_unit, moments.sums().group_unit)


def test_a_flattened_map_of_a_few_images_is_measured() -> None:
    x = torch.from_numpy(cloud(40, 20_000))
    moments = Moments(20_000)
    moments.update(x, sequences=np.arange(40, dtype=np.uint64), whole=True)
    found = {one.metric: one.value for one in measure_cloud(moments).estimates["all"]}
    centred = x.double().numpy() - x.double().numpy().mean(0)
    values = np.linalg.svd(centred, compute_uv=False) ** 2
    ratio = values.sum() ** 2 / (values**2).sum()
    assert found["participation_ratio"] == pytest.approx(ratio, rel=1e-9)
    assert found["isoscore"] == pytest.approx((ratio - 1) / 19_999, rel=1e-9)
    assert found["twonn"] is not None
