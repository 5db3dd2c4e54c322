"""Any split of the same vectors into chunks, shards and merge orders gives the same numbers, to 1e-12.

The reference is float64 brute force over all pairs, not another run of the same code. Sequences are split between
chunks and between shards; first positions are kept apart; some vectors are zero or not finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from safetensors.numpy import load_file, save_file

from anisoscope.accumulate.moments import Moments
from anisoscope.geometry import cosine, drift, spectrum

CAPACITY = 16
FEW = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Cloud:
    x: np.ndarray  # (n, d) float64
    keys: np.ndarray
    positions: np.ndarray
    first: np.ndarray

    def moments(self, rows: np.ndarray, *, onto: Moments | None = None) -> Moments:
        moments = onto or Moments(self.x.shape[1], reservoir=CAPACITY)
        moments.update(
            torch.from_numpy(self.x[rows]),
            sequences=self.keys[rows],
            positions=self.positions[rows],
            first=self.first[rows],
        )
        return moments


@st.composite
def clouds(draw: st.DrawFn) -> Cloud:
    """Up to twelve sequences of up to nine vectors, interleaved, with drift, outliers and a few bad vectors."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=2, max_size=12))
    d, seed = draw(st.integers(2, 5)), draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.concatenate([np.arange(length) for length in lengths])
    x = rng.standard_normal((len(sequence), d)) + draw(st.sampled_from([0.0, 1.0, 100.0]))
    x[:, 0] *= draw(st.sampled_from([1.0, 3000.0]))
    bad = rng.random(len(x)) < draw(st.sampled_from([0.0, 0.1]))
    x[bad] = rng.choice([0.0, np.nan, np.inf], bad.sum())[:, None]
    names = rng.integers(0, 2**63, len(lengths)).astype(np.uint64) * np.uint64(2)
    order = rng.permutation(len(x))
    return Cloud(x[order], names[sequence][order], positions[order], (positions == 0)[order])


def numbers(moments: Moments) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for part in ("all", "rest", "first"):
        s = moments.sums(part)
        found |= {
            f"{part}.n": float(s.n),
            f"{part}.sequences": float(s.sequences),
            f"{part}.left_out": float(s.zero + s.nonfinite),
            f"{part}.mean_cosine": cosine.mean_cosine(s.sum_unit, s.n),
            f"{part}.inter": cosine.mean_cosine_inter(s.sum_unit, s.n, s.energy, s.pairs),
            f"{part}.intra": cosine.mean_cosine_intra(s.energy, s.n, s.pairs),
            f"{part}.drift_ratio": drift.drift_ratio(s.sum_x, s.sum_norm2, s.n),
            f"{part}.norm": drift.mean_norm(s.sum_norm, s.n),
        }
        if s.n >= 2:
            values = spectrum.eigenvalues(spectrum.covariance(s.second, s.sum_x, s.n))  # pyright: ignore
            found[f"{part}.isoscore"] = spectrum.isoscore(values)
    return found


def brute_force(cloud: Cloud) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    norms = np.linalg.norm(cloud.x, axis=1)
    good = np.isfinite(norms) & (norms > 0)
    chosen = {"all": np.ones_like(good), "rest": ~cloud.first, "first": cloud.first}
    for part, rows in chosen.items():
        x, keys = cloud.x[good & rows], cloud.keys[good & rows]
        lengths = np.linalg.norm(x, axis=1)
        cosines = (x / lengths[:, None]) @ (x / lengths[:, None]).T
        different = ~np.eye(len(x), dtype=bool)
        same = keys[:, None] == keys[None, :]
        found |= {
            f"{part}.n": float(len(x)),
            f"{part}.sequences": float(len(np.unique(keys))),
            f"{part}.left_out": float((~good & rows).sum()),
            f"{part}.mean_cosine": _mean(cosines[different]),
            f"{part}.inter": _mean(cosines[~same]),
            f"{part}.intra": _mean(cosines[different & same]),
            f"{part}.drift_ratio": None if not len(x) else float((x.mean(0) ** 2).sum() / (lengths**2).mean()),
            f"{part}.norm": _mean(lengths),
        }
        if len(x) >= 2:
            covariance = np.atleast_2d(np.cov(x, rowvar=False))
            ratio = np.trace(covariance) ** 2 / np.square(covariance).sum()
            found[f"{part}.isoscore"] = float((ratio - 1) / (x.shape[1] - 1))
    return found


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def assert_same(got: dict[str, float | None], expected: dict[str, float | None], tolerance: float) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        if value is None:
            assert got[name] is None, name
        else:
            # a spectrum under drift loses log10(drift²/variance) digits of the 16, in any summation order
            bound = max(tolerance, 1e-8) if name.endswith("isoscore") else tolerance
            assert_allclose(got[name], value, rtol=bound, atol=bound, err_msg=name)  # pyright: ignore


def assert_same_sample(a: Moments, b: Moments) -> None:
    left, right = a.reservoir.sample(), b.reservoir.sample()
    for name in ("x", "keys", "positions", "first"):
        assert np.array_equal(getattr(left, name), getattr(right, name)), name


@FEW
@given(cloud=clouds())
def test_one_pass_equals_brute_force(cloud: Cloud) -> None:
    assert_same(numbers(cloud.moments(np.arange(len(cloud.x)))), brute_force(cloud), 1e-12)


@FEW
@given(cloud=clouds(), data=st.data())
def test_any_split_and_merge_order_gives_the_same(cloud: Cloud, data: st.DataObject) -> None:
    n = len(cloud.x)
    shard_of = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    shards = []
    for shard in data.draw(st.permutations(range(4))):
        rows = np.flatnonzero(shard_of == shard)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
        moments = Moments(cloud.x.shape[1], reservoir=CAPACITY)
        for chunk in np.split(rows, cuts):
            cloud.moments(chunk, onto=moments)
        shards.append(moments)
    while len(shards) > 1:  # merge in a tree of any shape
        left, right = data.draw(st.permutations(range(len(shards))))[:2]
        shards[left].merge(shards[right])
        del shards[right]
    straight = cloud.moments(np.arange(n))
    assert_same(numbers(shards[0]), numbers(straight), 1e-12)
    assert_same(numbers(shards[0]), brute_force(cloud), 1e-12)
    assert_same_sample(shards[0], straight)


@FEW
@given(cloud=clouds(), data=st.data())
def test_a_state_on_disk_continues_as_if_nothing_had_happened(cloud: Cloud, data: st.DataObject) -> None:
    n = len(cloud.x)
    cut = data.draw(st.integers(0, n))
    before, after = np.arange(cut), np.arange(cut, n)
    straight = cloud.moments(after, onto=cloud.moments(before))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "moments.safetensors"
        save_file(cloud.moments(before).state(), path)
        continued = cloud.moments(after, onto=Moments.from_state(load_file(path)))
    assert numbers(continued) == numbers(straight)  # to the last bit: nothing was rounded on the way
    assert_same_sample(continued, straight)
    assert all(np.array_equal(array, continued.state()[name]) for name, array in straight.state().items())


@FEW
@given(cloud=clouds(), factor=st.floats(1e-3, 1e3))
def test_directions_do_not_depend_on_lengths(cloud: Cloud, factor: float) -> None:
    rows = np.arange(len(cloud.x))
    scaled = Cloud(cloud.x * factor, cloud.keys, cloud.positions, cloud.first)
    one, other = numbers(cloud.moments(rows)), numbers(scaled.moments(rows))
    names = [name for name in one if name.endswith(("cosine", "inter", "intra", "drift_ratio", ".n"))]
    assert_same({name: other[name] for name in names}, {name: one[name] for name in names}, 1e-12)
