"""Any cut of a pass into units, in any order and batch size, adds up to one pass: hidden states, heads, rows, samples.

The model runs in float64, so that the shape of a batch moves nothing above rounding; every number is held to 1e-12.
"""

from __future__ import annotations

from functools import cache
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import zoo
from anisoscope.accumulate.moments import Moments
from anisoscope.accumulate.reservoir import Reservoir
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.inputs.sources import open_source
from anisoscope.models.batches.plan import make_batches
from anisoscope.models.open import OpenModel, open_model
from anisoscope.runs.work.collected import Collection, Part, counting, load_parts, state_of
from anisoscope.runs.work.observers import AttentionSums, HiddenSums
from anisoscope.runs.work.passes import run_pass
from anisoscope.runs.work.units import Unit, virtual_shard

FEW = settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
TEXTS = [f"Text {k} drifts {'on and on ' * (k % 7)}away." for k in range(14)]
KINDS = {"hidden": HiddenSums, "attention": AttentionSums}


@cache
def model() -> OpenModel:
    return open_model(zoo.save("gpt2", mkdtemp()), dtype="float64")


def part_of(unit: Unit, *, batch_tokens: int) -> Part:
    """The sums of one unit of the pass."""
    opened = model()
    make = counting(
        lambda: {
            "hidden": HiddenSums(HiddenCapture(opened.module), sample=32),
            "attention": AttentionSums(sample=16),
        }
    )
    wanted = None if unit.whole else lambda key: unit.takes(virtual_shard(key))
    batches = make_batches(opened, open_source(TEXTS, "text"), length=12, batch_tokens=batch_tokens, wanted=wanted)
    sums = make()
    run_pass(opened, batches, sums, unit=unit)
    return Part(sums, {"reports": {unit.name: vars(batches.report)}})


@cache
def whole() -> Part:
    return part_of(Unit(), batch_tokens=64)


def units_of(world: int, again: int, chosen: int) -> list[Unit]:
    """`world` units, of which one was dealt out again to `again` workers from its start on."""
    units = [Unit(index, world) for index in range(world)]
    if again > 1:
        units[chosen % world : chosen % world + 1] = [units[chosen % world].part(k, again) for k in range(again)]
    return units


@FEW
@given(
    world=st.integers(1, 6),
    again=st.integers(1, 3),
    chosen=st.integers(0, 5),
    tokens=st.integers(1, 200),
    data=st.data(),
)
def test_units_add_up_to_one_pass(world: int, again: int, chosen: int, tokens: int, data: st.DataObject) -> None:
    units = data.draw(st.permutations(units_of(world, again, chosen)))
    parts = [part_of(unit, batch_tokens=tokens) for unit in units]
    while len(parts) > 1:  # in a tree of any shape
        left, right = data.draw(st.permutations(range(len(parts))))[:2]
        parts[left].merge(through_disk(parts[right]) if data.draw(st.booleans()) else parts[right])
        del parts[right]
    assert parts[0].get("counted", "done").n == whole().get("counted", "done").n > len(TEXTS)
    for name in KINDS:
        assert_same_sums(parts[0].sums[name], whole().sums[name])


def through_disk(part: Part) -> Part:
    """The same part by its state, as shards and processes hand it on."""
    found = load_parts(state_of({"a|b": part}), ["a|b"], KINDS)["a|b"]
    found.about = part.about
    return found


def assert_same_sums(got: Collection, expected: Collection) -> None:
    assert set(got.parts) == set(expected.parts)
    for key, accumulator in expected.parts.items():
        assert_same_numbers(numbers_of(got.parts[key]), numbers_of(accumulator), key)


def numbers_of(accumulator: Any) -> dict[str, np.ndarray]:
    """All that is ever read of an accumulator."""
    if not isinstance(accumulator, Moments):  # heads and rows: their state is plain sums, and samples of heads
        state = accumulator.state()
        samples = {name: array for name, array in state.items() if "reservoir" in name or "sample" in name}
        places = ("peak.where", "peak.query", "peak.key")  # equal tokens score alike up to rounding: either may be told
        found = {name: array for name, array in state.items() if name not in (*samples, *places)}
        for side in ("queries", "keys"):
            if hasattr(accumulator, side):
                found[f"{side} drawn"] = getattr(accumulator, side).points()
        return found
    found = {}
    for positions in ("all", "rest", "first"):
        sums = accumulator.sums(positions)
        found |= {f"{positions} {name}": np.asarray(value) for name, value in vars(sums).items() if value is not None}
    sample = accumulator.reservoir.sample()
    return found | {f"sample {name}": np.asarray(getattr(sample, name)) for name in ("x", "keys", "positions", "first")}


def assert_same_numbers(got: dict[str, np.ndarray], expected: dict[str, np.ndarray], key: str) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        if value.dtype.kind != "f":
            assert np.array_equal(got[name], value), (key, name)
            continue
        loose = value.dtype == np.float32  # vectors of a sample are kept in float32
        scale = max(1.0, float(np.abs(value).max(initial=0)))
        assert_allclose(got[name], value, rtol=0, atol=(1e-6 if loose else 1e-12) * scale, err_msg=f"{key} {name}")


@FEW
@given(
    seed=st.integers(0, 2**32 - 1),
    capacity=st.integers(1, 40),
    n=st.integers(1, 60),
    shards=st.integers(1, 5),
    data=st.data(),
)
def test_a_reservoir_holds_the_same_vectors_however_they_come(seed, capacity, n, shards, data) -> None:
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((n, 3)))
    keys, positions = np.arange(n, dtype=np.uint64) // np.uint64(4), np.arange(n, dtype=np.int64) % 4
    straight = Reservoir(3, capacity=capacity)
    straight.offer(x, keys, positions, positions == 0)
    owner = np.array(data.draw(st.lists(st.integers(0, shards - 1), min_size=n, max_size=n)))
    merged = Reservoir(3, capacity=capacity)
    for shard in data.draw(st.permutations(range(shards))):
        mine = Reservoir(3, capacity=capacity)
        for row in data.draw(st.permutations(list(np.flatnonzero(owner == shard)))):
            mine.offer(x[row : row + 1], keys[row : row + 1], positions[row : row + 1], positions[row : row + 1] == 0)
        merged.merge(Reservoir.from_state(mine.state()))
    assert len(merged.sample()) == min(capacity, n)
    for name in ("x", "keys", "positions", "first"):
        assert np.array_equal(getattr(merged.sample(), name), getattr(straight.sample(), name)), name
