"""Codes of fewer bits: levels against brute force, the widths against scipy's minimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from anisoscope.geometry.codes import STEPS, dimension_grid, round_vectors


@pytest.mark.parametrize("bits", [4, 8])
def test_the_width_loses_least_of_a_gaussian(bits: int) -> None:
    z = np.linspace(-9, 9, 200_001)
    density = norm.pdf(z) * (z[1] - z[0])

    def lost(step: float) -> float:
        middles = (np.arange(2**bits) - 2 ** (bits - 1) + 0.5) * step
        near = np.clip(np.searchsorted((middles[1:] + middles[:-1]) / 2, z), 0, 2**bits - 1)
        return float(((z - middles[near]) ** 2 * density).sum())

    best: Any = minimize_scalar(lost, bounds=(0.5 * STEPS[bits], 2 * STEPS[bits]), method="bounded")
    assert lost(STEPS[bits]) == pytest.approx(best.fun, rel=1e-3)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_value_becomes_the_nearest_level_of_its_dimension(bits: int) -> None:
    x = (np.random.default_rng(0).standard_normal((400, 3)) * [1, 5, 0.1] + [0, 9, -3]).astype(np.float32)
    rounded = dimension_grid(x, bits).round(x)
    for k in range(3):
        column = x[:, k].astype(float)
        levels = column.mean() + STEPS[bits] * column.std() * (np.arange(2**bits) - 2 ** (bits - 1) + 0.5)
        nearest = levels[np.abs(column[:, None] - levels).argmin(1)]
        assert np.median(np.abs(rounded[:, k] - nearest)) < 1e-6 * np.abs(nearest).max()
        assert np.abs(rounded[:, k] - column).max() <= np.abs(nearest - column).max() * (1 + 1e-3)


def test_one_scale_for_each_vector_reaches_its_largest_entry() -> None:
    x = np.random.default_rng(1).standard_normal((50, 16)) * np.geomspace(1e-3, 1e3, 50)[:, None]
    for bits in (4, 8):
        found = round_vectors(x, bits)
        largest = np.abs(x).max(1)
        assert np.abs(found).max(1) == pytest.approx(largest)
        assert (np.abs(found - x).max(1) <= 0.5 * largest / (2 ** (bits - 1) - 1) * (1 + 1e-9)).all()
    assert not round_vectors(np.zeros((1, 4)), 8).any()
