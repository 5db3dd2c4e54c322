"""Running maxima against brute force on whole arrays in float64, and however the data is split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anisoscope.accumulate import maxima
from anisoscope.accumulate.attention import peaks
from anisoscope.accumulate.attention.peaks import Peaks
from anisoscope.accumulate.attention.rows import Rows
from anisoscope.accumulate.maxima import Extremes
from anisoscope.capture.attention.call import AttentionCall
from anisoscope.errors import StoreError
from anisoscope.geometry.nulls.extremes import coordinate_kurtosis, expected_maximum, largest_over_median
from anisoscope.geometry.queries_keys import split_logit

HEADS, KEY_HEADS, D, SCALING = 4, 2, 3, 0.4


def _call(seed: int, *, batch: int = 3, length: int = 7, causal: bool = True) -> AttentionCall:
    rng = np.random.default_rng(seed)
    query = torch.from_numpy(rng.normal(size=(batch, HEADS, length, D)) + 1.0)
    key = torch.from_numpy(rng.normal(size=(batch, KEY_HEADS, length, D)) - 0.5)
    seen = torch.from_numpy(np.tril(np.ones((1, length, length), dtype=bool))) if causal else None
    valid = torch.ones(batch, length, dtype=torch.bool)
    valid[0, -2:] = False
    return AttentionCall(
        queries=query,
        keys=key,
        kind="self",
        valid_queries=valid,
        valid_keys=valid,
        visible=None if seen is None else seen & valid[:, None],
        scaling=SCALING,
        score_queries=query,
        score_keys=key,
        mask=None if seen is None else torch.where(seen & valid[:, None], 0.0, -1e9).unsqueeze(1),
        query_chunk=3,
    )


def _keys(seed: int, batch: int = 3) -> np.ndarray:
    return np.arange(batch, dtype=np.uint64) + np.uint64(100 * seed)


def _greatest(call: AttentionCall, head: int) -> tuple[float, tuple[int, int, int]]:
    """The greatest visible score of a head and its place, by a loop over all pairs."""
    q, k = call.score_queries.numpy(), call.score_keys.numpy()
    best = (-np.inf, (0, 0, 0))
    for b, i, j in np.ndindex(len(q), q.shape[2], k.shape[2]):
        shown = call.visible is None or bool(call.visible[b, i, j])
        if shown and call.valid_queries[b, i]:
            best = max(best, (float(q[b, head, i] @ k[b, head // 2, j] * SCALING), (b, i, j)))
    return best


@pytest.mark.parametrize("causal", [True, False])
def test_the_greatest_logit_is_that_of_a_loop_over_all_pairs(causal: bool) -> None:
    call = _call(1, causal=causal)
    rows = Rows.like(call)
    rows.update(call, _keys(1), np.array([0, 50, 90]))
    found = dict(rows.peaks.arrays)
    for head in range(HEADS):
        value, (b, i, j) = _greatest(call, head)
        assert found["greatest"][head] == pytest.approx(value, rel=1e-12)
        start = [0, 50, 90][b]
        assert found["where"][head].tolist() == [100 + b, start + i, start + j]
        np.testing.assert_allclose(found["query"][head], call.score_queries[b, head, i], rtol=1e-12)
        np.testing.assert_allclose(found["key"][head], call.score_keys[b, head // 2, j] * SCALING, rtol=1e-12)
    valid = call.valid_queries.numpy()
    pairs = valid[:, :, None] & (np.ones((3, 7, 7), bool) if call.visible is None else call.visible.numpy())
    assert found["counts"].tolist() == [valid.sum(), valid.sum(), pairs.sum()]
    clouds = call.score_queries.transpose(1, 2)[call.valid_queries].numpy()  # (n, heads, d)
    np.testing.assert_allclose(found["sum_query"], clouds.sum(0), rtol=1e-12)
    np.testing.assert_allclose(found["square_query"], (clouds**2).sum((0, 2)), rtol=1e-12)


def test_a_score_that_is_nan_hides_no_other() -> None:
    call = _call(2, causal=False)
    call.score_queries[1, 0, 3] = torch.nan
    rows = Rows.like(call)
    rows.update(call, _keys(2))
    call.valid_queries = call.valid_queries.clone()
    call.valid_queries[1, 3] = False
    assert rows.peaks.arrays["greatest"][0] == pytest.approx(_greatest(call, 0)[0], rel=1e-12)


@given(st.permutations(range(4)), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_peaks_do_not_depend_on_the_order_or_the_split(order: list[int], cut: int) -> None:
    parts = [Rows(query_heads=HEADS, key_heads=KEY_HEADS, d=D) for _ in range(3)]
    whole, first, second = parts
    for seed in range(4):
        whole.update(_call(seed), _keys(seed))
    for place, seed in enumerate(order):
        (first if place < cut else second).update(_call(seed), _keys(seed))
    second = Rows.from_state(second.state())
    second.merge(first)
    for name, expected in whole.peaks.state().items():
        np.testing.assert_allclose(second.peaks.state()[name], expected, rtol=1e-12, err_msg=name)


@given(st.permutations(range(6)), st.sampled_from([1, 2, 3, 6]), st.booleans())
@settings(max_examples=25, deadline=None)
def test_of_equal_logits_the_first_is_split_however_they_are_batched(order: list[int], size: int, many: bool) -> None:
    """Each window has a pair of the same greatest score, made of another query and key."""
    rng = np.random.default_rng(0)
    query, key = np.zeros((2, 6, HEADS, 16, D), np.float32)
    scale = rng.choice([1, 2, 4, 8], (6, HEADS, 1, 1)).astype(np.float32)  # s·q and k/s score what q and k do
    query[:, :, 3:] = np.array([1, 2**-14, 0]) * scale
    if not many:  # else all rows from the fourth on are equal
        query[:, :, 4:] -= 10 + rng.random(size=(6, HEADS, 12, D)).astype(np.float32) * 10
    key[:, :, 1, 0] = 1
    key[:, :, 1, 1] = (6 - np.arange(6))[:, None] * 2**-14  # 1 + 6·2⁻²⁸ is 1 in float32, and greater in float64
    key /= scale
    whole = [Rows(query_heads=HEADS, key_heads=HEADS, d=D) for _ in range(2)]
    for rows, cuts in ((whole[0], [range(6)]), (whole[1], [order[i : i + size] for i in range(0, 6, size)])):
        for cut in cuts:
            q, k = (torch.from_numpy(x[list(cut)]) for x in (query, key))
            rows.update(
                replace(_call(0, batch=len(cut), length=16, causal=False), **_scored(q, k)), np.array(cut, np.uint64)
            )
    for name in ("greatest", "where", "query", "key"):
        np.testing.assert_array_equal(*(rows.peaks.arrays[name] for rows in whole), err_msg=name)
    assert whole[0].peaks.arrays["where"].tolist() == [[0, 3, 1]] * HEADS


def test_tied_rows_are_scored_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.randn(5, HEADS, 16, D, generator=torch.Generator().manual_seed(0))
    q[:, :, 0] = 100.0  # the same first token in every sequence, and its score with itself the greatest
    found = []
    for at_once in (peaks._AT_ONCE, 1):
        monkeypatch.setattr(peaks, "_AT_ONCE", at_once)
        rows = Rows(query_heads=HEADS, key_heads=HEADS, d=D)
        rows.update(replace(_call(0, batch=5, length=16, causal=False), **_scored(q, q)), np.arange(5, dtype=np.uint64))
        found.append(rows.peaks.arrays)
    assert found[0]["where"].tolist() == [[0, 0, 0]] * HEADS
    for name, expected in found[0].items():
        np.testing.assert_array_equal(found[1][name], expected, err_msg=name)


def _scored(q: torch.Tensor, k: torch.Tensor) -> dict[str, torch.Tensor]:
    valid = torch.ones(len(q), q.shape[2], dtype=torch.bool)
    return {"queries": q, "keys": k, "score_queries": q, "score_keys": k, "valid_queries": valid, "valid_keys": valid}


def test_equal_maxima_are_told_apart_by_where_they_were() -> None:
    parts = [Extremes(2) for _ in range(2)]
    for part, key in zip(parts, (9, 4), strict=True):
        part.update(torch.tensor([[1.0, -2.0]]), np.array([key], np.uint64), np.array([3]))
    parts[0].merge(parts[1])
    parts[1].merge(Extremes(2))
    assert parts[0].arrays["where"].tolist() == [[4, 3, 0], [4, 3, 0]] == parts[1].arrays["where"].tolist()


def test_maxima_of_other_shapes_do_not_merge() -> None:
    with pytest.raises(StoreError, match="other shapes"):
        Peaks(query_heads=2, key_heads=2, d=4).merge(Peaks(query_heads=2, key_heads=1, d=4))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
def test_extremes_are_those_of_the_whole_array(scale: float) -> None:
    x = np.random.default_rng(3).standard_t(3, size=(400, 6)).astype(np.float32) * np.float32(scale)
    extremes, keys, places = Extremes(6), np.arange(400, dtype=np.uint64) // 20, np.arange(400) % 20
    for rows in np.array_split(np.random.default_rng(4).permutation(400), 5):
        extremes.update(torch.from_numpy(x[rows]), keys[rows].astype(np.uint64), places[rows])
    size = np.abs(x.astype(np.float64))
    np.testing.assert_array_equal(extremes.arrays["greatest"], size.max(0))
    row = size.argmax(0)
    np.testing.assert_array_equal(extremes.arrays["where"][:, :2], np.stack([row // 20, row % 20], 1))


def test_equal_maxima_of_one_chunk_are_told_apart_like_those_of_two() -> None:
    x, keys = torch.tensor([[3.0, 1.0], [-3.0, 2.0], [3.0, -2.0]]), np.array([5, 4, 4], np.uint64)
    extremes = Extremes(2)
    extremes.update(x, keys, np.array([0, 8, 7]))
    assert extremes.arrays["where"].tolist() == [[4, 7, 0], [4, 7, 0]]


def test_a_split_logit_adds_up_and_its_first_parts_do_not_depend_on_the_key() -> None:
    rng = np.random.default_rng(5)
    q, k, q0, k0 = rng.normal(size=(4, 6, 3))
    parts = split_logit(q, k, q0, k0)
    np.testing.assert_allclose(np.sum(parts, axis=0), np.einsum("id,id->i", q, k), rtol=1e-12)
    other = split_logit(q, rng.normal(size=(6, 3)), q0, k0)
    np.testing.assert_array_equal(parts.means, other.means)
    np.testing.assert_array_equal(parts.query, other.query)


def test_nulls_of_maxima_and_kurtosis_are_those_of_simulated_gaussians() -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((200, 100 * 20))
    assert expected_maximum(2000) == pytest.approx(x.max(1).mean(), rel=0.02)
    ratios = [np.abs(row).max() / np.median(np.abs(row)) for row in x]
    expected = largest_over_median(100, 20)
    assert expected is not None
    assert expected.value == pytest.approx(np.mean(ratios), rel=0.02)
    u = rng.standard_normal((100_000, 5))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    assert coordinate_kurtosis(100_000, 5).value == pytest.approx((u**4).mean() / (u**2).mean() ** 2, rel=0.01)


def test_few_wide_vectors_keep_the_extremes_and_places_of_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    x = np.maximum(rng.normal(size=(12, 50)), 0).astype(np.float32)  # zeros tie
    x[:, :9], x[5, 9:20], places = 0.0, x[2, 9:20], np.arange(12)[::-1].copy()
    keys = rng.permutation(np.repeat(np.arange(4, dtype=np.uint64), 3))
    monkeypatch.setattr(maxima, "_WIDE", 16)
    monkeypatch.setattr(maxima, "_COLUMNS", 7)
    extremes = Extremes(50)
    for some in (slice(0, 7), slice(7, 12)):
        extremes.update(torch.from_numpy(x[some]), keys[some], places[some])
    for k in range(50):
        top = x[:, k].max()
        where = min((int(keys[i]), int(places[i]), 0) for i in range(12) if x[i, k] == top)
        assert extremes.arrays["greatest"][k] == top
        assert tuple(extremes.arrays["where"][k].tolist()) == where
