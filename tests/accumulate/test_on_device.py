"""Sums made in torch where an accelerator holds the vectors are those that numpy makes in memory.

There is no accelerator here: tensors of the CPU take the way of those on a device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from anisoscope.accumulate import moments as module
from anisoscope.accumulate.blocks import array_of
from anisoscope.accumulate.moments import LARGEST_SPECTRUM, Moments


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    def as_tensor(x: Any, device: str | None = None) -> Any:
        x = torch.as_tensor(x)
        x = x if x.dtype == torch.float64 else x.float()
        return x if device == "tensors" else x.numpy()

    monkeypatch.setattr(module, "block_of", as_tensor)
    return "tensors"


@pytest.mark.parametrize(("d", "n"), [(7, 900), (LARGEST_SPECTRUM + 1, 40)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_moments_on_a_device_are_those_in_memory(d: int, n: int, dtype: type, device: str) -> None:
    x = (np.random.default_rng(0).standard_normal((n, d)) + 0.5).astype(dtype)
    x[3], x[17] = 0, np.nan
    keys, positions = np.arange(n, dtype=np.uint64) // 30, np.arange(n) % 30
    made = [Moments(d, maxima=True, reservoir=16, device=one) for one in ("cpu", device)]
    for rows in (slice(0, n // 2), slice(n // 2, n)):
        for moments in made:
            moments.update(x[rows], sequences=keys[rows], positions=positions[rows], first=positions[rows] == 0)
    assert isinstance(made[1]._sums["rest.sketch" if d > LARGEST_SPECTRUM else "rest.second"], torch.Tensor)
    again = [Moments.from_state(moments.state(), device=moments.device) for moments in made]
    for one, other in zip(made, again, strict=True):
        one.seal()
        empty = Moments(d, maxima=True, reservoir=16, device=one.device)
        empty.merge(one)
        other.seal()
        for memory, merged in zip(empty.state().items(), other.state().items(), strict=True):
            np.testing.assert_array_equal(memory[1], merged[1], err_msg=memory[0])
    expected, found = (moments.state() for moments in made)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        single = dtype == np.float32 and ("second" in name or "sketch" in name or "square" in name)
        scale = max(1.0, float(np.abs(array_of(array)).max(initial=0))) if array.dtype.kind == "f" else 1.0
        tolerance = (3e-6 if single else 1e-12) * scale if array.dtype.kind == "f" else 0
        if np.isfinite(scale):
            np.testing.assert_allclose(found[name], array, rtol=0, atol=tolerance, err_msg=name)
