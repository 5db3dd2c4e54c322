"""The run folder: complete or absent, refused when it is not what it should be, and what --existing decides."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from anisoscope.errors import StoreError, UsageError
from anisoscope.runs import writing
from anisoscope.runs.finding import entries
from anisoscope.runs.store import FORMAT, Run, begin, find_existing, open_run, remove_run, write_run
from anisoscope.runs.study import find_study
from anisoscope.runs.table import Row
from anisoscope.runs.writing import atomic

ROWS = [Row(site="vectors", metric="mean_cosine", value=0.5, n=7)]
SETTINGS = {"files": ["x.npy"], "seed": 0, "group": None}


def write(folder: Path, **changes) -> Run:
    options = {"command": "vectors", "settings": SETTINGS, "rows": ROWS, "protocol": {"pairs": "all"}} | changes
    return write_run(folder, **options)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def test_a_run_reads_back(tmp_path: Path) -> None:
    arrays = {"curve": np.arange(6.0).reshape(2, 3).T}  # not contiguous
    state = {"sums": np.arange(4.0).reshape(2, 2).T}
    write(tmp_path / "r", arrays=arrays, state=state, data={"fingerprint": "f"}, seconds=1.23456, verdict="drifted")
    run = open_run(tmp_path / "r")
    assert [row.value for row in run.rows(metric="mean_cosine")] == [0.5]
    assert run.rows(metric="nothing") == []
    np.testing.assert_array_equal(run.arrays()["curve"], arrays["curve"])
    np.testing.assert_array_equal(run.state()["sums"], state["sums"])
    assert (run.command, run.manifest["verdict"], run.manifest["seconds"]) == ("vectors", "drifted", 1.235)
    assert {"python", "anisoscope", "torch", "numpy"} <= run.manifest["versions"].keys()
    assert names(tmp_path / "r") == {
        "measurements.parquet",
        "arrays.safetensors",
        "moments.safetensors",
        "manifest.json",
        "run.toml",
    }


def test_the_manifest_names_no_machine(tmp_path: Path) -> None:
    text = (write(tmp_path / "r").folder / "manifest.json").read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    assert not {"host", "user", "hostname", "cwd"} & json.loads(text).keys()


@pytest.mark.parametrize("version", [0, FORMAT + 1, None, "1"])
def test_an_unknown_format_is_refused(tmp_path: Path, version: object) -> None:
    manifest = write(tmp_path / "r").folder / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": version}))
    with pytest.raises(StoreError) as caught:
        open_run(tmp_path / "r")
    assert (caught.value.got, caught.value.expected) == (f"format {version}", f"format {FORMAT} or 1")


def test_what_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run here"):
        open_run(tmp_path / "absent")
    begin(tmp_path / "begun", command="vectors", settings=SETTINGS)
    with pytest.raises(StoreError, match="not finished"):
        open_run(tmp_path / "begun")
    damaged = write(tmp_path / "damaged").folder / "manifest.json"
    damaged.write_text('{"format": 1, ')
    with pytest.raises(StoreError, match="damaged"):
        open_run(tmp_path / "damaged")


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_table_is_named(tmp_path: Path, damage: str) -> None:
    run = write(tmp_path / "r")
    path = run.folder / "measurements.parquet"
    path.write_bytes(path.read_bytes()[:200]) if damage == "cut" else path.unlink()
    with pytest.raises(StoreError, match=r"measurements\.parquet"):
        open_run(run.folder).rows()


def test_damaged_sums_are_named(tmp_path: Path) -> None:
    run = write(tmp_path / "r", state={"sums": torch.ones(50)}, arrays={"a": np.ones(50)})
    for name in ("moments.safetensors", "arrays.safetensors"):
        path = run.folder / name
        path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(StoreError, match=r"moments\.safetensors"):
        run.state()
    with pytest.raises(StoreError, match=r"arrays\.safetensors"):
        run.arrays()


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    target.write_text("before")
    with pytest.raises(RuntimeError), atomic(target) as partial:  # noqa: PT012  # the failure must come while writing
        partial.write_text("half of it")
        assert target.read_text() == "before"
        raise RuntimeError
    assert target.read_text() == "before"
    assert names(tmp_path) == {"file.txt"}
    with atomic(target) as partial:
        partial.write_text("after")
    assert target.read_text() == "after"
    assert names(tmp_path) == {"file.txt"}


@pytest.mark.parametrize("broken", ["measurements.parquet", "arrays.safetensors", "moments.safetensors", "run.toml"])
def test_a_failed_writing_leaves_no_finished_run(tmp_path: Path, monkeypatch, broken: str) -> None:
    """Whatever file fails, the folder has no manifest, and neither a half file nor a leftover."""
    folder = tmp_path / "r"
    write(folder, arrays={"a": np.ones(3)}, state={"s": torch.ones(3)})  # an older run is there
    real = writing.os.replace

    def full(source, target):
        if Path(target).name == broken:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(writing.os, "replace", full)
    with pytest.raises(StoreError, match="No space left"):
        write(folder, arrays={"a": np.zeros(3)}, state={"s": torch.zeros(3)})
    assert not (folder / "manifest.json").exists()
    assert not [name for name in names(folder) if "partial" in name]
    with pytest.raises(StoreError):
        open_run(folder)


# -- what --existing decides -----------------------------------------------------------------------------------------


def existing(folder: Path, policy, settings=None, command: str = "vectors") -> Run | None:
    return find_existing(folder, command=command, settings=SETTINGS if settings is None else settings, existing=policy)


def test_nothing_there(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    for policy in ("resume", "replace", "refuse"):
        assert existing(folder, policy) is None
    with pytest.raises(StoreError, match="no finished run to reuse"):
        existing(folder, "reuse")


def test_a_finished_run_of_the_same_settings(tmp_path: Path) -> None:
    folder = write(tmp_path / "r").folder
    for policy in ("resume", "reuse"):
        found = existing(folder, policy)
        assert found is not None
        assert found.rows()[0].value == 0.5
    with pytest.raises(StoreError, match="not empty"):
        existing(folder, "refuse")
    assert existing(folder, "replace") is None
    assert names(folder) == {"manifest.json", "measurements.parquet", "run.toml"}  # until the new one begins
    remove_run(folder)
    assert names(folder) == set()


def test_an_unfinished_run_is_continued(tmp_path: Path) -> None:
    begin(tmp_path / "r", command="vectors", settings=SETTINGS)
    (tmp_path / "r" / "partial" / "state").write_text("work")
    assert existing(tmp_path / "r", "resume") is None
    assert (tmp_path / "r" / "partial" / "state").exists()
    with pytest.raises(StoreError, match="no finished run"):
        existing(tmp_path / "r", "reuse")
    assert existing(tmp_path / "r", "replace") is None
    remove_run(tmp_path / "r")
    assert not (tmp_path / "r" / "partial").exists()


def test_settings_that_differ_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "r").folder
    with pytest.raises(StoreError) as caught:
        existing(folder, "resume", SETTINGS | {"seed": 3, "group": "user"})
    assert caught.value.got == "seed was 0, now 3; group was None, now 'user'"
    with pytest.raises(StoreError, match="command was 'vectors', now 'calibrate'"):
        existing(folder, "reuse", command="calibrate")
    without = {name: value for name, value in SETTINGS.items() if name != "files"}
    with pytest.raises(StoreError, match=r"files was \['x.npy'\], now None"):
        existing(folder, "resume", without)


def test_values_that_toml_writes_otherwise_do_not_differ(tmp_path: Path) -> None:
    """Tuples become lists, None goes: the same settings are the same after a round through the file."""
    settings = {"files": ("a", "b"), "rate": 0.1, "limit": None, "deep": {"x": [1]}}
    write(tmp_path / "r", settings=settings)
    assert existing(tmp_path / "r", "resume", settings) is not None


def test_a_folder_that_is_no_run_is_neither_used_nor_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for policy in ("resume", "replace", "refuse"):
        with pytest.raises((StoreError, UsageError)):
            existing(tmp_path, policy)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_replacing_a_run_removes_its_files_and_no_others(tmp_path: Path) -> None:
    folder = write(tmp_path / "r", state={"s": torch.ones(2)}).folder
    (folder / "notes.txt").write_text("mine")
    (folder / ".measurements.parquet.99.partial").write_text("left by a killed process")
    (folder / "figures").mkdir()
    assert existing(folder, "replace") is None
    remove_run(folder)
    assert names(folder) == {"notes.txt"}


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_text("")
    for policy in ("resume", "replace", "refuse"):
        with pytest.raises(UsageError, match="this is a file"):
            existing(tmp_path / "x.npy", policy)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be made"):
        begin(tmp_path / "file" / "r", command="vectors", settings=SETTINGS)


def other(value: object) -> object:
    """A value that is not this one."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, list | tuple):
        return [*value, "more"]
    return value + 1 if isinstance(value, int | float) else f"{value}x"


@pytest.mark.filterwarnings("ignore:Pydantic serializer")
@pytest.mark.parametrize("name", sorted(entries()))
def test_every_setting_of_every_study_tells_runs_apart(name: str, tmp_path: Path) -> None:
    kind = find_study(name).settings
    fields = kind.model_fields.items()
    values = {name: "x" if one.is_required() else one.get_default(call_default_factory=True) for name, one in fields}
    asked = kind.model_construct(**values).as_dict()
    begin(tmp_path / "run", command=name, settings=asked)
    assert find_existing(tmp_path / "run", command=name, settings=asked, existing="resume") is None
    for field, value in values.items():
        changed = kind.model_construct(**{**values, field: other(value)}).as_dict()
        with pytest.raises(StoreError, match=f"a run of other settings[\\s\\S]*{field} was"):
            find_existing(tmp_path / "run", command=name, settings=changed, existing="resume")


def test_a_training_is_not_taken_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("")
    with pytest.raises(StoreError, match="anisoscope sweep"):
        open_run(tmp_path)
