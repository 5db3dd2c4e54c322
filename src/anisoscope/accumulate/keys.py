"""Stable keys: the same sequence gets the same group and the same priority in every process, on every machine.

A sequence is known by a 64-bit key (the BLAKE2b digest of its name, or its number). Jackknife groups and reservoir
priorities are hashes of that key, so that no split of the data into chunks, shards or merge orders can change them.
The mixing function is the finaliser of SplitMix64 (Steele, Lea & Flood 2014).

>>> sequence_key("article 7") == sequence_key("article 7")
True
>>> group_of(np.array([1, 2, 3], dtype=np.uint64), groups=32).tolist()
[9, 2, 7]
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]

GROUPS = 32
_GROUP_SALT = np.uint64(0x9E3779B97F4A7C15)


def sequence_key(name: str) -> int:
    """The 64-bit key of a sequence's name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def sequence_keys(names: Iterable[str]) -> Keys:
    """The keys of many names, each name hashed once."""
    names = list(names)
    known = {name: sequence_key(name) for name in set(names)}
    return np.array([known[name] for name in names], dtype=np.uint64)


def mix(keys: Keys) -> Keys:
    """SplitMix64's finaliser: a bijection of 64-bit integers whose output bits look independent."""
    with np.errstate(over="ignore"):
        z = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def group_of(keys: Keys, *, groups: int = GROUPS) -> NDArray[np.int64]:
    """The jackknife group of each sequence, 0 … groups−1."""
    return (mix(np.asarray(keys, dtype=np.uint64) ^ _GROUP_SALT) % np.uint64(groups)).astype(np.int64)


def priority(keys: Keys, positions: NDArray[np.int64], *, seed: int) -> Keys:
    """The reservoir priority of each vector: uniform, decided by (sequence, position, seed) alone."""
    salt = mix(np.array([seed], dtype=np.uint64))
    return mix(mix(np.asarray(keys, dtype=np.uint64) ^ salt) ^ mix(np.asarray(positions).astype(np.uint64)))
