"""Sums of queries and keys against float64 arithmetic on all vectors at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from torch import Tensor

from anisoscope.accumulate.attention.heads import HeadCloud, Heads, by_row
from anisoscope.accumulate.keys import GROUPS, group_of, priority
from anisoscope.errors import InputError, StoreError

KEYS = np.arange(1, 7, dtype=np.uint64)


@dataclass
class Call:
    queries: Tensor
    keys: Tensor
    valid_queries: Tensor
    valid_keys: Tensor
    start: int = 0


def _call(seed: int, *, drift: float = 2.0, batch: int = 6) -> Call:
    """Six sequences of up to nine tokens, four query heads and two key heads of width five, float32."""
    generator = torch.Generator().manual_seed(seed)
    valid = torch.arange(9) < torch.randint(2, 10, (batch, 1), generator=generator)
    query = torch.randn(batch, 4, 9, 5, generator=generator) + drift
    key = torch.randn(batch, 2, 9, 5, generator=generator) - drift
    return Call(query, key, valid, valid)


def _vectors(x: Tensor, valid: Tensor) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """All valid vectors (heads, n, d), and the row of the batch of each."""
    flat = x.double().permute(1, 0, 2, 3)[:, valid]
    return flat.numpy(), np.nonzero(valid.numpy())[0]


@pytest.mark.parametrize("side", ["queries", "keys"])
def test_sums_equal_those_of_all_vectors(side: str) -> None:
    heads = Heads(query_heads=4, key_heads=2, d=5)
    calls = [_call(0), _call(1)]
    for shift, call in enumerate(calls):
        heads.update(call, KEYS + np.uint64(10 * shift))
    cloud: HeadCloud = getattr(heads, side)
    parts = [_vectors(getattr(call, side), call.valid_keys) for call in calls]
    x = np.concatenate([vectors for vectors, _ in parts], axis=1)
    keys = np.concatenate([(KEYS + np.uint64(10 * shift))[row] for shift, (_, row) in enumerate(parts)])
    norm = np.linalg.norm(x, axis=-1)
    expected = {"total": x, "unit": x / norm[..., None], "norm": norm, "norm2": norm**2}
    for group in range(GROUPS):
        mine = group_of(keys) == group
        assert cloud.n[group] == mine.sum()
        for name, values in expected.items():
            np.testing.assert_allclose(getattr(cloud, name)[group], values[:, mine].sum(1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(cloud.second, np.einsum("hnd,hne->hde", x, x), rtol=1e-6)


def test_covariance_survives_a_drift_ten_thousand_times_the_spread() -> None:
    heads = Heads(query_heads=4, key_heads=2, d=5)
    calls = [_call(seed, drift=1e4) for seed in range(8)]
    for call in calls:
        heads.update(call, KEYS)
    x = np.concatenate([_vectors(call.queries, call.valid_queries)[0] for call in calls], axis=1)
    cloud, n = heads.queries, x.shape[1]
    mean = cloud.total.sum(0).numpy() / n
    found = cloud.second.numpy() / n - np.einsum("hd,he->hde", mean, mean)
    expected = np.einsum("hnd,hne->hde", x - x.mean(1, keepdims=True), x - x.mean(1, keepdims=True)) / n
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_updates_leave_the_vectors_of_the_model_alone() -> None:
    call = _call(0)
    call.queries, call.keys = call.queries.double(), call.keys.double()
    before = call.queries.clone(), call.keys.clone()
    Heads(query_heads=4, key_heads=2, d=5).update(call, KEYS)
    assert call.queries.equal(before[0])
    assert call.keys.equal(before[1])


def test_zero_vectors_have_no_direction() -> None:
    call = _call(0)
    call.queries[:] = 0
    heads = Heads(query_heads=4, key_heads=2, d=5)
    heads.update(call, KEYS)
    assert heads.queries.unit.abs().sum() == 0
    assert heads.queries.n.sum() == call.valid_queries.sum()


def test_any_split_gives_the_same_sums_and_the_same_sample(tmp_path) -> None:
    calls = [_call(seed) for seed in range(4)]
    whole, even, odd = (Heads(query_heads=4, key_heads=2, d=5, sample=10) for _ in range(3))
    for number, call in enumerate(calls):
        keys = KEYS + np.uint64(100 * number)
        whole.update(call, keys)
        (odd if number % 2 else even).update(call, keys)
    save_file(odd.state(), tmp_path / "odd.safetensors")
    merged = Heads.from_state(load_file(tmp_path / "odd.safetensors"))
    merged.merge(even)
    for name, expected in whole.state().items():
        found = merged.state()[name]
        if name.split(".")[1] == "sample":
            assert np.array_equal(found, expected), name
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-10, err_msg=name)


def test_the_sample_holds_whole_positions_of_least_priority() -> None:
    call = _call(3)
    heads = Heads(query_heads=4, key_heads=2, d=5, sample=6, seed=9)
    starts = np.arange(6) * 100
    heads.update(call, KEYS, starts)
    row, column = np.nonzero(call.valid_queries.numpy())
    order = np.argsort(priority(KEYS[row], starts[row] + column, seed=9))[:6]
    points = heads.queries.points()
    assert points.shape == (4, 6, 5)
    np.testing.assert_array_equal(points, call.queries[row[order], :, column[order]].transpose(0, 1))
    np.testing.assert_array_equal(heads.keys.points(), call.keys[row[order], :, column[order]].transpose(0, 1))


def test_windows_of_one_sequence_count_to_it() -> None:
    keys, window = by_row(KEYS[:2], 6)
    assert keys.tolist() == [1, 1, 1, 2, 2, 2]
    assert window.tolist() == [0, 1, 2, 0, 1, 2]
    heads = Heads(query_heads=4, key_heads=2, d=5)
    call = _call(0)
    heads.update(call, KEYS[:2])
    assert set(np.flatnonzero(heads.queries.n)) == set(group_of(KEYS[:2]))
    assert len(set(heads.queries.sample.sample().positions.tolist())) == len(
        {(window, at) for window in range(3) for at in range(9) if call.valid_queries[window::3, at].any()}
    )
    with pytest.raises(InputError, match="do not divide"):
        by_row(KEYS, 7)


def test_other_heads_are_refused() -> None:
    heads = Heads(query_heads=4, key_heads=4, d=5)
    with pytest.raises(InputError, match="other heads"):
        heads.update(_call(0), KEYS)
    with pytest.raises(StoreError, match="other heads"):
        heads.merge(Heads(query_heads=4, key_heads=2, d=5))
