"""Sums by bin are those of brute force, however bins lie and whatever the vectors' precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from anisoscope.accumulate import binned as module
from anisoscope.accumulate import on_device
from anisoscope.accumulate.binned import binned

LAYOUTS = {
    "one bin": lambda n: np.zeros(n, dtype=np.int64),
    "long stretches, first positions among them": lambda n: 2 * (np.arange(n) // 100) + (np.arange(n) % 100 == 0),
    "short stretches": lambda n: 2 * (np.arange(n) // 3),
    "rows of their own": lambda n: np.arange(n)[::-1].copy(),
    "bins that alternate": lambda n: np.random.default_rng(1).integers(12, size=n),
}


@pytest.mark.parametrize("where", ["memory", "device"])
@pytest.mark.parametrize("kind", [np.float32, np.float64, "scaled"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_are_those_of_brute_force(layout: str, kind: Any, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block = 300 if where == "memory" else 256
    for one in (module, on_device):
        monkeypatch.setattr(one, "GRAM_BLOCK", block)
        monkeypatch.setattr(one, "_NUMBERS", 64 * 5)
    monkeypatch.setattr(module, "_SHORT", 16 * 5)
    n, d = 700, 5
    x = (np.random.default_rng(0).standard_normal((n, d)) * 3 + 1).astype(np.float64 if kind == "scaled" else kind)
    unit = 1e75 if kind == "scaled" else 1.0  # fourth powers are beyond what is squared without a thought
    x *= unit
    bins = LAYOUTS[layout](n)
    count = int(bins.max()) + 1 + int(bins.max()) % 2
    found, totals, norms = (
        binned(x, bins, count, gram=True)
        if where == "memory"
        else on_device.binned(torch.from_numpy(x), bins, count, gram=True)
    )
    rows = x.astype(float)
    lengths = np.linalg.norm(rows, axis=1)
    units, member = rows / lengths[:, None], np.arange(count)[:, None] == bins

    def same(got: NDArray, expected: NDArray, *, power: int = 0) -> None:
        np.testing.assert_allclose(got / unit**power, expected / unit**power, rtol=1e-13, atol=1e-12)

    same(norms, lengths, power=1)
    same(found.sums[:, 0], member @ rows, power=1)
    same(found.sums[:, 1], member @ units)
    for power, got, one in zip((0, 1, 2, 4), totals, (np.ones(n), lengths, lengths**2, (rows**4).sum(1)), strict=True):
        same(got, member @ one, power=power)
    parts = np.stack([bins % 2 == 0, bins % 2 == 1])
    same(found.unit2, parts @ units**2)
    some = [slice(at, at + block) for at in range(0, n, block)]
    same(found.blocks, np.stack([parts[:, rows_] @ rows[rows_] for rows_ in some]), power=1)


def test_what_has_no_direction_shows_in_its_norm() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [torch.inf, 1.0], [torch.nan, 1.0]])
    for some in (x, x.double()):
        for norms in (
            binned(some.numpy(), np.zeros(4, dtype=np.int64), 2, gram=False)[2],
            on_device.binned(some, np.zeros(4, dtype=np.int64), 2, gram=False)[2],
        ):
            assert norms[:2].tolist() == [5.0, 0.0]
            assert not np.isfinite(norms[2:]).any()
