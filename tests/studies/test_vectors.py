"""Vectors in files and in memory: the same numbers by every road, and clear refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import anisoscope
from anisoscope.errors import AnisoscopeError, InputError, UsageError
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.merging import collected_of
from anisoscope.runs.perform import perform
from anisoscope.runs.study import find_study
from anisoscope.runs.work import blocks
from anisoscope.studies.vectors import VectorsSettings

RNG = np.random.default_rng(0)
X = (RNG.standard_normal((400, 6)) + 0.5).astype(np.float32)
GROUPS = np.repeat([f"user {i}" for i in range(40)], 10)


def numbers(found: Measurement) -> list[tuple]:
    return [(r.metric, r.positions, r.at, r.value, r.low, r.high, r.null, r.n) for r in found.rows]


def assert_close(a: Measurement, b: Measurement, **tolerance: float) -> None:
    for left, right in zip(numbers(a), numbers(b), strict=True):
        assert left[:3] == right[:3]
        for one, other in zip(left[3:], right[3:], strict=True):
            assert one == (None if other is None else pytest.approx(other, **tolerance)), left[0]


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"embedding": list(X), "user": GROUPS}), path)
    return path


def test_files_arrays_and_tensors_agree(parquet: Path, tmp_path: Path) -> None:
    settings = VectorsSettings(files=[str(parquet)], column="embedding", group="user")
    from_file = perform("vectors", settings, out=tmp_path / "run")
    assert numbers(anisoscope.vectors(X, GROUPS)) == numbers(from_file)
    assert numbers(anisoscope.vectors(torch.from_numpy(X), GROUPS.tolist())) == numbers(from_file)


def test_blocks_of_any_size_agree(parquet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = VectorsSettings(files=[str(parquet)], group="user", neighbours=False)
    whole = perform("vectors", settings, out=tmp_path / "whole")
    monkeypatch.setattr(blocks, "_ROWS", 7)  # groups of ten are cut
    pieces = perform("vectors", settings, out=tmp_path / "pieces")
    assert_close(whole, pieces, rel=1e-6, abs=1e-12)  # float32 Gram matrices of other blocks


def test_the_arrays_of_the_caller_are_left_alone() -> None:
    x = np.random.default_rng(1).standard_normal((200, 5))
    before = x.copy()
    anisoscope.vectors(x)
    assert np.array_equal(x, before)


def test_float64_and_float32_say_the_same() -> None:
    wide, narrow = anisoscope.vectors(X.astype(np.float64)), anisoscope.vectors(X)
    assert_close(wide, narrow, rel=1e-6, abs=1e-9)


def test_groups_make_sequences(parquet: Path, tmp_path: Path) -> None:
    found = perform("vectors", VectorsSettings(files=[str(parquet)], group="user"), out=tmp_path / "g")
    assert found.value("sequences") == 40
    units = X.astype(float) / np.linalg.norm(X.astype(float), axis=1, keepdims=True)
    same = GROUPS[:, None] == GROUPS[None, :]
    cosines = units @ units.T
    assert found.value("mean_cosine_inter") == pytest.approx(cosines[~same].mean(), abs=1e-12)
    within = cosines[same & ~np.eye(400, dtype=bool)].mean()
    assert found.value("mean_cosine_intra") == pytest.approx(within, abs=1e-12)
    assert "column user" in found.rows[0].protocol


def test_the_sums_that_a_run_keeps_measure_to_the_same(parquet: Path, tmp_path: Path) -> None:
    settings = VectorsSettings(files=[str(parquet)], group="user")
    found = perform("vectors", settings, out=tmp_path / "run")
    assert found.run is not None
    study = find_study("vectors")
    assert study.conclude is not None
    again = study.conclude(settings, collected_of(found.run, study))
    assert numbers(Measurement(tuple(again.rows), again.verdict)) == numbers(found)


def test_a_run_keeps_the_histogram_of_the_similarities_of_its_pairs(parquet: Path, tmp_path: Path) -> None:
    found = perform("vectors", VectorsSettings(files=[str(parquet)], group="user"), out=tmp_path / "run")
    assert found.run is not None
    arrays = found.run.arrays()
    units = X.astype(float) / np.linalg.norm(X.astype(float), axis=1, keepdims=True)
    apart = np.triu(GROUPS[:, None] != GROUPS[None, :])
    expected, _ = np.histogram((units @ units.T)[apart], bins=arrays["edges"], density=True)
    np.testing.assert_allclose(arrays["histogram.vectors"], expected, atol=1e-3 * expected.max())


def test_an_isotropic_cloud_is_near_all_its_nulls() -> None:
    x = np.random.default_rng(2).standard_normal((4000, 16))
    found = anisoscope.vectors(x)
    assert str(found.verdict) == "isotropic"
    by_name = {row.metric: row for row in found.rows if row.at is None}
    compared = ("isoscore", "participation_ratio", "effective_rank", "rankme", "cosine_sd", "uniformity", "twonn")
    for name in compared:
        row = by_name[name]
        assert row.value == pytest.approx(row.null, rel=0.08), name
    assert by_name["mean_cosine"].value == pytest.approx(0, abs=5e-4)
    assert by_name["participation_ratio_unbiased"].value == pytest.approx(16, rel=0.02)
    assert by_name["rayleigh_p"].value > 0.001


def test_many_dimensions_get_their_spectrum_from_a_sample_and_say_so() -> None:
    x = np.random.default_rng(3).standard_normal((60, 4100)).astype(np.float32)
    found = anisoscope.vectors(x, neighbours=False)
    note = next(row.note for row in found.rows if row.metric == "isoscore")
    assert "sample of 60 vectors" in note
    centred = x.astype(float) - x.astype(float).mean(0)
    eigenvalues = np.linalg.eigvalsh(centred @ centred.T)
    ratio = eigenvalues.sum() ** 2 / np.square(eigenvalues).sum()
    assert found.value("participation_ratio") == pytest.approx(ratio, rel=1e-6)
    assert found.value("isoscore") == pytest.approx((ratio - 1) / 4099, rel=1e-6)
    assert found.value("condition_number") is None


@pytest.mark.parametrize(
    "x",
    [
        np.ones((100, 5)),
        np.outer(np.arange(1, 101), np.ones(5)),
        np.outer(np.repeat([1, -1], 50), np.ones(5)),
        np.repeat(np.eye(5), 20, 0),
        np.eye(50)[np.arange(200) % 50],
        np.vstack([np.ones((99, 5)), np.arange(5)]),
        1e30 * X[:100],
        X[:2],
        X[:33, :2],
    ],
    ids=["equal", "ray", "line", "repeated", "one-hot", "one other", "huge", "two", "plane"],
)
@pytest.mark.filterwarnings("error")
def test_degenerate_clouds_are_measured_without_a_warning(x: np.ndarray) -> None:
    found = anisoscope.vectors(x)
    assert all(np.isfinite(row.value) for row in found.rows if row.value is not None)
    assert found.verdict
    assert found.table().num_rows == len(found.rows)


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (np.zeros((0, 4)), InputError),
        (np.ones((1, 4)), InputError),
        (np.zeros((9, 4)), InputError),
        (np.full((9, 4), np.nan), InputError),
        (np.ones((9, 1)), InputError),
        (np.ones(9), UsageError),
        (np.ones((2, 3, 4)), UsageError),
    ],
    ids=["empty", "one row", "zeros", "NaN", "one dimension", "1 axis", "3 axes"],
)
def test_what_cannot_be_measured_is_refused(x: np.ndarray, kind: type[AnisoscopeError]) -> None:
    with pytest.raises(kind):
        anisoscope.vectors(x)


def test_groups_must_be_as_many_as_rows() -> None:
    with pytest.raises(UsageError, match="one label"):
        anisoscope.vectors(X, GROUPS[:-1])


def test_a_measurement_shows_itself_and_is_saved(tmp_path: Path) -> None:
    found = anisoscope.vectors(X, GROUPS, neighbours=False)
    shown = found._repr_html_()
    assert "average cosine" in shown
    assert len(shown) < 4000
    assert "<table>" in shown
    assert found.to_pandas().set_index("metric").loc["mean_cosine", "value"] == found.value("mean_cosine")
    kept = Measurement.of_run(found.save(tmp_path / "kept"))
    assert numbers(kept) == numbers(found)
    with pytest.raises(UsageError, match="not one number"):
        found.value("cosine_share")
