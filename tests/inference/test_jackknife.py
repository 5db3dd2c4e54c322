"""The delete-a-group jackknife against what it must reduce to, and the bootstrap over whole sequences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from anisoscope.inference.bootstrap import bootstrap, sequence_draws
from anisoscope.inference.jackknife import jackknife, jackknife_of, standard_error, t_quantile, without_each


def mean(total, n):
    return total / n


def test_groups_of_one_give_students_interval_of_the_mean() -> None:
    x = np.random.default_rng(0).standard_normal(40) + 3
    value, low, high = jackknife_of(mean, x, np.ones(40), sizes=np.ones(40))
    expected = stats.t.interval(0.95, 39, loc=x.mean(), scale=stats.sem(x))
    assert value == pytest.approx(x.mean(), rel=1e-14)
    assert (low, high) == pytest.approx(expected, rel=1e-12)


def test_unequal_groups_follow_busing_meijer_and_van_der_leeden() -> None:
    """Their formula for the delete-m_j jackknife, written as in the paper, for a ratio of sums."""
    rng = np.random.default_rng(1)
    m = rng.integers(1, 30, 12).astype(float)
    total = m * 5 + rng.standard_normal(12) * m
    n, g, theta = m.sum(), 12, total.sum() / m.sum()
    left = (total.sum() - total) / (n - m)
    h = n / m
    estimate = g * theta - sum((1 - m[j] / n) * left[j] for j in range(g))
    variance = sum((h[j] * theta - (h[j] - 1) * left[j] - estimate) ** 2 / (h[j] - 1) for j in range(g)) / g
    assert float(standard_error(left, theta, m)) == pytest.approx(variance**0.5, rel=1e-12)


def test_empty_groups_do_not_count() -> None:
    rng = np.random.default_rng(2)
    total, n = rng.standard_normal(20), np.ones(20)
    holes = np.array([0, 5, 9])
    padded, sizes = np.insert(total, holes, 0.0), np.insert(n, holes, 0.0)
    assert jackknife_of(mean, padded, sizes, sizes=sizes) == pytest.approx(jackknife_of(mean, total, n, sizes=n))


def test_fewer_than_five_groups_give_no_interval() -> None:
    n = np.array([3.0, 4, 5, 6] + [0] * 28)
    value, low, high = jackknife_of(mean, n * 2.0, n, sizes=n)
    assert (value, low, high) == (2.0, None, None)
    low, high = jackknife(np.zeros((4, 2)), np.zeros(2), np.ones(4))
    assert np.isnan(low).all()
    assert np.isnan(high).all()


def test_a_metric_that_one_group_alone_makes_possible_has_a_value_and_no_interval() -> None:
    """Only group 3 has pairs within a sequence; without it the metric is undefined."""
    within, n = np.zeros(8), np.ones(8)
    within[3] = 2.0

    def ratio(above, below):
        return np.divide(above, below, out=np.full_like(np.asarray(above, float), np.nan), where=np.asarray(below) > 0)

    assert jackknife_of(ratio, within, within, sizes=n) == (1.0, None, None)


def test_an_undefined_metric_is_missing() -> None:
    assert jackknife_of(lambda s: None, np.ones(8), sizes=np.ones(8)) == (None, None, None)


def test_many_values_at_once_equal_one_at_a_time() -> None:
    x = np.random.default_rng(3).standard_normal((32, 5))
    left, sizes = without_each(x) / 31, np.ones(32)
    low, high = jackknife(left, x.mean(0), sizes)
    for k in range(5):
        assert (low[k], high[k]) == pytest.approx(jackknife(left[:, k], x[:, k].mean(), sizes))


def test_a_huge_value_beside_others_leaves_them_their_intervals() -> None:
    x = np.random.default_rng(4).standard_normal((32, 2)) + 1
    huge = x * np.array([1.0, 1e200])
    alone = jackknife(without_each(x[:, :1]) / 31, x[:, :1].mean(0), np.ones(32))
    low, high = jackknife(without_each(huge) / 31, huge.mean(0), np.ones(32))
    assert (low[0], high[0]) == pytest.approx((float(alone[0][0]), float(alone[1][0])), rel=1e-12)
    assert 0 < high[1] - low[1] < 1e201


def test_the_quantile_is_students() -> None:
    for degrees in range(1, 100):
        assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-12)


def test_the_bootstrap_draws_whole_sequences() -> None:
    keys = np.repeat(np.arange(20, dtype=np.uint64), np.arange(1, 21))
    draws = sequence_draws(keys, draws=50, seed=1)
    assert draws is not None
    weights = draws.weights
    for key in range(20):
        assert np.ptp(weights[:, keys == key], axis=1).max() == 0
    firsts = np.cumsum(np.arange(1, 21)) - np.arange(1, 21)
    assert (weights[:, firsts].sum(1) == 20).all()  # as many sequences as there are


def test_the_bootstraps_spread_is_that_of_independent_sequences() -> None:
    x = np.random.default_rng(4).standard_normal(200)
    keys = np.repeat(np.arange(200, dtype=np.uint64), 5)
    draws = sequence_draws(keys, draws=4000)
    low, high = bootstrap(lambda draws: draws.sums(x.repeat(5)) / draws.weights.sum(1), draws, float(x.mean()))
    assert low is not None
    assert high is not None
    assert (low + high) / 2 == pytest.approx(x.mean())
    assert (high - low) / 2 == pytest.approx(1.96 * x.std() / 200**0.5, rel=0.05)


def test_the_bootstrap_refuses_what_it_cannot_know() -> None:
    assert sequence_draws(np.repeat(np.arange(7, dtype=np.uint64), 9)) is None
    assert bootstrap(lambda draws: draws.weights.sum(1), None, 1.0) == (None, None)
    draws = sequence_draws(np.arange(30, dtype=np.uint64))
    assert draws is not None
    assert bootstrap(lambda draws: draws.weights.sum(1), draws, None) == (None, None)
    assert bootstrap(lambda draws: np.full(len(draws.counts), np.nan), draws, 1.0) == (None, None)


@pytest.mark.parametrize(("per_sequence", "count"), [(1, 10), (3, 10), (3, 40)])  # draws: fewer than sequences, or more
def test_sums_by_sequence_are_those_over_the_drawn_points(per_sequence: int, count: int) -> None:
    rng = np.random.default_rng(6)
    keys = rng.permutation(np.repeat(np.arange(20, dtype=np.uint64), per_sequence))
    x, kernel = rng.standard_normal((len(keys), 4)), rng.standard_normal((len(keys), len(keys)))
    draws, some = sequence_draws(keys, draws=count), rng.random(len(keys))
    assert draws is not None
    np.testing.assert_allclose(draws.sums(x), draws.weights @ x, atol=1e-12)
    np.testing.assert_allclose(draws.totals(some), [draws.weights @ some, draws.weights**2 @ some], rtol=1e-12)
    off = np.square(kernel - np.diag(np.diag(kernel)))
    for weights, pairs in zip(draws.weights, draws.pair_sums(kernel, np.square), strict=True):
        often = np.repeat(np.arange(len(keys)), weights.astype(int))
        assert pairs == pytest.approx(off[np.ix_(often, often)].sum(), abs=1e-10)  # never a point with itself
