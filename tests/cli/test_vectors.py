"""`anisoscope vectors`: what it prints, what it keeps, what it refuses."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import anisoscope
from anisoscope.runs.store import open_run
from anisoscope.runs.table import COLUMNS


def test_json_is_one_object_and_nothing_else(command, vectors_file: Path, tmp_path: Path) -> None:
    ended = command("vectors", vectors_file, "--out", tmp_path / "run", "--json")
    assert (ended.code, ended.err) == (0, "")
    found = json.loads(ended.out)  # would fail on anything before or after
    assert found.keys() == {"schema", "run", "command", "verdict", "verdicts", "sentence", "notes", "measurements"}
    assert (found["run"], found["verdict"]) == (str(tmp_path / "run"), "drifted")
    assert all(list(row) == list(COLUMNS) for row in found["measurements"])
    got = {row["metric"]: row["value"] for row in found["measurements"]}
    expected = anisoscope.vectors(np.load(vectors_file))
    assert got["mean_cosine"] == expected.value("mean_cosine")
    assert got["isoscore"] == expected.value("isoscore")


def test_the_table_groups_metrics_and_names_the_run(command, vectors_file: Path, tmp_path: Path) -> None:
    ended = command("vectors", vectors_file, "--out", tmp_path / "run", "--all")
    assert (ended.code, ended.err) == (0, "")
    lowered = ended.out.lower()
    for word in (
        "direction",
        "spectrum",
        "neighbour",
        "average cosine",
        "isoscore",
        "drifted",
        "interval",
        "isotropic",
    ):
        assert word in lowered, word
    assert f"run: {tmp_path / 'run'}" in ended.out
    assert "nan" not in lowered.split()


def test_all_tables_say_each_line_once(command, vectors_file: Path, tmp_path: Path) -> None:
    few = command("vectors", vectors_file, "--out", tmp_path / "run").out.splitlines()
    everything = command("show", tmp_path / "run", "--all").out.splitlines()
    for name in ("average cosine  ", "IsoScore  ", "hubness  "):
        assert [sum(line.startswith(name) for line in told) for told in (few, everything)] == [1, 1]


def test_without_out_the_run_goes_under_the_working_directory(command, vectors_file: Path, monkeypatch) -> None:
    monkeypatch.chdir(vectors_file.parent)
    first = command("vectors", "x.npy", "--json", "--no-neighbours")
    folder = Path(json.loads(first.out)["run"])
    assert folder.parent == Path("anisoscope-runs")
    assert open_run(folder).manifest["settings"]["files"] == ["x.npy"]
    again = command("vectors", "x.npy", "--json", "--no-neighbours")
    assert again.out == first.out  # used again


def test_csv_holds_the_tidy_table(command, vectors_file: Path, tmp_path: Path) -> None:
    ended = command("vectors", vectors_file, "--out", tmp_path / "run", "--csv", tmp_path / "t.csv", "--json")
    with open(tmp_path / "t.csv", newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    measured = json.loads(ended.out)["measurements"]
    assert list(rows[0]) == list(COLUMNS)
    assert len(rows) == len(measured)
    assert float(rows[0]["value"]) == measured[0]["value"]


def test_options_reach_the_settings(command, vectors_file: Path, tmp_path: Path) -> None:
    ended = command(
        "vectors",
        vectors_file,
        "--no-spectrum",
        "--no-neighbours",
        "--sample",
        64,
        "--seed",
        5,
        "--out",
        tmp_path / "run",
        "--json",
    )
    metrics = {row["metric"] for row in json.loads(ended.out)["measurements"]}
    assert not {"isoscore", "twonn"} & metrics
    settings = open_run(tmp_path / "run").manifest["settings"]
    assert (settings["sample"], settings["seed"], settings["spectrum"]) == (64, 5, False)


def test_existing_runs(command, vectors_file: Path, tmp_path: Path) -> None:
    run = ("vectors", vectors_file, "--no-neighbours", "--out", tmp_path / "run")
    assert command(*run).code == 0
    assert command(*run, "--existing", "reuse").code == 0
    refused = command(*run, "--existing", "refuse")
    assert refused.code == 1
    assert "not empty" in refused.err
    other = command(*run, "--seed", 1)
    assert other.code == 1
    assert "seed was 0, now 1" in other.err
    assert command(*run, "--seed", 1, "--existing", "replace").code == 0
    unknown = command(*run, "--existing", "maybe")
    assert unknown.code == 2
    assert "resume, reuse, replace, refuse" in unknown.err


def test_commands_on_files_of_vectors_never_import_torch(vectors_file: Path, tmp_path: Path) -> None:
    """It takes longer to import than a small file to measure."""
    x, remedy = str(vectors_file), str(tmp_path / "remedy")
    commands = [
        ["vectors", x, "--against", x, "--aligned"],
        ["calibrate", x],
        ["advise", x],
        ["remedy", "fit", x, "--method", "centre", "-o", remedy],
        ["remedy", "apply", remedy, x, "-o", str(tmp_path / "repaired.npy")],
        ["gate", x, x],
    ]
    code = f"""
import contextlib, io, sys
from anisoscope.cli.main import main
for command in {commands!r}:
    sys.argv = ["anisoscope", *command]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()
    print(command[:2], "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines() == [f"{command[:2]} False" for command in commands]
    assert (tmp_path / "repaired.npy").exists()
