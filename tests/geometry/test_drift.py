"""Norms and drift against numpy on the vectors themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anisoscope.geometry.drift import drift_norm, drift_ratio, mean_norm, norm_cv


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 50), d=st.integers(1, 20), drift=st.floats(-100, 100))
def test_sums_say_what_the_vectors_say(seed: int, n: int, d: int, drift: float) -> None:
    x = np.random.default_rng(seed).standard_normal((n, d)) + drift
    norms = np.linalg.norm(x, axis=1)
    s, first, second = x.sum(axis=0), norms.sum(), np.square(norms).sum()
    assert mean_norm(first, n) == pytest.approx(norms.mean(), rel=1e-12)
    assert norm_cv(first, second, n) == pytest.approx(norms.std(ddof=1) / norms.mean(), rel=1e-6, abs=1e-7)
    assert drift_norm(s, n) == pytest.approx(np.linalg.norm(x.mean(axis=0)), rel=1e-12)
    assert drift_ratio(s, second, n) == pytest.approx(
        np.square(x.mean(axis=0)).sum() / np.square(norms).mean(), rel=1e-12
    )


def test_energy_splits_into_mean_and_covariance() -> None:
    x = np.random.default_rng(0).standard_normal((200, 6)) + 2.0
    second = np.square(x).sum()
    variance = np.cov(x.T, bias=True).trace()
    assert 1 - drift_ratio(x.sum(axis=0), second, 200) == pytest.approx(variance / (second / 200), rel=1e-12)


def test_nothing_seen_is_missing() -> None:
    zero = np.zeros(3)
    assert mean_norm(0.0, 0) is None
    assert drift_norm(zero, 0) is None
    assert drift_ratio(zero, 0.0, 0) is None
    assert norm_cv(5.0, 25.0, 1) is None
    assert norm_cv(0.0, 0.0, 0) is None
    assert drift_ratio(zero, 0.0, 4) is None


def test_equal_norms_have_no_spread_despite_rounding() -> None:
    assert norm_cv(0.1 * 3, 0.1 * 0.1 * 3, 3) == pytest.approx(0.0, abs=1e-7)


def test_a_stack_equals_its_members_one_by_one() -> None:
    sums, first, second = np.arange(12.0).reshape(3, 4), np.array([5.0, 0.0, 9.0]), np.array([30.0, 0.0, 30.0])
    n = np.array([3, 0, 4])
    for function, arguments in (
        (mean_norm, (first, n)),
        (norm_cv, (first, second, n)),
        (drift_norm, (sums, n)),
        (drift_ratio, (sums, second, n)),
    ):
        single = [function(*(a[i] for a in arguments)) for i in range(3)]
        np.testing.assert_array_equal(function(*arguments), [np.nan if v is None else v for v in single])


def test_zero_mean_vectors_have_drift_ratio_one_over_n() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(400):
        x = rng.standard_normal((50, 8))
        found.append(drift_ratio(x.sum(axis=0), np.square(x).sum(), 50))
    assert np.mean(found) == pytest.approx(1 / 50, rel=0.1)
