"""Kurtosis, largest entries and the growth of norms, against scipy and brute force on the whole array."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from anisoscope.accumulate.moments import Moments
from anisoscope.accumulate.sums import Sample
from anisoscope.inference.cloud import measure_cloud
from anisoscope.inference.extremes import extreme_estimates

D = 24


def _cloud(seed: int = 0, n: int = 600) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vectors with one massive dimension at first positions, their sequences and positions."""
    x = np.random.default_rng(seed).standard_normal((n, D))
    keys, positions = np.repeat(np.arange(n // 20, dtype=np.uint64), 20), np.tile(np.arange(20), n // 20)
    x[positions == 0, 7] += 5000.0
    x[:, 3] *= 3
    return x, keys, positions


def _moments(x: np.ndarray, keys: np.ndarray, positions: np.ndarray, *, chunks: int = 3) -> Moments:
    moments = Moments(D, maxima=True)
    for rows in np.array_split(np.arange(len(x)), chunks):
        moments.update(
            torch.from_numpy(x[rows]), sequences=keys[rows], positions=positions[rows], first=positions[rows] == 0
        )
    return moments


def _nothing() -> Sample:
    return Moments(D).sample()


def test_kurtosis_is_that_of_scipy_about_zero() -> None:
    x, keys, positions = _cloud()
    cloud = measure_cloud(_moments(x, keys, positions), neighbours=False)
    for part, chosen in (("all", positions >= 0), ("rest", positions > 0), ("first", positions == 0)):
        found = next(e for e in cloud.estimates[part] if e.metric == "kurtosis")
        flat = x[chosen].ravel()
        expected = stats.kurtosis(np.concatenate((flat, -flat)), fisher=False)  # whose mean is zero
        assert found.value == pytest.approx(expected, rel=1e-10), part
        assert found.low is not None
        assert found.null == pytest.approx(3 * D / (D + 2))


def test_massive_activations_are_named() -> None:
    x, keys, positions = _cloud()
    found = {e.metric: e for e in measure_cloud(_moments(x, keys, positions), neighbours=False).estimates["all"]}
    size = np.abs(x)
    row = size[:, 7].argmax()
    assert found["massive_activation"].value == size.max()
    assert found["massive_activation"].note == f"dimension 7 of the vector at position {positions[row]} of its sequence"
    assert found["massive_activation_ratio"].value == pytest.approx(size.max() / np.median(size), rel=0.05)
    assert found["massive_dimensions"].value == 1
    assert found["massive_dimensions"].note == "dimension 7 (position 0)"
    assert found["massive_activation"].null == pytest.approx(3.9 * np.sqrt((x**2).mean()), rel=0.1)


def test_the_median_entry_of_few_vectors_is_that_of_all() -> None:
    x, keys, positions = _cloud(n=240)
    found = {e.metric: e for e in measure_cloud(_moments(x, keys, positions), neighbours=False).estimates["all"]}
    assert found["massive_activation_ratio"].value == pytest.approx(np.abs(x).max() / np.median(np.abs(x)), rel=1e-6)


def test_an_isotropic_cloud_has_no_massive_activation() -> None:
    x = np.random.default_rng(1).standard_normal((500, D))
    moments = _moments(x, np.arange(500, dtype=np.uint64), np.zeros(500, dtype=np.int64))
    found = {e.metric: e for e in measure_cloud(moments, neighbours=False).estimates["all"]}
    assert found["massive_dimensions"].value == 0
    assert found["massive_activation_ratio"].value == pytest.approx(found["massive_activation_ratio"].null, rel=0.3)
    assert found["kurtosis"].value == pytest.approx(3, rel=0.05)


def test_norm_growth_pairs_the_groups() -> None:
    x, keys, positions = _cloud()
    before, after = _moments(x, keys, positions).sums(), _moments(2 * x, keys, positions).sums()
    (growth,) = extreme_estimates(None, _nothing(), after, before)
    assert (growth.value, growth.low, growth.high) == pytest.approx((2, 2, 2))
    y = x + np.random.default_rng(2).standard_normal(x.shape)
    (growth,) = extreme_estimates(None, _nothing(), _moments(y, keys, positions).sums(), before)
    expected = np.linalg.norm(y, axis=1).mean() / np.linalg.norm(x, axis=1).mean()
    assert growth.value == pytest.approx(expected, rel=1e-12)


def test_moments_with_maxima_merge_and_survive_storage() -> None:
    x, keys, positions = _cloud()
    whole = _moments(x, keys, positions, chunks=1)
    halves = [_moments(x[part], keys[part], positions[part]) for part in (slice(0, 200), slice(200, None))]
    joined = Moments.from_state(halves[1].state())
    joined.merge(halves[0])
    for name, expected in whole.state().items():
        if name.startswith("extremes.") or name.endswith("fourth"):
            np.testing.assert_allclose(joined.state()[name], expected, rtol=1e-12, err_msg=name)


def test_sums_of_earlier_versions_have_no_kurtosis() -> None:
    state = {name: t for name, t in _moments(*_cloud()).state().items() if "fourth" not in name and "extr" not in name}
    found = {e.metric: e for e in measure_cloud(Moments.from_state(state), neighbours=False).estimates["all"]}
    assert found["kurtosis"].value is None
    assert "massive_activation" not in found
