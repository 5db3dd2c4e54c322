"""`advise` from end to end: files, groups, models, pairs, and a forecast that holds where its assumption does."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import anisoscope
from anisoscope.errors import InputError, UsageError
from anisoscope.results import Result
from anisoscope.studies.advise.story import story
from encoders import sentence_folder

N, D = 1500, 24
rng = np.random.default_rng(0)
GAUSSIAN = (rng.standard_normal((N, D)) @ np.diag(np.geomspace(2, 0.2, D)) + 0.5).astype(np.float32)
TWINS = np.repeat(rng.standard_normal((N // 15, D)), 15, axis=0) + 0.2 * rng.standard_normal((N, D))


def value(found: Result, site: str, metric: str, at: float | None = None) -> float:
    return next(row.value for row in found.rows if (row.site, row.metric, row.at) == (site, metric, at)) or 0.0


@pytest.fixture(scope="module")
def gaussian() -> Result:
    return anisoscope.advise(GAUSSIAN, dims=[0.5], probes=1000)


def test_the_forecast_holds_for_a_gaussian_cloud(gaussian: Result) -> None:
    assert value(gaussian, "forecast", "forecast_worst") < 0.06
    assert value(gaussian, "forecast", "forecast_rank") > 0.95


def test_the_forecast_is_too_low_where_rows_have_near_twins() -> None:
    found = anisoscope.advise(TWINS, dims=[0.5], probes=300)
    assert value(found, "forecast", "forecast_bias") < -0.1
    assert "too low" in story(found.rows).lines[0]


def test_memory_is_that_of_dimensions_and_bits(gaussian: Result) -> None:
    for site, gigabytes in (("raw.float32", 0.096), ("whitened.int8", 0.024), ("centred.int4", 0.012)):
        assert value(gaussian, site, "memory_per_million", 24.0) == pytest.approx(gigabytes)
    assert value(gaussian, "raw.binary", "bytes_saved", 12.0) == 64


def test_the_sentence_has_the_numbers_of_the_table(gaussian: Result) -> None:
    kept = value(gaussian, "raw.int4", "neighbour_overlap", 24.0)
    assert f"4 bits {100 * kept:.0f} %" in str(gaussian.verdict)
    half = value(gaussian, "centred.float32", "neighbour_overlap", 12.0)
    assert f"the principal ones {100 * half:.0f} %" in str(gaussian.verdict)
    assert len(str(gaussian.verdict).split()) < 50


def test_rows_of_one_group_count_as_one_draw() -> None:
    groups = (np.arange(N) // 15).tolist()
    apart = anisoscope.advise(TWINS, dims=[0.25], probes=N)
    joined = anisoscope.advise(TWINS, dims=[0.25], probes=N, groups=groups)

    def width(found: Result) -> float:
        row = next(r for r in found.rows if r.site == "raw.float32" and r.metric == "neighbour_overlap" and r.at == 6)
        return (row.high or 0) - (row.low or 1)

    assert width(joined) > 1.3 * width(apart)


def test_rows_without_direction_are_left_out_and_told(tmp_path: Path) -> None:
    x = GAUSSIAN[:300].copy()
    x[7], x[100] = 0, np.nan
    np.save(tmp_path / "x.npy", x)
    found = anisoscope.advise(str(tmp_path / "x.npy"), dims=[0.5])
    assert any("1 zero" in note for note in found.notes)
    assert value(found, "raw.float32", "neighbour_overlap", 24.0) == 1.0
    assert next(row.n for row in found.rows if row.metric == "neighbour_overlap") == 298


def test_search_is_that_of_calibrate(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", TWINS)
    with (tmp_path / "p.csv").open("w", newline="") as stream:
        pairs = [(q, q + 1, 1) for q in range(0, 600, 15)]
        csv.writer(stream).writerows([("query", "document", "label"), *pairs])
    settings = {"pairs": str(tmp_path / "p.csv")}
    found = anisoscope.advise(str(tmp_path / "x.npy"), dims=[0.5], probes=50, **settings)
    other = anisoscope.calibrate(str(tmp_path / "x.npy"), **settings)
    for site in ("raw", "centred", "whitened"):
        expected = value(other, site, "ndcg")
        assert value(found, f"{site}.float32", "ndcg", 24.0) == pytest.approx(expected, abs=1e-6)
    assert "nDCG@10" in str(found.verdict)


def test_a_model_is_advised_on_by_the_texts_that_it_embeds(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path / "model")
    found = anisoscope.advise(str(folder), dims=[0.5], probes=64)
    assert value(found, "raw.float32", "neighbour_overlap", 16.0) == 1.0
    assert next(row.n for row in found.rows if row.metric == "overlap_forecast") == 200


def test_too_few_vectors_are_refused() -> None:
    with pytest.raises(InputError, match="advise"):
        anisoscope.advise(GAUSSIAN[:20])


def test_dimensions_that_cannot_be_kept_are_refused_or_told() -> None:
    x = np.random.default_rng(0).standard_normal((100, 8))
    for dims in ([9.0], [2.5]):
        with pytest.raises(UsageError, match="cannot be kept"):
            anisoscope.advise(x, dims=dims)
    found = anisoscope.advise(x, dims=[0.5, 0.125])
    assert {row.at for row in found.rows if row.metric == "neighbour_overlap"} == {8.0, 4.0}
    assert "shares of less than two of 8 dimensions left out: 0.125" in found.notes
