"""Correlation tests against scipy: the coefficients, the asymptotic p-values and the exact permutation p-values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from anisoscope.inference.correlation import correlate


def layers(n: int, seed: int, *, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal(n)
    b = 0.6 * a + rng.standard_normal(n)
    return (np.round(a), np.round(b)) if ties else (a, b)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("method", "reference"), [("spearman", stats.spearmanr), ("pearson", stats.pearsonr)])
def test_values_and_asymptotic_p_equal_scipys(method: str, reference, ties: bool) -> None:
    for seed in range(5):
        a, b = layers(13, seed, ties=ties)
        found, expected = correlate(a, b, method=method), reference(a, b)
        assert found.value == pytest.approx(expected.statistic, abs=1e-12)
        assert found.p_asymptotic == pytest.approx(expected.pvalue, rel=1e-9)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("method", ["spearman", "pearson"])
@pytest.mark.parametrize("n", [3, 5, 7])
def test_the_p_value_is_exact_for_few_layers(method: str, n: int, ties: bool) -> None:
    a, b = layers(n, 4, ties=ties)
    x, y = (stats.rankdata(a), stats.rankdata(b)) if method == "spearman" else (a, b)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        pytest.skip("constant")
    exact = stats.permutation_test(
        (y,),
        lambda z, axis: abs(((x - x.mean()) * z).sum(axis)),
        permutation_type="pairings",
        alternative="greater",
        n_resamples=np.inf,
        vectorized=True,
    )
    found = correlate(a, b, method=method)
    assert found.p == pytest.approx(exact.pvalue, rel=1e-12)
    assert found.how.startswith("exact")


def test_many_layers_are_tested_by_seeded_random_orders() -> None:
    a, b = layers(12, 1)
    found, again, reseeded = correlate(a, b), correlate(a, b), correlate(a, b, seed=1)
    assert found == again
    assert found.p != reseeded.p
    assert found.p == pytest.approx(reseeded.p, abs=0.015)
    assert found.p is not None
    assert found.p_asymptotic is not None
    assert found.p == pytest.approx(found.p_asymptotic, abs=0.03)  # the two agree where there are a dozen points
    assert "random orders" in found.how


def test_a_random_p_value_is_never_zero() -> None:
    perfect = correlate(np.arange(12), np.arange(12) ** 3)
    assert perfect.value == pytest.approx(1.0)
    assert perfect.p == pytest.approx(1 / 20_001)


def test_p_values_are_uniform_where_nothing_is_related() -> None:
    rng = np.random.default_rng(0)
    p = [correlate(rng.standard_normal(6), rng.standard_normal(6)).p for _ in range(300)]
    assert abs(np.mean([value <= 0.1 for value in p if value is not None]) - 0.1) < 0.055


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1, 2], [1, 2]),
        ([1, 1, 1, 1], [1, 2, 3, 4]),
        ([1 + 1e-7, 1, 1 - 1e-7, 1 + 2e-7], [1, 2, 3, 4]),  # equal but for rounding in float32
        ([1, 2, np.nan], [1, 2, 3]),
        ([], []),
    ],
)
def test_what_has_no_correlation_is_missing(a: list[float], b: list[float]) -> None:
    found = correlate(a, b)
    assert (found.value, found.p, found.p_asymptotic) == (None, None, None)


def test_missing_layers_are_passed_over() -> None:
    a, b = layers(8, 2)
    holed = np.insert(a, 3, np.nan)
    assert correlate(holed, np.insert(b, 3, 7.0)) == correlate(a, b)
