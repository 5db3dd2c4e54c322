"""Plans: settings are checked with the field named, and carried out again to the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anisoscope.errors import UsageError
from anisoscope.runs.plan import RUNS, default_folder, reuse_or_begin
from anisoscope.studies.plans import STUDIES, perform
from anisoscope.studies.vectors import VectorsSettings, measure_files


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    np.save(path, (np.random.default_rng(0).standard_normal((300, 6)) + 0.4).astype(np.float32))
    return path


@pytest.mark.parametrize(
    ("values", "field"),
    [({}, "files"), ({"files": ["x"], "sed": 1}, "sed"), ({"files": ["x"], "seed": "often"}, "seed")],
)
def test_a_wrong_setting_is_named(values: dict, field: str) -> None:
    with pytest.raises(UsageError, match=f"'{field}'"):
        VectorsSettings.check(values, where="plan.toml")


def test_a_run_toml_does_the_same_again(vectors: Path, tmp_path: Path) -> None:
    settings = VectorsSettings(files=[str(vectors)], seed=3, sample=100)
    first = measure_files(settings, out=tmp_path / "first")
    again = perform(tmp_path / "first" / "run.toml", out=tmp_path / "again")
    assert first.run is not None
    assert again.run is not None
    assert again.run.folder != first.run.folder
    without_run = [[{**row.as_dict(), "run": ""} for row in found.rows] for found in (first, again)]
    assert without_run[0] == without_run[1]
    assert again.verdict == first.verdict
    assert again.run.manifest["data"] == first.run.manifest["data"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('command = "paint"', "unknown command"),
        ('command = "vectors"\nfiles = ["x"]', "unknown table"),
        ('command = "vectors"\n[settings]\nfiles = 7', "'files'"),
        ("[settings]", "unknown command"),
        ("command = vectors", "not valid TOML"),
    ],
)
def test_plans_that_say_nothing_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        perform(tmp_path / "plan.toml")


def test_every_study_of_the_plans_exists() -> None:
    from importlib import import_module

    for command, (module, settings, function) in STUDIES.items():
        found = import_module(f"anisoscope.studies.{module}")
        assert getattr(found, settings).command == command
        assert callable(getattr(found, function))


def test_the_default_folder_tells_settings_and_data_apart() -> None:
    one = VectorsSettings(files=["x.npy"])
    folder = default_folder(one, name="my vectors/é.npy", data="abc")
    assert folder.parent == RUNS
    assert folder.name.startswith("vectors-my-vectors-.npy-")
    assert folder == default_folder(VectorsSettings(files=["x.npy"]), name="my vectors/é.npy", data="abc")
    assert folder != default_folder(one, name="my vectors/é.npy", data="abd")
    assert folder != default_folder(VectorsSettings(files=["x.npy"], seed=1), name="my vectors/é.npy", data="abc")
    assert default_folder(one, name="..").name.startswith("vectors-run-")


def test_a_finished_run_on_other_data_is_not_used(vectors: Path, tmp_path: Path) -> None:
    settings = VectorsSettings(files=[str(vectors)], neighbours=False)
    out = tmp_path / "run"
    before = measure_files(settings, out=out)
    stamp = (out / "manifest.json").stat().st_mtime_ns
    assert measure_files(settings, out=out).rows == before.rows
    assert (out / "manifest.json").stat().st_mtime_ns == stamp  # used again, not made again
    np.save(vectors, np.random.default_rng(1).standard_normal((50, 6)))
    with pytest.raises(UsageError, match="other data"):
        measure_files(settings, out=out)
    replaced = measure_files(settings, out=out, existing="replace")
    assert replaced.value("mean_cosine") != before.value("mean_cosine")


def test_reuse_or_begin_begins_what_is_not_there(tmp_path: Path) -> None:
    settings = VectorsSettings(files=["x.npy"])
    assert reuse_or_begin(tmp_path / "r", settings, existing="resume") is None
    assert (tmp_path / "r" / "run.toml").exists()
    assert reuse_or_begin(tmp_path / "r", settings, existing="resume") is None  # begun, not finished
