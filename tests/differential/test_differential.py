"""Some of the cases of `make differential`: what the command line says of random clouds and models is true."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import anisoscope
from differential import clouds, models, verdicts

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("start", range(0, 48, 12))
def test_random_clouds(start: int, tmp_path: Path) -> None:
    found = {number: clouds.problems_of(number, tmp_path / "case") for number in range(start, start + 12)}
    assert {number: problems for number, problems in found.items() if problems} == {}


@pytest.mark.parametrize("number", range(3))
def test_random_models(number: int, tmp_path: Path) -> None:
    assert models.problems_of(number, tmp_path / "case") == []


def test_the_reference_notices_what_is_wrong(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((200, 24)) + 0.3
    rows = [dataclasses.asdict(row) for row in anisoscope.vectors(x).rows]
    cloud = verdicts.Cloud(x, np.arange(200), 2.0**-53)
    assert verdicts.problems(rows, cloud) == []
    unnoticed = []
    for place, row in enumerate(rows):
        if row["value"] is None or row["metric"].startswith("verdict"):
            continue
        wrong = [*rows[:place], {**row, "value": row["value"] * 1.02 + 0.02, "low": None}, *rows[place + 1 :]]
        if not verdicts.problems(wrong, cloud):
            unnoticed.append(row["metric"])
    hubs = {row["metric"] for row in rows if "hub" in row["metric"]}  # counted in geometry/test_hubs
    assert set(unnoticed) <= {"zero_vectors", "nonfinite_vectors", "power_law_alpha", *hubs - {"hubness"}}


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_a_direction_without_variance_gives_no_number_and_a_note(kind: str) -> None:
    """Before, the ratio to what rounding had left there: another number for every order of the rows."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((500, 20)) @ rng.standard_normal((20, 24)) + 5).astype(kind)
    for order in (slice(None), rng.permutation(500)):
        found = anisoscope.vectors(x[order], neighbours=False)
        notes = {row.metric: row.note for row in found.rows}
        assert found.value("condition_number") is None
        assert "no variance beyond rounding in 4 of 24 directions" in notes["condition_number"]
    full = rng.standard_normal((500, 24)) * np.logspace(0, -2, 24)
    expected = np.linalg.cond(full - full.mean(0))
    assert anisoscope.vectors(full, neighbours=False).value("condition_number") == pytest.approx(expected, rel=1e-9)


def test_vectors_beyond_float32_have_a_spectrum() -> None:
    x = np.random.default_rng(0).standard_normal((300, 6)) * np.arange(1, 7)
    near, far = (anisoscope.vectors(x * scale) for scale in (1.0, 1e120))
    for metric in ("isoscore", "participation_ratio_unbiased", "condition_number", "rankme"):
        assert far.value(metric) == pytest.approx(near.value(metric), rel=1e-9)
