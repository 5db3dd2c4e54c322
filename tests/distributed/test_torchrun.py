"""Real processes of `torchrun`: they share a pass, and whatever dies, another number of them goes on to the same numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cases

pytestmark = pytest.mark.slow
# One process of a torchrun; where sys.argv says so, a rank receives a signal after its second saving.
RANK = """
import os, sys
import cases
rank, after = (int(sys.argv.pop(1)) for _ in range(2))
import torch
torch.set_num_threads(1)
if rank == int(os.environ["RANK"]):
    cases._strike(9, after)
sys.argv[0] = "anisoscope"
from anisoscope.cli.main import main
main()
"""


def torchrun(words: list[str], *, processes: int, dies: int = -1, after: int = 2) -> subprocess.CompletedProcess[str]:
    """A command in several processes; the rank `dies` is killed after it saved its state for the `after`-th time."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    script = Path(words[words.index("--out") + 1]).parent / "rank.py"
    script.write_text(RANK)
    env = cases.environment(**({"ANISOSCOPE_SAVE_EVERY": "0"} if dies >= 0 else {}))
    given = [*launch, str(script), str(dies), str(after), *words]
    return subprocess.run(given, capture_output=True, text=True, env=env, timeout=300, check=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cases.make_world(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("command", ["vectors", "measure", "attention", "sweep"])
def test_two_processes_find_what_one_finds(command: str, world: Path, tmp_path: Path) -> None:
    words = [*cases.words_of(command, world), "--out"]
    assert cases.run(*words, tmp_path / "one").code == 0
    done = torchrun([*words, str(tmp_path / "two")], processes=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run: ") == 1  # one of them speaks
    cases.assert_same(tmp_path / "one", tmp_path / "two", within=1e-12 if command == "vectors" else 1e-9)


def test_a_process_may_have_nothing_to_do(world: Path, tmp_path: Path) -> None:
    words = [*cases.words_of("attention", world), "--limit", "1", "--out"]
    assert cases.run(*words, tmp_path / "one").code == 0
    done = torchrun([*words, str(tmp_path / "two")], processes=2)
    assert done.returncode == 0, done.stderr
    cases.assert_same(tmp_path / "one", tmp_path / "two", within=1e-9)


@pytest.mark.parametrize(("dies", "then"), [(1, 1), (0, 3)])
def test_a_dead_process_is_named_and_others_go_on(dies: int, then: int, world: Path, tmp_path: Path) -> None:
    words = [*cases.words_of("attention", world), "--out"]
    assert cases.run(*words, tmp_path / "one").code == 0
    killed = torchrun([*words, str(tmp_path / "two")], processes=2, dies=dies)
    assert killed.returncode != 0
    assert "anisoscope: " in killed.stderr  # the other one says what happened, without a traceback of ours
    assert "the same command" in killed.stderr
    assert not (tmp_path / "two/manifest.json").exists()
    assert cases.states(tmp_path / "two")
    if then == 1:
        assert cases.run(*words, tmp_path / "two").code == 0
    else:
        done = torchrun([*words, str(tmp_path / "two")], processes=then)
        assert done.returncode == 0, done.stderr
    cases.assert_same(tmp_path / "one", tmp_path / "two", within=1e-9)


def test_one_process_is_killed_and_two_go_on(world: Path, tmp_path: Path) -> None:
    words = [*cases.words_of("measure", world), "--out"]
    assert cases.run(*words, tmp_path / "one").code == 0
    assert cases.run(*words, tmp_path / "two", signal_=signal.SIGKILL, after=3).code == -signal.SIGKILL
    done = torchrun([*words, str(tmp_path / "two")], processes=2)
    assert done.returncode == 0, done.stderr
    cases.assert_same(tmp_path / "one", tmp_path / "two", within=1e-9)


def test_bad_use_is_said_once_and_clearly(world: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = torchrun([*cases.words_of("vectors", world), "--out", str(tmp_path / "file")], processes=2)
    assert done.returncode != 0
    assert "this is a file" in done.stderr
    ours = [line for line in done.stderr.splitlines() if str(cases.SOURCE) in line and line.strip().startswith("File")]
    assert ours == [], os.linesep.join(ours)
