"""Real Ray: workers share a pass, one is killed in the middle, and the numbers are those of one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import cases
from anisoscope.runs.work.engines import RankFailed
from anisoscope.runs.work.ray_engine import _Pool
from anisoscope.runs.work.units import Unit

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow
EAGER = {"RAY_worker_niceness": "0"}  # Ray's workers give way to others, and would wait for all other tests


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
    env = cases.environment(ANISOSCOPE_SAVE_EVERY="0", **EAGER)
    done = subprocess.run(
        [sys.executable, "-m", "anisoscope", *given], capture_output=True, text=True, env=env, timeout=300, check=False
    )
    stop.set()
    thread.join()
    assert done.returncode == 0, done.stderr
    assert killed
    cases.assert_same(tmp_path / "one", tmp_path / "ray", within=1e-9)


# Both commands on one cluster, which they find started.
TOGETHER = """
import json, sys
import ray
from anisoscope.cli.main import main
ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as ended:
        assert not ended.code, words
assert ray.is_initialized(), "a command ended a cluster that it did not start"
"""


def test_checkpoints_of_a_sweep_and_trainings_of_a_grid_are_shared(world: Path, tmp_path: Path) -> None:
    jobs = {"sweep": cases.words_of("sweep", world), "grid": cases.grid(tmp_path)}
    for name, words in jobs.items():
        assert cases.run(*words, "--out", tmp_path / name).code == 0
    on_ray = ["--engine", "ray", "--workers", "2", "--out"]
    given = [[*words, *on_ray, str(tmp_path / f"{name} on ray")] for name, words in jobs.items()]
    command, env = [sys.executable, "-c", TOGETHER, json.dumps(given)], cases.environment(**EAGER)
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    for name in jobs:
        cases.assert_same(tmp_path / name, tmp_path / f"{name} on ray", within=1e-9)


def test_a_cluster_without_machines_is_not_waited_for() -> None:
    remote = SimpleNamespace(remote=lambda *_: object())
    pool = object.__new__(_Pool)
    pool.ray = SimpleNamespace(wait=lambda *_, **__: ([], []), nodes=lambda: [{"Alive": False}])
    pool.job = SimpleNamespace(study=SimpleNamespace(name="measure"))  # pyright: ignore[reportAttributeAccessIssue]
    pool.workers = {SimpleWorker(remote): []}
    with pytest.raises(RankFailed, match="no machine of the Ray cluster is left"):
        pool.run([(Unit(), None)])


class SimpleWorker:
    """A worker that never comes back."""

    def __init__(self, work: object) -> None:
        self.work = work
