"""I(W): brute force, sign and scale, overflow, the reference and the expansions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from anisoscope.errors import InputError, UsageError
from anisoscope.geometry.partition import partition, partition_reference


def shifted(seed: int = 0, rows: int = 400, d: int = 6, drift: float = 0.5) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, d)) + drift


@pytest.mark.parametrize("centred", [False, True])
def test_value_is_the_definition(centred: bool) -> None:
    w = shifted()
    v = w - w.mean(axis=0) if centred else w
    z = np.exp(v @ np.linalg.eigh(v.T @ v)[1]).sum(axis=0)
    found = partition(w, centred=centred)
    assert found.value == pytest.approx(z.min() / z.max(), rel=1e-12)
    assert found.log_ratio == pytest.approx(np.log(z.min() / z.max()), rel=1e-12)
    assert (found.rows, found.directions, found.centred) == (400, 6, centred)


def test_both_signs_are_the_definition_over_plus_and_minus() -> None:
    w = shifted()
    scores = w @ np.linalg.eigh(w.T @ w)[1]
    z = np.concatenate([np.exp(scores).sum(axis=0), np.exp(-scores).sum(axis=0)])
    assert partition(w, convention="both").value == pytest.approx(z.min() / z.max(), rel=1e-12)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), drift=st.floats(0, 3), d=st.integers(1, 10))
def test_both_is_never_above_one_sided(seed: int, drift: float, d: int) -> None:
    w = shifted(seed, 50, d, drift)
    one, both = partition(w), partition(w, convention="both")
    assert one.log_ratio is not None
    assert both.log_ratio is not None
    assert both.log_ratio <= one.log_ratio + 1e-12
    assert one.log_ratio <= 1e-12


def test_sign_of_an_eigenvector_moves_one_sided_and_not_both() -> None:
    w = np.random.default_rng(0).standard_normal((400, 2)) * [1.0, 1.5] + [0.7, 0.7]  # both axes carry drift
    columns = np.linalg.eigh(w.T @ w)[1]
    signs = [partition(w, directions=columns * sign).log_ratio for sign in ([1, 1], [1, -1])]
    both = [partition(w, directions=columns * sign, convention="both").log_ratio for sign in ([1, 1], [1, -1])]
    assert np.ptp(np.array(signs, dtype=float)) > 1
    assert both[0] == pytest.approx(both[1], rel=1e-12)


def test_scaling_by_three_changes_everything() -> None:
    w = shifted()
    once, thrice = partition(w, convention="both").value, partition(3 * w, convention="both").value
    assert once is not None
    assert thrice is not None
    assert thrice < once**2


def test_norms_of_five_hundred_do_not_overflow() -> None:
    w = shifted(0, 300, 16, 1.0)
    w *= 500 / np.linalg.norm(w, axis=1, keepdims=True)
    found = partition(w, convention="both")
    scores = w @ np.linalg.eigh(w.T @ w)[1]
    log_z = np.concatenate([logsumexp(scores, axis=0), logsumexp(-scores, axis=0)])
    assert found.log_ratio == pytest.approx(log_z.min() - log_z.max(), rel=1e-12)
    assert found.log_ratio is not None
    assert found.log_ratio < -100
    assert found.value is not None
    assert 0 <= found.value < 1e-40


def test_float32_path_overflows_where_float64_does_not_and_says_missing() -> None:
    w = shifted(0, 300, 16, 1.0)
    w *= 500 / np.linalg.norm(w, axis=1, keepdims=True)
    assert partition(w, dtype="float32").value is None
    assert partition(w, dtype="float32").log_ratio is None
    assert partition(w / 100, dtype="float32").value == pytest.approx(
        partition(w / 100, directions=np.linalg.eigh(np.float32(w / 100).T @ np.float32(w / 100))[1]).value, rel=1e-4
    )


def test_blocks_of_rows_do_not_show() -> None:
    w = np.random.default_rng(0).standard_normal((520_000, 8), dtype=np.float32) + 0.1  # two blocks
    w[510_000:] *= 4  # the highest scores come last, so the sum carried from the first block must be rescaled
    wide = w.astype(np.float64)
    log_z = logsumexp(wide @ np.linalg.eigh(wide.T @ wide)[1], axis=0)
    assert partition(w).log_ratio == pytest.approx(log_z.min() - log_z.max(), abs=1e-10)


def test_reference_keeps_the_norms_and_loses_the_drift() -> None:
    w = shifted(0, 5000, 8, 1.0)
    reference = partition_reference(w, 1)
    assert reference == partition_reference(w, 1)
    assert reference.log_ratio != partition_reference(w, 2).log_ratio
    assert reference.value is not None
    assert reference.value > 0.5
    own = partition(w, convention="both").value
    assert own is not None
    assert own < 0.01
    bigger = partition_reference(3 * w, 1).value
    assert bigger is not None
    assert bigger < reference.value


def test_reference_of_an_isotropic_matrix_is_like_the_matrix() -> None:
    w = np.random.default_rng(0).standard_normal((20_000, 10))
    own, reference = partition(w).log_ratio, partition_reference(w, 0).log_ratio
    assert own is not None
    assert reference is not None
    assert own == pytest.approx(reference, abs=0.15)
    assert own < -0.01


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(UsageError):
        partition(np.ones((3, 2)), convention="two-sided")
    with pytest.raises(UsageError):
        partition(np.ones((3, 2)), dtype="float16")
    with pytest.raises(UsageError):
        partition(np.ones((3, 2)), directions=np.eye(3))
    with pytest.raises(InputError):
        partition(np.ones(3))
    with pytest.raises(InputError):
        partition(np.array([[np.nan, 1.0]]))
