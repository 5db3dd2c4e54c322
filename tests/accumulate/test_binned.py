"""Sums by bin are those of brute force, however bins lie and whatever the vectors' precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from anisoscope.accumulate import binned as module
from anisoscope.accumulate.binned import binned

LAYOUTS = {
    "one bin": lambda n: np.zeros(n, dtype=np.int64),
    "long stretches, first positions among them": lambda n: 2 * (np.arange(n) // 100) + (np.arange(n) % 100 == 0),
    "short stretches": lambda n: 2 * (np.arange(n) // 3),
    "rows of their own": lambda n: np.arange(n)[::-1].copy(),
    "bins that alternate": lambda n: np.random.default_rng(1).integers(12, size=n),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_are_those_of_brute_force(layout: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRAM_BLOCK", 300)
    monkeypatch.setattr(module, "_NUMBERS", {"cpu": 64 * 5})
    monkeypatch.setattr(module, "_SHORT", 16 * 5)
    n, d = 700, 5
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0), dtype=dtype) * 3 + 1
    bins = LAYOUTS[layout](n)
    count = int(bins.max()) + 1 + int(bins.max()) % 2
    found, totals, norms = binned(x, bins, count, gram=True)
    rows = x.double().numpy()
    lengths = np.linalg.norm(rows, axis=1)
    units, member = rows / lengths[:, None], np.arange(count)[:, None] == bins

    def same(got: torch.Tensor, expected: NDArray) -> None:
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-13, atol=1e-12)

    same(norms, lengths)
    same(found.sums[:, 0], member @ rows)
    same(found.sums[:, 1], member @ units)
    same(totals, np.stack([member @ one for one in (np.ones(n), lengths, lengths**2, (rows**4).sum(1))]))
    parts = np.stack([bins % 2 == 0, bins % 2 == 1])
    same(found.unit2, parts @ units**2)
    same(found.blocks, np.stack([parts[:, at : at + 300] @ rows[at : at + 300] for at in (0, 300, 600)]))


def test_what_has_no_direction_shows_in_its_norm() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [torch.inf, 1.0], [torch.nan, 1.0]])
    for some in (x, x.double()):
        norms = binned(some, np.zeros(4, dtype=np.int64), 2, gram=False)[2]
        assert norms[:2].tolist() == [5.0, 0.0]
        assert not norms[2:].isfinite().any()
