"""Spectral metrics: definitions by hand, exact pins, invariances, and what few samples do to them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anisoscope.errors import InputError, UsageError
from anisoscope.geometry import spectrum
from anisoscope.geometry.spectrum import covariance, eigenvalues, eigenvalues_from_rows

OF_EIGENVALUES = (
    spectrum.isoscore,
    spectrum.participation_ratio,
    spectrum.effective_rank,
    spectrum.rankme,
    spectrum.stable_rank,
    spectrum.pc1_share,
    spectrum.condition_number,
    spectrum.power_law_alpha,
    spectrum.explained_k,
)


def isoscore_step_by_step(values: np.ndarray) -> float:
    """The published algorithm, not its closed form."""
    d = len(values)
    normalised = np.sqrt(d) * values / np.linalg.norm(values)
    defect = np.linalg.norm(normalised - 1) / np.sqrt(2 * (d - np.sqrt(d)))
    return ((d - defect**2 * (d - np.sqrt(d))) ** 2 - d) / (d * (d - 1))


@settings(deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=40))
def test_isoscore_is_the_published_algorithm(values: list[float]) -> None:
    assert spectrum.isoscore(values) == pytest.approx(isoscore_step_by_step(np.array(values)), abs=1e-12)


@settings(deadline=None)
@given(k=st.integers(1, 30), extra=st.integers(1, 30))
def test_isoscore_of_an_isotropic_subspace(k: int, extra: int) -> None:
    values = np.concatenate([np.full(k, 3.7), np.zeros(extra)])
    assert spectrum.isoscore(values) == pytest.approx((k - 1) / (k + extra - 1), abs=1e-12)


@settings(deadline=None)
@given(k=st.integers(1, 30), extra=st.integers(0, 30))
def test_equal_eigenvalues_count_directions(k: int, extra: int) -> None:
    values = np.concatenate([np.full(k, 0.2), np.zeros(extra)])
    for metric in (spectrum.participation_ratio, spectrum.effective_rank, spectrum.stable_rank):
        assert metric(values) == pytest.approx(k, rel=1e-12)
    assert spectrum.rankme(values, n=k) == pytest.approx(k, rel=1e-4)
    assert spectrum.pc1_share(values) == pytest.approx(1 / k, rel=1e-12)
    assert spectrum.explained_k(values, share=1.0) == k


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.floats(1e-8, 1e8))
def test_scale_and_rotation_do_not_matter(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((200, 24)) * np.linspace(1, 3, 24)
    rotation = np.linalg.qr(rng.standard_normal((24, 24)))[0]
    before, after = eigenvalues_from_rows(x), eigenvalues_from_rows(scale * rng.permutation(x) @ rotation)
    for metric in OF_EIGENVALUES:
        assert metric(after) == pytest.approx(metric(before), rel=1e-9), metric.__name__


def test_a_stack_equals_its_members_one_by_one() -> None:
    rng = np.random.default_rng(0)
    stack = np.sort(rng.exponential(size=(2, 3, 30)), axis=-1)[..., ::-1].copy()
    stack[0, 1] = 0.0
    stack[1, 2, 15:] = 0.0
    for metric in OF_EIGENVALUES:
        single = [[metric(values) for values in row] for row in stack]
        expected = [[np.nan if v is None else v for v in row] for row in single]
        np.testing.assert_allclose(metric(stack), expected, rtol=1e-13, err_msg=metric.__name__)
        assert metric(stack[0, 1]) is None, metric.__name__
    assert spectrum.condition_number(stack[1, 2]) is None


def test_definitions_by_hand() -> None:
    values = np.array([4.0, 2.0, 1.0, 1.0])
    p = values / 8
    assert spectrum.participation_ratio(values) == pytest.approx(64 / 22)
    assert spectrum.effective_rank(values) == pytest.approx(np.exp(-(p * np.log(p)).sum()))
    q = np.sqrt(values) / np.sqrt(values).sum() + 1e-7
    assert spectrum.rankme(values) == pytest.approx(np.exp(-(q * np.log(q)).sum()), rel=1e-14)
    assert spectrum.stable_rank(values) == 2.0
    assert spectrum.pc1_share(values) == 0.5
    assert spectrum.condition_number(values) == 2.0
    assert [spectrum.explained_k(values, share) for share in (0.5, 0.75, 0.76, 1.0)] == [1, 2, 3, 4]


def test_nine_of_ten_equal_eigenvalues_hold_nine_tenths() -> None:
    assert spectrum.explained_k(np.full(10, 0.1)) == 9


def test_rankme_without_n_counts_the_zeros_and_with_n_does_not() -> None:
    x = np.random.default_rng(0).standard_normal((20, 2000))
    values = eigenvalues_from_rows(x, centred=False)
    q = np.linalg.svd(x, compute_uv=False)
    q = q / q.sum() + 1e-7
    assert spectrum.rankme(values, n=20) == pytest.approx(np.exp(-(q * np.log(q)).sum()), rel=1e-9)
    assert spectrum.rankme(values) > spectrum.rankme(values, n=20) * 1.002


def test_rankme_sees_drift_and_effective_rank_does_not() -> None:
    x = np.random.default_rng(0).standard_normal((2000, 10))
    y = x + 30.0
    assert spectrum.effective_rank(eigenvalues_from_rows(y)) == pytest.approx(
        spectrum.effective_rank(eigenvalues_from_rows(x)), rel=1e-9
    )
    assert spectrum.rankme(eigenvalues_from_rows(y, centred=False)) < 0.5 * spectrum.rankme(
        eigenvalues_from_rows(x, centred=False)
    )


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.5])
def test_power_law_is_recovered_and_the_head_does_not_count(alpha: float) -> None:
    values = np.arange(1, 301.0) ** -alpha
    values[:10] *= 1000
    assert spectrum.power_law_alpha(values) == pytest.approx(alpha, rel=1e-12)


def test_power_law_weights_are_inverse_ranks() -> None:
    values = np.random.default_rng(0).exponential(size=150)
    j = np.arange(11, 101)
    design = np.stack([-np.log(j), np.ones(90)], axis=1) / np.sqrt(j)[:, None]
    solution = np.linalg.lstsq(design, np.log(values[10:100]) / np.sqrt(j), rcond=None)[0]
    assert spectrum.power_law_alpha(values) == pytest.approx(solution[0], rel=1e-10)


def test_power_law_is_missing_when_fewer_than_ten_eigenvalues_are_left() -> None:
    values = np.arange(1, 41.0) ** -1.0
    assert spectrum.power_law_alpha(values[:20]) == pytest.approx(1.0)
    assert spectrum.power_law_alpha(values[:19]) is None
    assert spectrum.power_law_alpha(values[:8]) is None
    assert spectrum.power_law_alpha(np.where(np.arange(40) < 19, values, 0.0)) is None
    with pytest.raises(UsageError):
        spectrum.power_law_alpha(values, first=5, last=5)


@settings(deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(2, 60), d=st.integers(1, 12), drift=st.floats(-1e4, 1e4))
def test_covariance_from_raw_sums(seed: int, n: int, d: int, drift: float) -> None:
    x = np.random.default_rng(seed).standard_normal((n, d)) + drift
    found = covariance(x.T @ x, x.sum(axis=0), n)
    np.testing.assert_allclose(found, np.atleast_2d(np.cov(x.T)), atol=1e-15 * n * max(drift * drift, 1))
    np.testing.assert_array_equal(found, found.T)


def test_identical_vectors_have_no_covariance_instead_of_a_spectrum_of_rounding() -> None:
    x = np.tile(np.random.default_rng(0).standard_normal(50) * 1e3, (1000, 1))
    found = eigenvalues(covariance(x.T @ x, x.sum(axis=0), 1000))
    assert not found.any()
    assert spectrum.isoscore(found) is None


def test_isoscore_survives_a_drift_of_ten_thousand() -> None:
    x = np.random.default_rng(0).standard_normal((5000, 32)) * np.linspace(0.5, 2, 32)
    y = x + 1e4
    truth = spectrum.isoscore(eigenvalues(np.cov(y.T)))
    assert spectrum.isoscore(eigenvalues(covariance(y.T @ y, y.sum(axis=0), 5000))) == pytest.approx(truth, abs=1e-7)


def test_one_vector_has_no_covariance() -> None:
    with pytest.raises(InputError):
        covariance(np.eye(2), np.ones(2), 1)
    with pytest.raises(InputError):
        eigenvalues_from_rows(np.ones((1, 3)))


@pytest.mark.parametrize("shape", [(7, 30), (30, 7), (12, 12)])
def test_eigenvalues_from_rows_are_those_of_the_covariance(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).standard_normal(shape) + 3.0
    np.testing.assert_allclose(eigenvalues_from_rows(x), eigenvalues(np.cov(x.T)), atol=1e-12)
    np.testing.assert_allclose(
        eigenvalues_from_rows(x, centred=False), eigenvalues(x.T @ x / len(x)), rtol=1e-10, atol=1e-11
    )


def test_unbiased_participation_ratio_recovers_the_dimension_that_the_raw_one_loses() -> None:
    rng = np.random.default_rng(0)
    raw, corrected = [], []
    for _ in range(30):
        values = eigenvalues_from_rows(rng.standard_normal((64, 256)))
        raw.append(spectrum.participation_ratio(values))
        corrected.append(spectrum.participation_ratio_unbiased(values.sum(), np.square(values).sum(), 64))
    assert np.mean(raw) == pytest.approx(50.4, abs=0.3)
    assert np.mean(corrected) == pytest.approx(256, abs=5)


def test_unbiased_participation_ratio_is_unbiased_for_an_uneven_spectrum_too() -> None:
    rng = np.random.default_rng(1)
    scales = np.linspace(0.2, 2.0, 60)
    truth = spectrum.participation_ratio(scales**2)
    found = []
    for _ in range(200):
        values = eigenvalues_from_rows(rng.standard_normal((40, 60)) * scales)
        found.append(spectrum.participation_ratio_unbiased(values.sum(), np.square(values).sum(), 40))
    assert np.mean(found) == pytest.approx(truth, rel=0.02)


def test_unbiased_participation_ratio_is_the_ratio_of_two_unbiased_estimates() -> None:
    rng = np.random.default_rng(2)
    n, scales = 4, np.array([1.0, 2.0, 3.0])
    x = rng.standard_normal((60_000, n + 1, 3)) * scales
    x -= x.mean(axis=1, keepdims=True)
    values = np.linalg.eigvalsh(x.transpose(0, 2, 1) @ x / n)  # (draws, 3)
    t, t2 = values.sum(axis=1), np.square(values).sum(axis=1)
    trace_of_square = n**2 / ((n - 1) * (n + 2)) * (t2 - t**2 / n)
    square_of_trace = n * (n + 1) / ((n - 1) * (n + 2)) * (t**2 - 2 * t2 / (n + 1))
    assert trace_of_square.mean() == pytest.approx((scales**4).sum(), rel=0.02)
    assert square_of_trace.mean() == pytest.approx((scales**2).sum() ** 2, rel=0.02)
    found = spectrum.participation_ratio_unbiased(t, t2, np.full(len(t), n + 1))
    usable = trace_of_square > 0
    np.testing.assert_allclose(found[usable], (square_of_trace / trace_of_square)[usable], rtol=1e-9)
    assert np.isnan(found[~usable]).all()


def test_unbiased_participation_ratio_is_missing_for_two_vectors() -> None:
    assert spectrum.participation_ratio_unbiased(1.0, 1.0, 2) is None
    assert spectrum.participation_ratio_unbiased(0.0, 0.0, 10) is None
    stacked = spectrum.participation_ratio_unbiased(np.array([3.0, 3.0]), np.array([5.0, 5.0]), np.array([2, 50]))
    assert np.isnan(stacked[0])
    assert stacked[1] > 1.5
