"""Texts are kept of exactly the positions that a reservoir of the same seed holds, in any split of the data."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from anisoscope.accumulate.reservoir import Reservoir
from anisoscope.accumulate.texts import Texts

KEYS = np.repeat(np.arange(50, dtype=np.uint64), 4)
POSITIONS = np.tile(np.arange(4), 50)


def offered(rows: np.ndarray, capacity: int, seed: int) -> tuple[Texts, Reservoir]:
    texts, reservoir = Texts(capacity=capacity, seed=seed), Reservoir(1, capacity=capacity, seed=seed)
    for part in np.array_split(rows, 3):
        texts.offer(KEYS[part], POSITIONS[part], lambda k, part=part: f"row {part[k]}")
        reservoir.offer(torch.from_numpy(part[:, None].astype(np.float32)), KEYS[part], POSITIONS[part])
    return texts, reservoir


@given(cut=st.integers(0, 200), capacity=st.integers(1, 250), seed=st.integers(0, 9))
def test_the_texts_are_those_of_the_sampled_vectors(cut: int, capacity: int, seed: int) -> None:
    rows = np.random.default_rng(seed).permutation(200)
    texts, reservoir = offered(rows[:cut], capacity, seed)
    others, rest = offered(rows[cut:], capacity, seed)
    texts.merge(others)
    reservoir.merge(rest)
    for held in (texts, Texts.from_state(texts.state())):
        sample = reservoir.sample()
        assert held.of(sample.keys, sample.positions) == [f"row {int(x)}" for x in sample.x[:, 0]]
        assert len(held.kept) == len(sample)


def test_nothing_kept_is_nothing_told() -> None:
    empty = Texts.from_state(Texts(capacity=4).state())
    assert empty.of(np.array([1], np.uint64), np.array([0])) == [None]
