"""Errors: on standard error, without a traceback, exit code 2 for bad use and 1 for a failed job."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


def bad_use(tmp_path: Path, good: Path) -> dict[str, tuple[object, ...]]:
    text = tmp_path / "x.txt"
    text.write_text("words")
    np.save(tmp_path / "cube.npy", np.ones((2, 3, 4)))
    np.save(tmp_path / "names.npy", np.array([["a", "b"]]))
    np.save(tmp_path / "wide.npy", np.ones((9, 7)))
    return {
        "unknown command": ("measur", good),
        "unknown option": ("vectors", good, "--fast"),
        "no file named": ("vectors",),
        "no such file": ("vectors", tmp_path / "absent.npy"),
        "wrong suffix": ("vectors", text),
        "three axes": ("vectors", tmp_path / "cube.npy"),
        "no numbers": ("vectors", tmp_path / "names.npy"),
        "two dimensions": ("vectors", good, tmp_path / "wide.npy"),
        "column of npy": ("vectors", good, "--column", "x"),
        "small sample": ("vectors", good, "--sample", 3),
        "seed is no number": ("vectors", good, "--seed", "often"),
        "rate out of range": ("calibrate", good, "--rate", 1.5),
        "plan is no TOML": ("run", text),
        "out is a file": ("vectors", good, "--out", good),
    }


CASES = (
    "unknown command",
    "unknown option",
    "no file named",
    "no such file",
    "wrong suffix",
    "three axes",
    "no numbers",
    "two dimensions",
    "column of npy",
    "small sample",
    "seed is no number",
    "rate out of range",
    "plan is no TOML",
    "out is a file",
)


@pytest.mark.parametrize("case", CASES)
def test_bad_use_exits_with_2(command, vectors_file: Path, tmp_path: Path, case: str, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = command(*bad_use(tmp_path, vectors_file)[case])
    assert ended.code == 2, ended.err
    assert ended.out == ""
    assert ended.err.strip()
    assert "Traceback" not in ended.err


def test_an_error_says_what_where_and_what_to_do(command, vectors_file: Path, tmp_path: Path) -> None:
    ended = command("vectors", vectors_file, "--column", "x", "--out", tmp_path / "run")
    lines = ended.err.splitlines()
    assert lines[0].startswith("anisoscope: ")
    assert str(vectors_file) in lines[0]
    assert any(line.strip().startswith("to do:") for line in lines)


def test_with_json_an_error_leaves_standard_output_empty(command, tmp_path: Path) -> None:
    assert command("vectors", tmp_path / "absent.npy", "--json").out == ""


def test_a_csv_that_cannot_be_written_is_named(command, vectors_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "t.csv"
    ended = command("vectors", vectors_file, "--no-neighbours", "--out", tmp_path / "run", "--csv", target)
    assert ended.code == 1
    assert str(target) in ended.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["calibrate", "x.npy", "--rate", "2"], "'rate' is wrong\n  got:      '2'\n  expected: a number, 0 < rate < 1"),
        (["vectors", "x.npy", "--sample", "3"], "expected: a whole number, 64 ≤ sample ≤ 16,777,216"),
        (["vectors", "x.npy", "--seed", "x"], "got:      'x'\n  expected: a whole number, 0 ≤ seed"),
        (["null", "--dim", "0"], "expected: a whole number, 2 ≤ dim ≤ 1,000,000"),
        (["measure", "gpt2", "--length", "nan"], "expected: a number, length > 0"),
        (["measure", "gpt2", "--workers", "0"], "expected: a whole number, workers ≥ 1"),
        (["block", "--norms", "1"], "expected: at least 2"),
        (["block", "--depth", str(10**9)], "expected: a whole number, 1 ≤ depth ≤ 1,000"),
        (["measure", "gpt2", "--limit", str(10**24)], "expected: a whole number, 1 ≤ limit ≤"),
    ],
)
def test_a_number_outside_its_limits_is_answered_with_the_limits(command_line, arguments, words):
    ended = command_line(*arguments)
    assert ended.code == 2
    assert words in ended.err
