"""What goes wrong while vectors are measured: bad numbers, bad files, full disks, kills while files are written.

The kills are real: a process of its own runs the command and sends itself SIGKILL at a chosen point.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import anisoscope
from anisoscope.errors import AnisoscopeError, InputError, StoreError
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.store import open_run

FILES = {"measurements.parquet", "moments.safetensors", "manifest.json", "run.toml"}


@pytest.fixture
def cloud() -> np.ndarray:
    return (np.random.default_rng(0).standard_normal((500, 40)) + 1).astype(np.float32)


@pytest.fixture
def file(cloud: np.ndarray, tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", cloud)
    return tmp_path / "x.npy"


def measure(file: Path, out: Path) -> Measurement:
    return anisoscope.vectors(file, neighbours=False, out=out)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")} if folder.exists() else set()


# -- bad numbers and bad files ---------------------------------------------------------------------------------------


def test_bad_vectors_are_left_out_counted_and_said(cloud: np.ndarray, tmp_path: Path) -> None:
    dirty = np.insert(cloud, [0, 100, 100, 500], 0.0, axis=0)  # four zero rows
    dirty[0, 3], dirty[101, :], dirty[-1, -1] = np.nan, np.inf, -np.inf
    np.save(tmp_path / "clean.npy", cloud)
    np.save(tmp_path / "dirty.npy", dirty)
    clean, found = (measure(tmp_path / f"{name}.npy", tmp_path / name) for name in ("clean", "dirty"))
    assert (found.value("nonfinite_vectors"), found.value("zero_vectors")) == (3, 1)
    assert found.value("mean_cosine") == pytest.approx(clean.value("mean_cosine"), abs=1e-12)
    assert found.value("isoscore") == pytest.approx(clean.value("isoscore"), abs=1e-8)
    said = " ".join(found.notes)
    assert "1 zero vector left out" in said
    assert "3 vectors with NaN or infinite entries left out" in said
    assert found.run is not None
    assert found.run.manifest["data"]["rows"] == 500


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.full((20, 4), np.nan), "20 with NaN"),
        (np.zeros((20, 4)), "20 zero"),
        (np.ones((1, 4)), "1 usable vectors"),
        (np.zeros((0, 4)), "no vectors"),
    ],
    ids=["NaN", "zeros", "one row", "no rows"],
)
def test_nothing_to_measure_is_an_error_that_counts(x: np.ndarray, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(InputError, match=message):
        measure(tmp_path / "x.npy", tmp_path / "run")
    assert "manifest.json" not in names(tmp_path / "run")


@pytest.mark.parametrize("kept", [0, 5, 60, 1000])
def test_a_file_that_was_cut_is_refused(file: Path, tmp_path: Path, kept: int) -> None:
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(AnisoscopeError):
        measure(file, tmp_path / "run")


def test_an_id_column_changes_no_number_and_is_said(cloud: np.ndarray, tmp_path: Path) -> None:
    columns = ",".join(f"d{k}" for k in range(cloud.shape[1]))
    np.savetxt(tmp_path / "plain.csv", cloud, delimiter=",", header=columns, comments="")
    numbered = np.column_stack([np.arange(len(cloud)), cloud])
    np.savetxt(tmp_path / "ids.csv", numbered, delimiter=",", header=f"id,{columns}", comments="")
    plain, found = (measure(tmp_path / f"{name}.csv", tmp_path / name) for name in ("plain", "ids"))
    assert found.value("mean_cosine") == plain.value("mean_cosine")
    assert found.value("dimension") == cloud.shape[1]
    assert "ids.csv: not dimensions, left out: id" in found.notes


def test_a_name_that_is_not_utf8_is_measured_and_kept(file: Path, tmp_path: Path) -> None:
    strange = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.npy"))
    expected = measure(file, tmp_path / "plain")
    file.rename(strange)
    found = measure(strange, tmp_path / "run")
    assert found.value("mean_cosine") == expected.value("mean_cosine")
    assert found.run is not None
    assert found.run.manifest["data"]["name"] == "caf\\udce9.npy"
    assert open_run(tmp_path / "run").manifest["settings"]["files"] == [str(strange)]


# -- full disks ------------------------------------------------------------------------------------------------------


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: the system's own error, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("size", [10, 100, 2000, 20_000], ids=["the lock", "the plan", "the state", "the sums"])
def test_a_full_disk_leaves_nothing_and_the_run_can_be_made_afterwards(file: Path, tmp_path: Path, size: int) -> None:
    out = tmp_path / "run"
    with room_for(size), pytest.raises(StoreError) as caught:
        measure(file, out)
    assert "File too large" in str(caught.value.got)
    assert str(caught.value.where).startswith(str(out))
    assert not out.exists()
    with pytest.raises(StoreError):
        open_run(out)
    assert measure(file, out).value("dimension") == 40
    assert names(out) == FILES


# -- kills ------------------------------------------------------------------------------------------------

# Ends itself by a signal at sys.argv[1]; the rest of sys.argv is the command.
DRIVER = """
import os, signal, sys
point, sys.argv[1:] = sys.argv[1], sys.argv[2:]
from anisoscope.runs import writing
replace = writing.os.replace
def dying(source, target):
    if os.path.basename(target) == point:
        with open(source, "r+b") as stream:  # half of it has reached the disk
            stream.truncate(os.path.getsize(source) // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
writing.os.replace = dying
from anisoscope.cli.main import main
main()
"""


def die(point: str, *command: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-c", DRIVER, point, *map(str, command)]
    return subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=300)


@pytest.mark.parametrize("point", ["measurements.parquet", "manifest.json"])
def test_a_kill_leaves_no_half_file_under_its_name(file: Path, tmp_path: Path, point: str) -> None:
    out = tmp_path / "run"
    ended = die(point, "vectors", file, "--out", out, "--json")
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == ""
    assert point not in names(out)
    with pytest.raises(StoreError, match="not finished"):
        open_run(out)
    found = anisoscope.vectors(file, out=out)  # the same command again
    assert found.run is not None
    assert json.loads((out / "manifest.json").read_text())["rows"] == len(found.rows)
