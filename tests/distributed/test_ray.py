"""Real Ray: workers share a pass, one is killed in the middle, and the numbers are those of one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import cases

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow
# The driver, in which every worker of Ray waits a little with each batch, so that it can be killed in the middle.
DRIVER = """
import os, sys
sys.argv[0] = "anisoscope"
from anisoscope.cli.main import main
main()
"""


def workers() -> list[int]:
    """The processes of accumulating workers on this machine."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if words.startswith(b"ray::_Worker"):
            found.append(int(folder.name))
    return found


def kill_one(folder: Path, killed: list[int], stop: threading.Event) -> None:
    """Kill a worker as soon as a unit has been saved."""
    while not stop.wait(0.02):
        mine = [pid for pid in workers() if pid not in killed]
        if mine and list((folder / "partial").glob("*/*.json")):
            try:
                os.kill(mine[0], signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed.append(mine[0])
            return


def test_a_killed_worker_changes_nothing(world: Path, tmp_path: Path) -> None:
    words = cases.words_of("measure", world)
    assert cases.run(*words, "--out", tmp_path / "one").code == 0
    killed: list[int] = []
    stop = threading.Event()
    thread = threading.Thread(target=kill_one, args=(tmp_path / "ray", killed, stop))
    thread.start()
    given = [*words, "--engine", "ray", "--workers", "2", "--out", str(tmp_path / "ray")]
    env = cases.environment(ANISOSCOPE_SAVE_EVERY="0")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *given], capture_output=True, text=True, env=env, timeout=300, check=False
    )
    stop.set()
    thread.join()
    assert done.returncode == 0, done.stderr
    assert killed
    cases.assert_same(tmp_path / "one", tmp_path / "ray", within=1e-9)


def assert_shared(words: list[str], tmp_path: Path) -> None:
    """Two workers of Ray find what one process finds."""
    assert cases.run(*words, "--out", tmp_path / "one").code == 0
    given = [*words, "--engine", "ray", "--workers", "2", "--out", str(tmp_path / "ray")]
    command = [sys.executable, "-c", DRIVER, *given]
    done = subprocess.run(command, capture_output=True, text=True, env=cases.environment(), timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    cases.assert_same(tmp_path / "one", tmp_path / "ray", within=1e-9)


def test_a_sweep_is_shared_by_checkpoint(world: Path, tmp_path: Path) -> None:
    assert_shared(cases.words_of("sweep", world), tmp_path)


def test_a_grid_is_shared_by_training(tmp_path: Path) -> None:
    assert_shared(cases.grid(tmp_path), tmp_path)
