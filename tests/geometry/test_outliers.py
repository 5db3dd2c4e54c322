"""Dimensions that stand out, and what chance makes stand out."""

from __future__ import annotations

import numpy as np
import pytest

from anisoscope.errors import UsageError
from anisoscope.geometry.outliers import mean_dimensions, outlier_dimensions


def test_variance_of_five_times_the_mean_counts_and_less_does_not() -> None:
    variances = np.ones(100)
    bar = 5 * 99 / 95  # at this variance it is exactly five times the mean
    variances[7] = bar * 1.001
    assert outlier_dimensions(variances) == [7]
    variances[7] = bar * 0.999
    assert outlier_dimensions(variances) == []


def test_isotropic_clouds_have_no_outlier_dimension() -> None:
    x = np.random.default_rng(0).standard_normal((200, 768))
    assert outlier_dimensions(x.var(axis=0)) == []
    assert outlier_dimensions(np.zeros(5)) == []


def test_a_planted_dimension_is_found_in_variance_and_in_mean() -> None:
    x = np.random.default_rng(0).standard_normal((500, 64))
    x[:, 10] *= 30
    x[:, 20] += 50
    assert outlier_dimensions(x.var(axis=0)) == [10]
    assert mean_dimensions(x.mean(axis=0)) == [20]


def test_a_mean_without_preferred_coordinates_needs_an_eighth_of_them() -> None:
    mean = np.random.default_rng(0).standard_normal(20_000)
    assert len(mean_dimensions(mean)) / 20_000 == pytest.approx(0.124, abs=0.005)


def test_dimensions_of_the_mean_hold_the_share_and_no_fewer_do() -> None:
    mean = np.random.default_rng(1).standard_normal(50)
    for share in (0.1, 0.5, 0.9, 1.0):
        chosen = mean_dimensions(mean, share=share)
        held = np.square(mean[chosen]).sum() / np.square(mean).sum()
        without_last = np.square(mean[chosen[:-1]]).sum() / np.square(mean).sum()
        assert without_last < share <= held + 1e-12


def test_a_zero_mean_has_none_and_a_wrong_share_is_refused() -> None:
    assert mean_dimensions(np.zeros(4)) == []
    with pytest.raises(UsageError):
        mean_dimensions(np.ones(4), share=0)
