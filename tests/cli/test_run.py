"""`anisoscope run` does a run again; `anisoscope show` prints one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def without_run(text: str) -> list[dict]:
    return [{**row, "run": ""} for row in json.loads(text)["measurements"]]


def test_a_run_toml_gives_the_same_numbers(command, vectors_file: Path, tmp_path: Path) -> None:
    first = command("vectors", vectors_file, "--seed", 2, "--out", tmp_path / "first", "--json")
    by_file = command("run", tmp_path / "first" / "run.toml", "--out", tmp_path / "again", "--json")
    by_folder = command("run", tmp_path / "first", "--out", tmp_path / "third", "--json")
    assert (by_file.code, by_file.err) == (0, "")
    assert without_run(by_file.out) == without_run(by_folder.out) == without_run(first.out)
    assert json.loads(by_file.out)["run"] == str(tmp_path / "again")


def test_a_repeated_run_says_that_it_read_another_file(command, tmp_path: Path, monkeypatch) -> None:
    x = np.random.default_rng(0).standard_normal((200, 4))
    for name, shift in (("here", 0), ("there", 5)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", x + shift)
    monkeypatch.chdir(tmp_path / "here")
    command("vectors", "x.npy", "--out", "run")
    same = command("run", "run", "--out", "again", "--json")
    monkeypatch.chdir(tmp_path / "there")
    other = command("run", tmp_path / "here" / "run", "--out", "again", "--json")
    words = "the vectors x.npy is not what it was in the run that is repeated"
    assert words not in json.loads(same.out)["notes"]
    assert words in json.loads(other.out)["notes"]


def test_a_plan_that_a_person_wrote(command, vectors_file: Path, tmp_path: Path) -> None:
    plan = tmp_path / "study.toml"
    plan.write_text(f'command = "vectors"\n[settings]\nfiles = ["{vectors_file}"]\nneighbours = false\n')
    ended = command("run", plan, "--out", tmp_path / "run", "--json")
    assert ended.code == 0
    plan.write_text(f'command = "vectors"\n[settings]\nfiles = ["{vectors_file}"]\nneighbors = false\n')
    wrong = command("run", plan, "--out", tmp_path / "other")
    assert wrong.code == 2
    assert "'neighbors'" in wrong.err
    assert "study.toml" in wrong.err


def test_show_prints_what_the_run_printed(command, vectors_file: Path, tmp_path: Path) -> None:
    made = command("vectors", vectors_file, "--out", tmp_path / "run", "--json")
    shown = command("show", tmp_path / "run", "--json", "--csv", tmp_path / "t.csv")
    assert shown.out == made.out
    assert (tmp_path / "t.csv").exists()
    table = command("show", tmp_path / "run")
    assert table.code == 0
    assert "average cosine" in table.out


def test_show_refuses_what_is_no_run(command, vectors_file: Path, tmp_path: Path) -> None:
    absent = command("show", tmp_path / "absent")
    assert (absent.code, absent.out) == (1, "")
    assert "no run here" in absent.err
    command("vectors", vectors_file, "--no-neighbours", "--out", tmp_path / "run")
    table = tmp_path / "run" / "measurements.parquet"
    table.write_bytes(table.read_bytes()[:100])
    damaged = command("show", tmp_path / "run")
    assert (damaged.code, damaged.out) == (1, "")
    assert "measurements.parquet" in damaged.err
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 2', '"format": 99'))
    newer = command("show", tmp_path / "run")
    assert newer.code == 1
    assert "format 99" in newer.err
