"""The reservoir: a uniform sample that no split of the data can change."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anisoscope.accumulate.keys import priority
from anisoscope.accumulate.reservoir import Reservoir

N, D = 1000, 3


@pytest.fixture
def data() -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(0))
    keys = np.arange(N, dtype=np.uint64) // 10
    return x, keys, np.arange(N) % 10


def identities(reservoir: Reservoir) -> list[tuple[int, int]]:
    sample = reservoir.sample()
    return list(zip(sample.keys.tolist(), sample.positions.tolist(), strict=True))


def test_it_holds_the_vectors_of_smallest_priority_in_order(data) -> None:
    x, keys, positions = data
    reservoir = Reservoir(D, capacity=64, seed=3)
    for start in range(0, N, 37):
        part = slice(start, start + 37)
        reservoir.offer(x[part], keys[part], positions[part])
    order = np.argsort(priority(keys, positions, seed=3))[:64]
    sample = reservoir.sample()
    assert np.array_equal(sample.x, x.numpy()[order])
    assert np.array_equal(sample.keys, keys[order])
    assert np.array_equal(sample.positions, positions[order])


def test_a_prefix_is_the_smaller_reservoir(data) -> None:
    x, keys, positions = data
    large, small = Reservoir(D, capacity=200), Reservoir(D, capacity=20)
    for reservoir in (large, small):
        reservoir.offer(x, keys, positions)
    assert identities(large)[:20] == identities(small)


def test_every_vector_is_as_likely_as_any_other() -> None:
    chosen = np.zeros(100)
    x, keys = torch.zeros(100, 1), np.arange(100, dtype=np.uint64)
    for seed in range(600):
        reservoir = Reservoir(1, capacity=25, seed=seed)
        reservoir.offer(x, keys)
        chosen[reservoir.sample().keys.astype(int)] += 1
    assert chosen.sum() == 600 * 25
    assert np.abs(chosen / 600 - 0.25).max() < 0.08  # sd of a share 0.018, 4.5 of them


def test_states_continue_as_if_nothing_had_happened(data) -> None:
    x, keys, positions = data
    first = positions == 0
    straight, broken = Reservoir(D, capacity=50, seed=9), Reservoir(D, capacity=50, seed=9)
    straight.offer(x, keys, positions, first)
    broken.offer(x[:400], keys[:400], positions[:400], first[:400])
    continued = Reservoir.from_state(broken.state())
    continued.offer(x[400:], keys[400:], positions[400:], first[400:])
    assert identities(continued) == identities(straight)
    assert np.array_equal(continued.sample().x, straight.sample().x)
    assert np.array_equal(continued.sample().first, straight.sample().first)


def test_other_seeds_choose_others(data) -> None:
    x, keys, positions = data
    samples = []
    for seed in (0, 1):
        reservoir = Reservoir(D, capacity=50, seed=seed)
        reservoir.offer(x, keys, positions)
        samples.append(set(identities(reservoir)))
    assert len(samples[0] & samples[1]) < 15  # 2.5 expected


def test_flattened_maps_get_a_reservoir_that_fits_into_memory() -> None:
    assert Reservoir(1_000_000).capacity * 4 * 1_000_000 <= 256 * 2**20
    assert Reservoir(768).capacity == 4096


def test_an_empty_one_has_an_empty_sample() -> None:
    assert Reservoir(5).sample().x.shape == (0, 5)
    none = Reservoir(5, capacity=0)
    none.offer(torch.ones(3, 5), np.arange(3, dtype=np.uint64))
    assert len(none.sample()) == 0
    assert len(Reservoir.from_state(none.state()).sample()) == 0


def test_what_is_held_is_a_copy() -> None:
    x = torch.ones(4, 2)
    reservoir = Reservoir(2)
    reservoir.offer(x, np.arange(4, dtype=np.uint64))
    x.zero_()
    assert reservoir.sample().x.min() == 1


def test_a_sample_stays_what_it_was_when_more_is_taken(data) -> None:
    x, keys, positions = data
    reservoir = Reservoir(D, capacity=50)
    reservoir.offer(x[:100], keys[:100], positions[:100])
    sample, state = reservoir.sample(), reservoir.state()
    before = sample.x.copy(), sample.keys.copy()
    reservoir.offer(x[100:], keys[100:], positions[100:])
    assert not np.array_equal(reservoir.sample().x, before[0])
    assert np.array_equal(sample.x, before[0])
    assert np.array_equal(sample.keys, before[1])
    assert np.array_equal(state["x"], before[0])
