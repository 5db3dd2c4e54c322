"""Keys are the same everywhere, groups are even, priorities are uniform and independent of groups."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from anisoscope.accumulate.keys import GROUPS, group_of, mix, priority, sequence_key, sequence_keys

KEYS = np.arange(64_000, dtype=np.uint64)


def splitmix64(state: int) -> int:
    """The published algorithm, in Python's integers."""
    mask = 2**64 - 1
    z = (state + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_mixing_is_splitmix64() -> None:
    assert splitmix64(1234567) == 6457827717110365317  # first output of the reference generator with this seed
    states = [0, 1, 1234567, 2**63, 2**64 - 1]
    assert mix(np.array(states, dtype=np.uint64)).tolist() == [splitmix64(state) for state in states]


def test_a_key_is_a_digest_of_the_name_and_not_pythons_hash() -> None:
    code = "from anisoscope.accumulate.keys import sequence_key; print(sequence_key('Straße 7'))"
    other = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "1", "PYTHONUTF8": "1"}, capture_output=True, check=True
    )
    expected = int.from_bytes(hashlib.blake2b("Straße 7".encode(), digest_size=8).digest(), "little")
    assert int(other.stdout) == sequence_key("Straße 7") == expected


def test_many_keys_equal_single_keys_in_order_and_hash_each_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from anisoscope.accumulate import keys as module

    calls: list[str] = []

    def counted(name: str) -> int:
        calls.append(name)
        return sequence_key(name)

    monkeypatch.setattr(module, "sequence_key", counted)
    names = ["b", "a", "b", "c", "a"]
    assert sequence_keys(iter(names)).tolist() == [sequence_key(name) for name in names]
    assert sorted(calls) == ["a", "b", "c"]


@pytest.mark.parametrize("groups", [8, GROUPS])
def test_consecutive_numbers_fall_evenly_into_groups(groups: int) -> None:
    counts = np.bincount(group_of(KEYS, groups=groups), minlength=groups)
    expected = len(KEYS) / groups
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert chi2 < groups + 5 * (2 * groups) ** 0.5


def test_priorities_are_uniform_and_tell_positions_and_seeds_apart() -> None:
    first = priority(KEYS, np.zeros(len(KEYS), np.int64), seed=0) / 2.0**64
    second = priority(KEYS, np.ones(len(KEYS), np.int64), seed=0) / 2.0**64
    reseeded = priority(KEYS, np.zeros(len(KEYS), np.int64), seed=1) / 2.0**64
    for sample in (first, second, reseeded):
        assert abs(sample.mean() - 0.5) < 0.006
        assert abs(np.square(sample).mean() - 1 / 3) < 0.006
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02
    assert abs(np.corrcoef(first, reseeded)[0, 1]) < 0.02


def test_priorities_do_not_follow_groups() -> None:
    chosen = priority(KEYS, np.zeros(len(KEYS), np.int64), seed=0) < np.uint64(2**62)  # a quarter of all
    shares = np.bincount(group_of(KEYS), weights=chosen, minlength=GROUPS) / np.bincount(group_of(KEYS))
    assert np.abs(shares - 0.25).max() < 0.05
