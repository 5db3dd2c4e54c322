"""The average cosine from sums against the pairs themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anisoscope.geometry.cosine import (
    cosine_share,
    mean_cosine,
    mean_cosine_inter,
    mean_cosine_intra,
    resultant,
    top_shares,
)


def units_of(seed: int, n: int, d: int, drift: float = 0.5) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((n, d))
    x[:, 0] += drift
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def sums_by_sequence(u: np.ndarray, sequences: np.ndarray) -> tuple[float, int]:
    groups = [u[sequences == key] for key in np.unique(sequences)]
    return sum(float(np.square(g.sum(axis=0)).sum()) for g in groups), sum(len(g) ** 2 for g in groups)


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 60), d=st.integers(1, 40), drift=st.floats(0, 50))
def test_all_pairs_equal_brute_force(seed: int, n: int, d: int, drift: float) -> None:
    u = units_of(seed, n, d, drift)
    brute = (u @ u.T)[~np.eye(n, dtype=bool)].mean()
    assert mean_cosine(u.sum(axis=0), n) == pytest.approx(brute, abs=1e-12)


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(4, 60), sequences=st.integers(1, 8))
def test_pairs_between_and_within_sequences_equal_brute_force(seed: int, n: int, sequences: int) -> None:
    u = units_of(seed, n, 6)
    keys = np.random.default_rng(seed).integers(0, sequences, size=n)
    energy, pairs = sums_by_sequence(u, keys)
    same = keys[:, None] == keys[None, :]
    cosines = u @ u.T
    different, within = cosines[~same], cosines[same & ~np.eye(n, dtype=bool)]
    inter, intra = mean_cosine_inter(u.sum(axis=0), n, energy, pairs), mean_cosine_intra(energy, n, pairs)
    assert inter == (pytest.approx(different.mean(), abs=1e-12) if different.size else None)
    assert intra == (pytest.approx(within.mean(), abs=1e-12) if within.size else None)


def test_contributions_of_dimensions_are_the_pairwise_products_and_sum_to_the_cosine() -> None:
    u = units_of(3, 40, 7)
    shares = cosine_share(u.sum(axis=0), np.square(u).sum(axis=0), 40)
    assert shares is not None
    off_diagonal = ~np.eye(40, dtype=bool)
    brute = [np.outer(u[:, k], u[:, k])[off_diagonal].mean() for k in range(7)]
    np.testing.assert_allclose(shares, brute, atol=1e-14)
    assert shares.sum() == pytest.approx(mean_cosine(u.sum(axis=0), 40), abs=1e-14)


def test_top_shares_name_the_dimension_that_drifts() -> None:
    u = units_of(0, 500, 50, drift=20.0)
    shares = cosine_share(u.sum(axis=0), np.square(u).sum(axis=0), 500)
    assert shares is not None
    first, second = top_shares(shares, k=2)
    assert first.dimension == 0
    assert first.share is not None
    assert first.share > 0.99
    assert second.share is not None
    assert abs(second.share) < 0.01


def test_shares_are_missing_for_an_isotropic_cloud() -> None:
    u = units_of(0, 500, 50, drift=0.0)
    shares = cosine_share(u.sum(axis=0), np.square(u).sum(axis=0), 500)
    assert shares is not None
    assert [top.share for top in top_shares(shares)] == [None] * 5


@pytest.mark.parametrize("n", [0, 1])
def test_no_pair_no_cosine(n: int) -> None:
    s = np.eye(3)[0] * n
    assert mean_cosine(s, n) is None
    assert cosine_share(s, s, n) is None
    assert mean_cosine_intra(float(n), n, n) is None


def test_one_sequence_has_no_pair_between_sequences() -> None:
    u = units_of(0, 9, 4)
    energy, pairs = sums_by_sequence(u, np.zeros(9, dtype=int))
    assert mean_cosine_inter(u.sum(axis=0), 9, energy, pairs) is None


def test_a_stack_equals_its_members_one_by_one() -> None:
    rng = np.random.default_rng(0)
    sums, n = rng.standard_normal((4, 5)), np.array([7, 2, 1, 30])
    energy, pairs = n * 1.5, n + np.array([6, 2, 0, 100])
    for function, arguments in (
        (mean_cosine, (sums, n)),
        (resultant, (sums, n)),
        (mean_cosine_inter, (sums, n, energy, pairs)),
        (mean_cosine_intra, (energy, n, pairs)),
    ):
        stacked = function(*arguments)
        single = [function(*(a[i] for a in arguments)) for i in range(4)]
        np.testing.assert_array_equal(stacked, [np.nan if v is None else v for v in single])
    assert np.isnan(mean_cosine(sums, n)[2])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.floats(1e-6, 1e6))
def test_rotation_scale_and_order_do_not_matter(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((30, 5)) + 1.0
    rotation = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    y = scale * rng.permutation(x) @ rotation
    before, after = (np.sum(z / np.linalg.norm(z, axis=1, keepdims=True), axis=0) for z in (x, y))
    assert mean_cosine(after, 30) == pytest.approx(mean_cosine(before, 30), abs=1e-13)
    assert resultant(after, 30) == pytest.approx(resultant(before, 30), abs=1e-13)


def test_vectors_of_the_unit_cube_have_average_cosine_three_quarters() -> None:
    x = np.random.default_rng(0).random((4000, 512))
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert mean_cosine(u.sum(axis=0), len(u)) == pytest.approx(0.75, abs=1e-3)


def test_resultant_and_cosine_are_two_views_of_one_sum() -> None:
    u = units_of(1, 25, 6)
    cosine = mean_cosine(u.sum(axis=0), 25)
    assert resultant(u.sum(axis=0), 25) ** 2 == pytest.approx(cosine + (1 - cosine) / 25, abs=1e-14)
