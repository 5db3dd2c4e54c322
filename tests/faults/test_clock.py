"""A clock that jumps: times of files and of the machine decide nothing that contents do not confirm."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

import cases

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cases.make_world(tmp_path_factory.mktemp("original"))


def touch(world: Path, year: int) -> None:
    when = (year - 1970) * 31_556_952
    for path in world.rglob("*"):
        os.utime(path, (when, when))


@pytest.mark.parametrize("command", ["final-norm", "vectors"])
def test_times_of_files_alone_change_nothing(command: str, original: Path, tmp_path: Path, command_line) -> None:
    world = shutil.copytree(original, tmp_path / "world")
    words = [*cases.words_of(command, world), "--json", "--out", tmp_path / "run"]
    touch(world, 2100)
    first = command_line(*words)
    assert first.code == 0, first.err
    for year in (1971, 2037):
        touch(world, year)
        again = command_line(*words)
        assert (again.code, again.out) == (0, first.out), again.err


def test_data_of_the_same_size_and_time_is_still_looked_at(original: Path, tmp_path: Path, command_line) -> None:
    world = shutil.copytree(original, tmp_path / "world")
    words = [*cases.words_of("final-norm", world), "--out", tmp_path / "run"]
    touch(world, 2030)
    assert command_line(*words).code == 0
    text = (world / "texts.txt").read_text()
    (world / "texts.txt").write_text(text.replace("further", "farther"))
    touch(world, 2030)
    refused = command_line(*words)
    assert refused.code == 1
    assert "texts.txt changed since this run was made" in refused.err


def test_a_clock_that_runs_backwards(original: Path, tmp_path: Path, command_line, monkeypatch) -> None:
    words = [*cases.words_of("attention", original), "--out"]
    assert command_line(*words, tmp_path / "whole").code == 0
    assert cases.run(*words, tmp_path / "run", signal_=signal.SIGKILL, after=2).code == -signal.SIGKILL
    backwards = itertools.count(1e9, -1e6)
    monkeypatch.setattr(time, "time", lambda: next(backwards))
    assert command_line(*words, tmp_path / "run").code == 0
    cases.assert_same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.skipif(FAKETIME is None, reason="libfaketime is not installed")
def test_a_run_of_the_past_is_used_again_in_the_future(original: Path, tmp_path: Path) -> None:
    words = [*cases.words_of("vectors", original), "--json", "--out", tmp_path / "run"]
    said = []
    for moment in ("-10y", "+10y"):
        with cases.start(*words, env={"LD_PRELOAD": str(FAKETIME), "FAKETIME": moment}) as process:
            out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        said.append(out)
    assert said[0] == said[1]
