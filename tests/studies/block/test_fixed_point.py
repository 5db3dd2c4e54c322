"""N* on curves whose crossing is known."""

from __future__ import annotations

import math

import pytest

from anisoscope.studies.block.fixed_point import NormCurve, first_crossing, fixed_point

GRID = [0.0, 5.0, 10.0, 20.0, 40.0]


def test_a_constant_output_is_met_where_the_input_reaches_it() -> None:
    curve = NormCurve(lambda n: math.sqrt(n * n + 4), at=GRID, output=[12.0] * 5)
    assert first_crossing([curve], 0, 40) == pytest.approx(math.sqrt(140), abs=1e-6)


def test_running_at_the_crossing_sharpens_it() -> None:
    def output(n: float) -> float:
        return 9.0 + 4.0 * math.tanh(n / 6)  # N* solves n = 9 + 4·tanh(n/6)

    curve = NormCurve(lambda n: n, at=GRID, output=[output(n) for n in GRID])
    coarse = first_crossing([curve], 0, 40)
    runs: list[float] = []
    found = fixed_point(curve, lambda n: runs.append(n) or output(n), 0, 40)
    exact = 12.0
    for _ in range(200):
        exact = output(exact)
    assert coarse is not None
    assert found is not None
    assert len(runs) <= 3
    assert abs(found - exact) < abs(coarse - exact) / 10
    assert found == pytest.approx(exact, abs=1e-3)


def test_the_first_of_two_crossings_counts() -> None:
    curve = NormCurve(lambda n: 10.0, at=[0.0, 1.0, 2.0, 3.0], output=[8.0, 12.0, 12.0, 8.0])
    crossing = first_crossing([curve], 0, 3)
    assert crossing is not None
    assert 0 < crossing < 1


def test_curves_that_start_together_meet_at_the_start() -> None:
    curve = NormCurve(lambda n: 5 + n, at=[0.0, 1.0], output=[5.0 + 1e-7, 5.0])
    assert first_crossing([curve], 0, 1) == 0.0


def test_the_average_curve_crosses_between_the_crossings_of_its_parts() -> None:
    low = NormCurve(lambda n: n, at=GRID, output=[8.0] * 5)
    high = NormCurve(lambda n: n, at=GRID, output=[16.0] * 5)
    assert first_crossing([low, high], 0, 40) == pytest.approx(12.0, abs=1e-6)


def test_a_block_that_changes_no_norm_has_no_crossing() -> None:
    curve = NormCurve(lambda n: 5 + n, at=[0.0, 1.0, 2.0], output=[5.0, 6.0, 7.0])
    assert first_crossing([curve], 0, 2) is None
