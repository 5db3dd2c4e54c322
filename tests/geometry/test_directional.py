"""Tests of uniformity: their size under the null, with and without dependence, and their power; concentration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, kstest

from anisoscope.errors import InputError
from anisoscope.geometry.directional import (
    DirectionTest,
    bessel_ratio,
    bingham_test,
    effective_sample_size,
    rayleigh_test,
    vmf_kappa,
)


def units(rng: np.random.Generator, *shape: int) -> np.ndarray:
    x = rng.standard_normal(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def correlated(rng: np.random.Generator, sequences: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Isotropic as a population, alike within a sequence; sequences of 1 to 20 vectors."""
    keys = np.repeat(np.arange(sequences), rng.integers(1, 21, size=sequences))
    x = units(rng, len(keys), d) + units(rng, sequences, d)[keys]
    return x / np.linalg.norm(x, axis=1, keepdims=True), keys


def p_value(test: DirectionTest | None) -> float:
    assert test is not None
    return test.p_value


def sums(u: np.ndarray, keys: np.ndarray) -> tuple[float, float]:
    groups = [u[keys == key] for key in np.unique(keys)]
    return sum(float(np.square(g.sum(axis=0)).sum()) for g in groups), float(sum(len(g) ** 2 for g in groups))


@pytest.mark.parametrize(("n", "d"), [(10, 3), (50, 20), (12, 64), (400, 2)])
def test_p_values_are_uniform_when_directions_are(n: int, d: int) -> None:
    rng = np.random.default_rng(n + d)
    drawn = units(rng, 1500, n, d)
    rayleigh = [p_value(rayleigh_test(u.sum(axis=0), n)) for u in drawn]
    bingham = [p_value(bingham_test(u)) for u in drawn]
    assert kstest(rayleigh, "uniform").pvalue > 0.005
    assert kstest(bingham, "uniform").pvalue > 0.005


def test_p_values_are_uniform_under_dependence_only_with_the_effective_sample_size() -> None:
    rng = np.random.default_rng(0)
    naive, honest, naive_axes, honest_axes = [], [], [], []
    for _ in range(500):
        u, keys = correlated(rng, 80, 8)
        energy, pairs = sums(u, keys)
        size = effective_sample_size(len(u), energy, pairs)
        naive.append(p_value(rayleigh_test(u.sum(axis=0), len(u))))
        honest.append(p_value(rayleigh_test(u.sum(axis=0), len(u), n_effective=size)))
        naive_axes.append(p_value(bingham_test(u)))
        honest_axes.append(p_value(bingham_test(u, sequences=keys)))
    assert np.mean(np.array(naive) < 0.05) > 0.5
    assert np.mean(np.array(honest) < 0.05) == pytest.approx(0.05, abs=0.025)
    assert kstest(honest, "uniform").pvalue > 0.005
    assert np.mean(np.array(naive_axes) < 0.05) > 0.3
    assert np.mean(np.array(honest_axes) < 0.05) == pytest.approx(0.05, abs=0.03)


def test_each_test_sees_its_own_departure() -> None:
    rng = np.random.default_rng(0)
    drifted = rng.standard_normal((500, 20)) + np.eye(20)[0]
    stretched = rng.standard_normal((500, 20)) * np.where(np.arange(20) == 0, 2.0, 1.0)
    drifted /= np.linalg.norm(drifted, axis=1, keepdims=True)
    stretched /= np.linalg.norm(stretched, axis=1, keepdims=True)
    power = {
        "drift": p_value(rayleigh_test(drifted.sum(axis=0), 500)),
        "axis": p_value(bingham_test(stretched)),
        "drift of a stretched cloud": p_value(rayleigh_test(stretched.sum(axis=0), 500)),
    }
    assert power["drift"] < 1e-6
    assert power["axis"] < 1e-6
    assert power["drift of a stretched cloud"] > 0.01


def test_large_samples_give_the_chi_squared_of_the_textbooks() -> None:
    rng = np.random.default_rng(0)
    u = units(rng, 20_000, 6)
    rayleigh, bingham = rayleigh_test(u.sum(axis=0), 20_000), bingham_test(u)
    assert rayleigh is not None
    assert bingham is not None
    mean, second = u.mean(axis=0), u.T @ u / 20_000
    assert rayleigh.statistic == pytest.approx(6 * 20_000 * mean @ mean)
    assert rayleigh.p_value == pytest.approx(chi2.sf(rayleigh.statistic, 6), abs=1e-4)
    assert bingham.statistic == pytest.approx(6 * 8 / 2 * 20_000 * (np.trace(second @ second) - 1 / 6))
    assert bingham.degrees == 20
    assert bingham.p_value == pytest.approx(chi2.sf(bingham.statistic, 20), abs=1e-4)


def test_bingham_is_the_same_from_the_gram_matrix_and_blind_to_signs() -> None:
    rng = np.random.default_rng(0)
    wide = units(rng, 10, 30)
    second = wide.T @ wide / 10
    found = bingham_test(wide * rng.choice([-1.0, 1.0], size=(10, 1)))
    assert found is not None
    assert found.statistic == pytest.approx(30 * 32 / 2 * 10 * (np.square(second).sum() - 1 / 30))
    again = bingham_test(wide, cosines=wide @ wide.T)
    assert again is not None
    assert again.statistic == pytest.approx(found.statistic, rel=1e-12)


def test_sequences_may_be_named_and_must_be_as_many_as_rows() -> None:
    rng = np.random.default_rng(0)
    u, keys = correlated(rng, 20, 5)
    names = np.array([f"text {key}" for key in keys])
    named, numbered = bingham_test(u, sequences=names), bingham_test(u, sequences=keys)
    assert named is not None
    assert numbered is not None
    assert named.statistic == pytest.approx(numbered.statistic, rel=1e-12)
    assert named.n_effective < len(u) / 2
    alone = bingham_test(u, sequences=np.arange(len(u)))
    assert alone is not None
    assert alone.n_effective == pytest.approx(len(u), rel=1e-12)
    with pytest.raises(InputError):
        bingham_test(u, sequences=keys[:-1])


@settings(deadline=None)
@given(n=st.integers(1, 50), size=st.integers(1, 20))
def test_copies_of_a_sequence_count_once(n: int, size: int) -> None:
    total = n * size
    assert effective_sample_size(total, energy=n * size**2, pairs=n * size**2) == pytest.approx(n)
    assert effective_sample_size(total, energy=float(total), pairs=n * size**2) == pytest.approx(total)


def test_effective_sample_size_gives_the_error_of_the_mean_direction_under_drift() -> None:
    rng = np.random.default_rng(0)
    centres = []
    sizes = []
    for _ in range(400):
        keys = np.repeat(np.arange(60), 10)
        x = rng.standard_normal((600, 12)) + rng.standard_normal((60, 12))[keys] + 2.0
        u = x / np.linalg.norm(x, axis=1, keepdims=True)
        energy, pairs = sums(u, keys)
        s = u.sum(axis=0)
        inter = (s @ s - energy) / (600**2 - pairs)
        sizes.append((1 - inter) / effective_sample_size(600, energy, pairs, inter=inter))
        centres.append(u.mean(axis=0))
    spread = np.array(centres).var(axis=0, ddof=1).sum()  # E‖ū − μ‖²
    assert np.mean(sizes) == pytest.approx(spread, rel=0.1)


def test_too_few_vectors_are_no_test() -> None:
    assert rayleigh_test(np.array([1.0, 0.0]), 1) is None
    assert bingham_test([[1.0, 0.0]]) is None
    assert bingham_test([[1.0], [1.0]]) is None
    assert effective_sample_size(0, 0.0, 0.0) is None


@pytest.mark.parametrize("d", [2, 3, 10, 100, 768, 4096])
@pytest.mark.parametrize("length", [1e-6, 1e-3, 0.05, 0.3, 0.7, 0.95, 0.999])
def test_concentration_solves_its_equation(d: int, length: float) -> None:
    kappa = vmf_kappa(length, d)
    assert kappa is not None
    assert bessel_ratio(d / 2 - 1, kappa) == pytest.approx(length, rel=1e-11)
    lower, upper = length * (d - length**2) / (1 - length**2) * np.array([0.9, 1.2])
    assert lower < kappa < upper


def test_concentration_in_three_dimensions_is_the_inverse_langevin_function() -> None:
    for kappa in (0.01, 1.0, 10.0, 300.0):
        assert vmf_kappa(1 / np.tanh(kappa) - 1 / kappa, 3) == pytest.approx(kappa, rel=1e-9)


def test_no_concentration_and_no_spread() -> None:
    assert vmf_kappa(0.0, 50) == 0.0
    assert vmf_kappa(1.0, 50) is None
    with pytest.raises(InputError):
        vmf_kappa(1.5, 50)


@pytest.mark.parametrize("order", [0.0, 0.5, 49.0, 383.0, 2047.0])
@pytest.mark.parametrize("x", [1e-3, 1.0, 60.0, 900.0, 4000.0, 1e5])
def test_bessel_ratio_satisfies_its_recurrence(order: float, x: float) -> None:
    lower, upper = bessel_ratio(order, x), bessel_ratio(order + 1, x)
    assert 1 / lower == pytest.approx(2 * (order + 1) / x + upper, rel=1e-11)
    assert 0 < upper < lower < 1


def test_bessel_ratio_is_smooth_where_the_scaled_functions_vanish() -> None:
    for x in np.geomspace(1000, 3500, 120):
        lower, upper = bessel_ratio(2047.0, x), bessel_ratio(2048.0, x)
        assert 1 / lower == pytest.approx(2 * 2048 / x + upper, rel=1e-11)
