"""Flipped bits and swapped files: no command uses a damaged file, and none ends in a traceback."""

from __future__ import annotations

import json
import os
import random
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import anisoscope
from anisoscope.errors import StoreError

FORMAT_1 = Path(__file__).parent.parent / "fixtures" / "format1"
FILES = ("measurements.parquet", "moments.safetensors", "manifest.json", "run.toml")
USES = {  # the files that a command reads, beside the manifest
    "show": {"measurements.parquet"},
    "compare": {"measurements.parquet", "moments.safetensors"},
    "report": {"measurements.parquet", "moments.safetensors"},
    "merge": {"moments.safetensors"},
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, and two shards of a third."""
    folder = tmp_path_factory.mktemp("original")
    np.save(folder / "x.npy", np.random.default_rng(0).standard_normal((20_000, 4)) + 0.5)
    options = {"spectrum": False, "neighbours": False, "sample": 64}
    for seed in (0, 1):
        anisoscope.vectors(folder / "x.npy", out=folder / f"run{seed}", seed=seed, **options)
        anisoscope.vectors(folder / "x.npy", out=folder / f"shard{seed}", shard=f"{seed}/2", **options)
    return folder


@pytest.fixture
def world(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "world")


def words(command: str, world: Path) -> tuple[object, ...]:
    return {
        "show": ("show", world / "run0", "--json"),
        "compare": ("compare", world / "run0", world / "run1", "--out", world / "compared"),
        "report": ("report", world / "run0", "--out", world / "page.html"),
        "merge": ("merge", world / "shard0", world / "shard1", "--out", world / "merged"),
    }[command]


@pytest.mark.parametrize("command", USES)
def test_a_flipped_bit_is_never_used(command: str, world: Path, command_line) -> None:
    folder = world / ("shard0" if command == "merge" else "run0")
    chosen = random.Random(command)
    for name in sorted({*USES[command], "manifest.json"}):
        raw = (folder / name).read_bytes()
        for _ in range(12):
            place = chosen.randrange(len(raw))
            flipped = bytearray(raw)
            flipped[place] ^= 1 << chosen.randrange(8)
            (folder / name).write_bytes(flipped)
            ended = command_line(*words(command, world))
            assert ended.code == 1, (name, place, ended)
            assert ended.out == ""
            assert name in ended.err or "format" in ended.err or "manifest" in ended.err, ended.err
            assert "unexpected" not in ended.err
            assert "Traceback" not in ended.err
        (folder / name).write_bytes(raw)
    assert not (world / "compared").exists()
    assert not (world / "page.html").exists()
    assert not (world / "merged").exists()
    assert command_line(*words(command, world)).code == 0


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "gone", "empty"])
def test_cut_and_missing_files_are_named(name: str, damage: str, world: Path, command_line) -> None:
    path = world / "run0" / name
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:20] if damage == "cut" else b"")
    for command in ("show", "compare", "report"):
        ended = command_line(*words(command, world))
        used = name == "manifest.json" or name in USES[command]
        assert ended.code == (1 if used else 0), (command, ended.err)
        assert "unexpected" not in ended.err
        shutil.rmtree(world / "compared", ignore_errors=True)


@pytest.mark.parametrize("name", FILES[:3])
@pytest.mark.parametrize("other", ["pipe", "device", "folder"])
def test_what_is_no_file_is_named_and_not_waited_for(name: str, other: str, world: Path, command_line) -> None:
    path = world / "run0" / name
    path.unlink()
    make = {"pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero"), "folder": Path.mkdir}
    make[other](path)
    ended = command_line(*words("compare", world))
    assert ended.code == 1
    assert name in ended.err
    assert ("Is a directory" if other == "folder" else "a pipe, a socket or a device") in ended.err
    assert "make the run anew" in ended.err


@pytest.mark.parametrize("name", ["measurements.parquet", "moments.safetensors"])
def test_a_file_of_another_run_is_refused(name: str, world: Path, command_line) -> None:
    shutil.copy(world / "run1" / name, world / "run0" / name)
    ended = command_line(*words("compare", world))
    assert ended.code == 1
    assert f"changed or damaged: {world / 'run0' / name}" in ended.err


def test_a_file_that_the_run_did_not_write_is_refused(world: Path) -> None:
    shutil.copy(world / "run0/moments.safetensors", world / "run0/arrays.safetensors")
    with pytest.raises(StoreError, match="does not belong"):
        anisoscope.open_run(world / "run0").run.arrays()


@pytest.mark.parametrize("damage", ["cut", "pipe"])
def test_a_damaged_plan_is_named_when_the_run_is_wanted_again(damage: str, world: Path, command_line) -> None:
    plan = world / "run0/run.toml"
    plan.unlink()
    plan.write_text("command = ") if damage == "cut" else os.mkfifo(plan)
    again = ["vectors", world / "x.npy", "--no-spectrum", "--no-neighbours", "--sample", 64, "--out", world / "run0"]
    ended = command_line(*again)
    assert ended.code == 1
    assert "run.toml" in ended.err
    assert "--existing replace starts anew" in ended.err
    assert command_line(*again, "--existing", "replace").code == 0


@pytest.mark.parametrize("run", sorted(path.name for path in FORMAT_1.iterdir()) if FORMAT_1.exists() else [])
def test_runs_of_format_1_open_with_a_note(run: str, command_line, tmp_path: Path) -> None:
    shown = command_line("show", FORMAT_1 / run)
    assert shown.code == 0, shown.err
    assert "without checksums" in shown.out
    found = anisoscope.open_run(FORMAT_1 / run)
    assert found.rows
    assert command_line("report", FORMAT_1 / run, "--out", tmp_path / "page.html").code == 0
    found.save(tmp_path / "again")
    again = anisoscope.open_run(tmp_path / "again")
    assert (again.rows, str(again.verdict)) == (found.rows, str(found.verdict))
    assert again.run.state().keys() == found.run.state().keys()


def test_runs_of_both_formats_compare(command_line, tmp_path: Path) -> None:
    """The numbers of an old run stand beside those of a new one on the same vectors."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((200, 4)) + 0.5)
    options = {"neighbours": False, "sample": 64}
    anisoscope.vectors(tmp_path / "x.npy", out=tmp_path / "new", **options)
    compared = command_line("compare", FORMAT_1 / "vectors", tmp_path / "new", "--out", tmp_path / "c", "--json")
    assert compared.code == 0, compared.err
    difference = anisoscope.open_run(tmp_path / "c")
    assert abs(difference.value("mean_cosine") or 0) < 1e-9


WRONG = {
    "rows": {"rows": "many"},
    "notes": {"notes": 5},
    "inside notes": {"notes": [["deep"]]},
    "verdict": {"verdict": {"words": ["isotropic"]}},
    "number": {"verdict": {"words": [], "numbers": [{"metric": 5, "value": "x"}], "sentence": "s"}},
    "settings": {"settings": []},
    "inputs": {"inputs": {"data": {"kind": None}}},
    "missing": {"files": None},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_manifest_of_another_shape_is_refused_although_its_checksum_fits(
    case: str, world: Path, command_line
) -> None:
    path = world / "run0/manifest.json"
    manifest = {**json.loads(path.read_text()), **WRONG[case], "sha256": "0" * 64}
    text = json.dumps(manifest)
    path.write_text(text.replace("0" * 64, sha256(text.encode()).hexdigest(), 1))
    for command in ("show", "compare", "report"):
        ended = command_line(*words(command, world))
        assert ended.code == 1
        assert "not the manifest of a run" in ended.err


def test_all_files_of_a_run_have_one_mode(world: Path, command_line) -> None:
    assert command_line("show", world / "run0", "--csv", world / "new.csv").code == 0
    assert command_line(*words("report", world)).code == 0
    made = [world / "new.csv", world / "page.html", *(world / "run0").iterdir()]
    mask = os.umask(0)
    os.umask(mask)
    assert len(made) > 5
    assert {oct(path.stat().st_mode & 0o777) for path in made} == {oct(0o666 & ~mask)}
