"""The geometry of queries and keys against numpy on the vectors themselves."""

from __future__ import annotations

import numpy as np
import pytest

from anisoscope.errors import InputError
from anisoscope.geometry.queries_keys import (
    cosine_null_sd,
    drift_direction,
    q_filters,
    query_key_cosine,
    query_key_dot,
    split_variance,
    union_directions,
)

RNG = np.random.default_rng(0)


def _second(x: np.ndarray) -> np.ndarray:
    return np.einsum("...nd,...ne->...de", x, x)


def test_directions_of_the_union_are_the_svd_of_the_stacked_vectors() -> None:
    steps = [RNG.normal(size=(3, 40, 6)) * np.arange(1, 7) + shift for shift in (0.0, 1.0, 5.0)]
    found = union_directions(*(_second(step) for step in steps))
    for head in range(3):
        _, values, vectors = np.linalg.svd(np.concatenate([step[head] for step in steps]), full_matrices=False)
        np.testing.assert_allclose(found.singular_values[head], values, rtol=1e-10)
        np.testing.assert_allclose(np.abs(np.sum(found.vectors[head] * vectors, axis=-1)), 1.0, atol=1e-8)


def test_signs_are_fixed_by_the_greatest_entry() -> None:
    vectors = union_directions(_second(RNG.normal(size=(5, 50, 4)))).vectors
    greatest = np.take_along_axis(vectors, np.abs(vectors).argmax(-1, keepdims=True), -1)
    assert (greatest > 0).all()


def test_no_moments_no_directions() -> None:
    with pytest.raises(InputError):
        union_directions()


def test_drift_direction_points_where_the_cloud_goes() -> None:
    drift = np.array([0.0, 0.0, -5.0, 0.0])
    x = RNG.normal(size=(2, 500, 4)) + drift
    found = drift_direction(_second(x), x.sum(1))
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1), 1.0)
    assert (found @ drift > 4.9).all()
    u = np.linalg.svd(x[0], full_matrices=False)[2][0]
    majority = np.sign(np.sign(x[0] @ u).sum())  # how Q-Filters chooses the sign
    np.testing.assert_allclose(found[0], majority * u, atol=1e-8)


def test_q_filters_average_the_heads_of_a_group_and_turn_round() -> None:
    directions = RNG.normal(size=(6, 4))
    found = q_filters(directions, group=3)
    np.testing.assert_allclose(found, [-directions[:3].mean(0), -directions[3:].mean(0)])


def test_cosine_and_dot_of_the_means() -> None:
    q, k = RNG.normal(size=(3, 50, 8)) + 1, RNG.normal(size=(3, 20, 8)) - 2
    mean_q, mean_k = q.mean(1), k.mean(1)
    cosine = np.sum(mean_q * mean_k, -1) / np.linalg.norm(mean_q, axis=-1) / np.linalg.norm(mean_k, axis=-1)
    np.testing.assert_allclose(query_key_cosine(q.sum(1), k.sum(1)), cosine)
    np.testing.assert_allclose(query_key_dot(q.sum(1), 50, k.sum(1), 20), np.sum(mean_q * mean_k, -1))
    assert query_key_cosine(np.zeros(8), mean_k[0]) is None
    assert query_key_dot(np.zeros(8), 0, mean_k[0], 20) is None


def test_cosine_of_unrelated_directions_has_the_null_sd() -> None:
    q, k = RNG.normal(size=(2, 20_000, 16))
    assert np.std(query_key_cosine(q, k)) == pytest.approx(cosine_null_sd(16), rel=0.02)


@pytest.mark.parametrize("drift", [0.0, 3.0])
def test_parts_of_the_variance_add_up_and_drift_is_salience(drift: float) -> None:
    queries, keys = RNG.normal(size=(400, 8)) + drift, RNG.normal(size=(60, 8))
    covariance = np.cov(keys.T, bias=True)
    within = np.einsum("nd,de,ne->", queries, covariance, queries)
    sums = (within, 400 * covariance, covariance @ queries.sum(0), queries.sum(0), 400)
    found = split_variance(*sums)
    scores = queries @ keys.T
    assert found.total == pytest.approx(scores.var(axis=1).mean())
    assert found.salience + found.content + found.cross == pytest.approx(found.total)
    assert found.cross == pytest.approx(0.0, abs=1e-9)  # one covariance for all rows
    assert found.share == pytest.approx(0.9 if drift else 1 / 400, rel=0.05 if drift else 1.5)


def test_split_variance_without_rows_is_missing() -> None:
    assert split_variance(0.0, np.zeros((2, 2)), np.zeros(2), np.zeros(2), 0) == (None,) * 5
