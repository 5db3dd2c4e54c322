"""A kill before any change of a file: the same command goes on, and nothing is left lying about."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cases
from anisoscope.runs.writing import atomic
from faults import jobs


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = cases.make_world(tmp_path_factory.mktemp("world"))
    cases.write_vectors(folder / "few.parquet", rows=400)
    for shard in (0, 1):
        words = [*cases.words_of("vectors", folder), "--shard", f"{shard}/2", "--out", folder / f"shard-{shard}"]
        assert cases.run(*words).code == 0
    return folder


@pytest.mark.parametrize(("command", "step"), [("null", 2), ("merge", 3), ("gate", 9)])  # `make faults` takes them all
def test_a_kill_before_any_change_of_a_file(command: str, step: int, world: Path, tmp_path: Path, command_line) -> None:
    words, event = jobs.words_of(command, world), 0
    assert command_line(*words, "--no-figures", "--out", tmp_path / "whole/run").code == 0
    killed = True
    while killed:
        event += step
        folder = tmp_path / f"{event}"
        given = [*words, "--no-figures", "--out", folder / "run"]
        killed = cases.run(*given, signal_=signal.SIGKILL, event=event).code == -signal.SIGKILL
        ended = command_line(*given, "--existing", "replace" if event % 2 else "resume")
        assert ended.code == 0, (event, ended.err)
        assert jobs.differences(folder, tmp_path / "whole") == [], event
    assert event > 10


@pytest.mark.parametrize("event", [19, 22, 25, 28])
def test_a_signal_while_the_run_is_written_leaves_a_folder_that_can_be_used(
    event: int, world: Path, tmp_path: Path, command_line
) -> None:
    words = [*jobs.words_of("null", world), "--out", tmp_path / "run"]
    ended = cases.run(*words, signal_=signal.SIGTERM, event=event)
    assert ended.code in (0, 143), ended
    again = command_line(*words)
    assert again.code == 0, again.err
    assert not list((tmp_path / "run").glob(".*"))


def test_what_a_dead_process_was_writing_is_swept_up(tmp_path: Path) -> None:
    """That of a living process, of another machine and of another file stays."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with atomic(tmp_path / "x.csv") as mine:
        mine.write_text("mine")
        dead = mine.name.replace(f".{os.getpid()}@", f".{gone.pid}@")
        living, other = dead.replace(f".{gone.pid}@", ".1@"), dead.replace("x.csv", "y.csv")
        elsewhere = f".x.csv.{gone.pid}@elsewhere.partial"
        for name in (dead, living, other, elsewhere):
            (tmp_path / name).write_text("half")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"x.csv", living, other, elsewhere}
