"""The page of benchmarks says what was measured, and the cost model finds the law that numbers follow."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from make_benchmarks import POWERS, fitted, line, made_how, model_lines


def cost(noise: float) -> list[dict[str, float]]:
    found = []
    for k, d in enumerate((64, 128, 256, 384, 512, 768, 1024, 1536)):
        wobble = 1 + noise * (-1) ** k
        one = {name: wobble * (3e-7 + sum(1e-9 * d**power for power in POWERS[name] if power)) for name in POWERS}
        found.append({"d": d, "fit": d not in (384, 768, 1536), **one})
    return found


@pytest.mark.parametrize("name", sorted(POWERS))
def test_coefficients_are_found_and_the_error_is_that_of_widths_not_fitted(name: str) -> None:
    found, model, error = fitted(cost(0.0), name)
    np.testing.assert_allclose(found, [3e-7, *[1e-9] * (len(POWERS[name]) - 1)], rtol=1e-6)
    assert model(2048) == pytest.approx(3e-7 + sum(1e-9 * 2048**power for power in POWERS[name] if power))
    assert error < 1e-9
    assert 0.05 < fitted(cost(0.1), name)[2] < 0.4


def test_a_missed_aim_is_said() -> None:
    row = {"what": "x", "against": "y", "ours": 2.2, "other": 2.0, "unit": "s", "ratio": 1.1, "low": 1.0, "high": 1.2}
    assert line(row | {"aim": 1.05}) == "| x | 2.2 s | y: 2 s | 1.10× (1.00–1.20) | 1.05× | no |"
    assert line({"what": "x", "ours": 0.4, "unit": "s", "low": 0.3, "high": 0.5, "aim": 1.0}).endswith("| 1 s | yes |")
    assert line({"what": "x", "ours": 1.9, "unit": "×", "low": 1.8, "high": 2.0, "aim": None}).endswith("|  |  |")


def test_examples_follow_from_the_model() -> None:
    text = "\n".join(model_lines(cost(0.0), 1.5e9))  # type: ignore[arg-type]
    hours = 1e9 * (3e-7 + 1e-9 * 1024 + 1e-9 * 1024**2) / 3600
    assert f"{hours:,.0f} thread-hours with spectra" in text


@pytest.mark.parametrize(("small", "load", "rough"), [(True, 0.1, True), (False, 30.0, True), (False, 0.1, False)])
def test_rough_numbers_are_called_provisional(small: bool, load: float, rough: bool) -> None:
    found = {"small": small, "machine": {"load_before": load, "cores": 2}}
    assert ("Provisional" in "\n".join(made_how(found))) == rough
