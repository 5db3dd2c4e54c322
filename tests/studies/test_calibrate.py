"""The similarity floor against brute force, corrections fitted on other rows than they are judged on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from anisoscope.accumulate.moments import Moments
from anisoscope.errors import InputError, StoreError, UsageError
from anisoscope.geometry import corrections
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.perform import perform as perform_study
from anisoscope.studies.calibrate import hold_out

N, D = 600, 8


@pytest.fixture(scope="module")
def cloud() -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.standard_normal((N, D)) * np.linspace(1, 3, D) + 4.0).astype(np.float32)


@pytest.fixture
def file(cloud: np.ndarray, tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", cloud)
    return tmp_path / "x.npy"


def perform(tmp_path: Path, *files: Path, **settings) -> Measurement:
    return perform_study("calibrate", {"files": [str(f) for f in files], **settings}, out=tmp_path / "run")


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a / np.linalg.norm(a, axis=1, keepdims=True)) @ (b / np.linalg.norm(b, axis=1, keepdims=True)).T


def held_out(cloud: np.ndarray) -> np.ndarray:
    moments = Moments(D)
    moments.update(torch.from_numpy(cloud))
    return moments.reservoir.sample().x[: N // 2].astype(float)


def test_the_floor_and_the_thresholds_are_those_of_all_pairs_of_held_out_rows(
    cloud: np.ndarray, file: Path, tmp_path: Path
) -> None:
    found = perform(tmp_path, file, rate=[0.1, 0.01])
    rows = held_out(cloud)
    pairs = cosines(rows, rows)[np.triu_indices(len(rows), 1)]
    value = {(r.site, r.metric, r.at): r.value for r in found.rows}
    assert value["raw", "floor_mean", None] == pytest.approx(pairs.mean(), abs=1e-12)
    assert value["raw", "floor_sd", None] == pytest.approx(pairs.std(), abs=1e-12)
    assert value["raw", "floor_q95", None] == pytest.approx(np.quantile(pairs, 0.95), abs=1e-12)
    assert value["raw", "threshold", 0.01] == pytest.approx(np.quantile(pairs, 0.99), abs=1e-12)
    nearest = (cosines(rows, rows) - 2 * np.eye(len(rows))).max(1).mean()
    assert value["raw", "nearest_mean", None] == pytest.approx(nearest, abs=1e-12)
    assert {r.n for r in found.rows} == {len(pairs)}
    share = (pairs > value["raw", "threshold", 0.1]).mean()
    assert share == pytest.approx(0.1, abs=1e-3)


def test_corrections_are_fitted_without_the_rows_that_judge_them(cloud: np.ndarray) -> None:
    moments = Moments(D)
    moments.update(torch.from_numpy(cloud))
    held, fitted, n = hold_out(moments)
    assert n == N - len(held.rows) == N // 2
    known = {row.tobytes() for row in held.rows.astype(np.float32)}
    others = np.array([row for row in cloud if row.tobytes() not in known], float)
    assert len(others) == n
    expected = corrections.fit(others)
    np.testing.assert_allclose(fitted.mean, expected.mean, atol=1e-9)
    np.testing.assert_allclose(fitted.values, expected.values, rtol=1e-5)
    for name in corrections.NAMES:
        np.testing.assert_allclose(
            np.abs(fitted.apply(name, held.rows)), np.abs(expected.apply(name, held.rows)), atol=2e-4
        )


def test_centring_brings_a_high_floor_down(file: Path, tmp_path: Path) -> None:
    found = perform(tmp_path, file)
    floor = {r.site: r for r in found.rows if r.metric == "floor_mean"}
    assert floor["raw"].value > 0.7
    for name in ("centred", "without_top", "whitened"):
        assert abs(floor[name].value) < 0.03
    assert floor["raw"].low < floor["raw"].value < floor["raw"].high
    assert "Unrelated pairs have cosine 0." in str(found.verdict)
    whitened = next(r for r in found.rows if r.site == "whitened" and r.metric == "floor_sd")
    assert whitened.value == pytest.approx(D**-0.5, rel=0.05)  # whitened is isotropic


def test_pairs_within_a_group_are_left_out(cloud: np.ndarray, tmp_path: Path) -> None:
    doubled = np.repeat(cloud, 2, 0)  # every row twice, in one group: cosine 1 within it
    np.savez(tmp_path / "x.npz", x=doubled, document=np.repeat(np.arange(N), 2))
    grouped = perform(tmp_path, tmp_path / "x.npz", column="x", group="document")
    nearest = next(r for r in grouped.rows if r.site == "raw" and r.metric == "nearest_mean")
    assert nearest.value < 0.9999
    assert "of different groups" in str(grouped.run.manifest["protocol"])  # pyright: ignore


def test_queries_are_paired_with_documents(cloud: np.ndarray, file: Path, tmp_path: Path) -> None:
    queries = np.random.default_rng(1).standard_normal((40, D)).astype(np.float32)
    np.save(tmp_path / "q.npy", queries)
    found = perform(tmp_path, file, queries=[str(tmp_path / "q.npy")])
    expected = cosines(queries.astype(float), held_out(cloud))
    floor = next(r for r in found.rows if r.site == "raw" and r.metric == "floor_mean")
    assert floor.value == pytest.approx(expected.mean(), abs=1e-12)
    assert floor.n == expected.size


def test_other_queries_are_other_data(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "q.npy"
    np.save(path, np.random.default_rng(1).standard_normal((40, D)))
    perform(tmp_path, file, queries=[str(path)])
    np.save(path, np.random.default_rng(2).standard_normal((40, D)))
    with pytest.raises(StoreError, match=r"q\.npy changed"):
        perform(tmp_path, file, queries=[str(path)])


@pytest.mark.filterwarnings("error")
def test_one_query_has_values_and_no_intervals(file: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "q.npy", np.ones((1, D), np.float32))
    found = perform(tmp_path, file, queries=[str(tmp_path / "q.npy")])
    floor = next(r for r in found.rows if r.site == "raw" and r.metric == "floor_mean")
    assert floor.value is not None
    assert (floor.low, floor.high) == (None, None)


def test_what_cannot_be_calibrated_is_refused(cloud: np.ndarray, file: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "few.npy", cloud[:63])
    with pytest.raises(InputError, match="cannot calibrate"):
        perform(tmp_path / "a", tmp_path / "few.npy")
    np.save(tmp_path / "other.npy", np.ones((5, D + 1)))
    with pytest.raises(UsageError, match="different dimensions"):
        perform(tmp_path / "b", file, queries=[str(tmp_path / "other.npy")])
    with pytest.raises(UsageError, match="rate"):
        perform(tmp_path / "c", file, rate=[0.0])
    np.savez(tmp_path / "one.npz", x=cloud, document=np.zeros(N, int))
    with pytest.raises(InputError, match="one group"):
        perform(tmp_path / "d", tmp_path / "one.npz", column="x", group="document")
    np.save(tmp_path / "zero.npy", np.zeros((4, D)))
    with pytest.raises(InputError, match="no usable query"):
        perform(tmp_path / "e", file, queries=[str(tmp_path / "zero.npy")])


def test_the_histograms_are_densities(file: Path, tmp_path: Path) -> None:
    arrays = perform(tmp_path, file).run.arrays()  # pyright: ignore
    widths = np.diff(arrays["edges"])
    for name in ("histogram.raw", "histogram.centred", "histogram.whitened", "null"):
        assert (arrays[name] * widths).sum() == pytest.approx(1.0), name
