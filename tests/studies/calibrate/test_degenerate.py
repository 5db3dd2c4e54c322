"""Vectors of which a correction leaves nothing, or among which there is nothing to compare: no number of rounding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import anisoscope
from anisoscope.errors import InputError, UsageError
from anisoscope.results import Result

CLOUD = np.random.default_rng(0).standard_normal((600, 16))
LINE = CLOUD[:, :1] * CLOUD[:1]
STUDIES: dict[str, Callable[..., object]] = {
    "calibrate": anisoscope.calibrate,
    "advise": anisoscope.advise,
    "remedy": lambda x: anisoscope.Remedy().fit(x).transform(x),
}


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_vectors_are_refused(study: str, dtype: type) -> None:
    with pytest.raises(InputError, match="all vectors are equal"):
        STUDIES[study](np.repeat(CLOUD[:1], 600, axis=0).astype(dtype))


@pytest.mark.parametrize("study", STUDIES)
def test_one_dimension_is_refused(study: str) -> None:
    with pytest.raises(InputError, match="one dimension"):
        STUDIES[study](CLOUD[:, :1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nothing_is_said_of_what_is_left_of_a_line_without_its_top_component(dtype: type) -> None:
    found = anisoscope.calibrate(LINE.astype(dtype))
    assert {row.site for row in found.rows} >= {"raw", "centred", "whitened"}
    assert "without_top" not in {row.site for row in found.rows}
    assert any("leaves nothing but rounding errors" in note for note in found.notes)
    assert "no threshold has so few false positives" in str(found.verdict)
    assert "lowers it most" not in str(found.verdict)


def test_a_remedy_never_takes_away_all_there_is() -> None:
    kept = anisoscope.Remedy().fit(LINE).transform(LINE)
    assert np.linalg.matrix_rank(kept, tol=1e-4) == 1  # the line is still there, and no noise beside it
    with pytest.raises(UsageError, match="leaves nothing"):
        anisoscope.Remedy(method="all-but-the-top").fit(LINE).transform(LINE)


def notes(found: Result) -> str:
    return " ".join(found.notes)


def test_neighbours_that_are_alike_are_said() -> None:
    """Signs of 16 numbers have few different cosines, so the tenth neighbour is seldom the only one so near."""
    assert "tenth and eleventh neighbours alike" in notes(anisoscope.advise(np.sign(CLOUD)))
    assert "alike" not in notes(anisoscope.advise(CLOUD))


def test_a_threshold_close_to_one_is_told_from_it() -> None:
    near = np.repeat(5 * CLOUD[:3], 200, axis=0) + 0.1 * CLOUD
    found = anisoscope.calibrate(near)
    threshold = next(row.value for row in found.rows if (row.site, row.metric, row.at) == ("raw", "threshold", 0.01))
    assert threshold is not None
    assert 0.995 < threshold < 1
    assert f"means something above {threshold:.4f} (1 %" in str(found.verdict)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_vectors_have_no_outlier_dimensions(dtype: type) -> None:
    found = anisoscope.vectors(np.repeat(3.3 * CLOUD[:1], 600, axis=0).astype(dtype))
    assert found.value("outlier_dimensions") is None
    assert "outlier" not in str(found.verdict)
