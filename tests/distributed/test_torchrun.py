"""Several processes share a pass, and whatever dies, another number of them goes on to the same numbers.

One test starts `torchrun` itself; the others start the processes with the environment that it would give them.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

import cases
from anisoscope.runs.store import open_run
from anisoscope.runs.work.engines import RankFailed, engine

EXACT = {"vectors": 1e-12}


@pytest.fixture(scope="module")
def one(world: Path, tmp_path_factory: pytest.TempPathFactory):
    """The run of one process."""
    made: dict[str, Path] = {}

    def of(command: str, *more: str) -> Path:
        key = " ".join([command, *more])
        if key not in made:
            made[key] = tmp_path_factory.mktemp("one") / "run"
            assert cases.run(*cases.words_of(command, world), *more, "--out", made[key]).code == 0
        return made[key]

    return of


@pytest.mark.parametrize("command", ["vectors", "measure", "attention", "sweep"])
def test_two_processes_find_what_one_finds(command: str, world: Path, one, tmp_path: Path) -> None:
    found = cases.run_ranks([*cases.words_of(command, world), "--out", str(tmp_path / "two")], processes=2)
    assert [ended.code for ended in found] == [0, 0], found
    assert found[0].out
    assert found[1].out == ""  # one of them speaks
    cases.assert_same(one(command), tmp_path / "two", within=EXACT.get(command, 1e-9))


def test_a_process_may_have_nothing_to_do(world: Path, one, tmp_path: Path) -> None:
    words = [*cases.words_of("attention", world), "--limit", "1", "--out", str(tmp_path / "three")]
    assert [ended.code for ended in cases.run_ranks(words, processes=3)] == [0, 0, 0]
    cases.assert_same(one("attention", "--limit", "1"), tmp_path / "three", within=1e-9)


@pytest.mark.parametrize(("command", "dies", "then"), [("attention", 1, 1), ("vectors", 0, 3), ("sweep", 1, 3)])
def test_a_dead_process_is_told_of_and_others_go_on(
    command: str, dies: int, then: int, world: Path, one, tmp_path: Path
) -> None:
    words = [*cases.words_of(command, world), "--out", str(tmp_path / "two")]
    killed = cases.run_ranks(words, processes=2, dies=dies)
    assert killed[dies].code == -signal.SIGKILL
    other = killed[1 - dies]
    assert other.code == 1
    assert other.err.startswith("anisoscope: another process of this run failed")
    assert "it continues, even with another number of processes" in other.err
    assert not (tmp_path / "two/manifest.json").exists()
    assert cases.states(tmp_path / "two")
    again = [cases.run(*words)] if then == 1 else cases.run_ranks(words, processes=then)
    assert {ended.code for ended in again} == {0}, again
    cases.assert_same(one(command), tmp_path / "two", within=EXACT.get(command, 1e-9))


def test_killed_again_and_again_with_other_numbers_of_processes(world: Path, one, tmp_path: Path) -> None:
    words = [*cases.words_of("measure", world), "--out", str(tmp_path / "run")]
    assert cases.run(*words, signal_=signal.SIGKILL, after=3).code == -signal.SIGKILL
    assert cases.run_ranks(words, processes=3, dies=2, after=1)[2].code == -signal.SIGKILL
    assert cases.run_ranks(words, processes=2, dies=0, after=2)[0].code == -signal.SIGKILL
    assert cases.run(*words).code == 0
    cases.assert_same(one("measure"), tmp_path / "run", within=1e-9)


def test_bad_use_is_clear(world: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    chief, other = cases.run_ranks([*cases.words_of("vectors", world), "--out", str(tmp_path / "file")], processes=2)
    assert chief.code == 2
    assert "this is a file" in chief.err
    assert other.code == 1
    assert "another process of this run failed" in other.err
    assert "Traceback" not in chief.err + other.err


def test_what_one_process_does_is_not_done_by_several(tmp_path: Path) -> None:
    for ended in cases.run_ranks(["null", "--dim", "8", "--out", str(tmp_path / "run")], processes=2):
        assert (ended.code, "start it without torchrun" in ended.err) == (2, True), ended
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_torchrun_itself(world: Path, one, tmp_path: Path) -> None:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "anisoscope"]
    words, env = [*cases.words_of("attention", world), "--out", str(tmp_path / "two")], cases.environment()
    done = subprocess.run([*start, *words], capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    cases.assert_same(one("attention"), tmp_path / "two", within=1e-9)


def test_a_process_that_leaves_while_others_arrive_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: object, **__: object) -> None:
        raise dist.DistNetworkError("Connection reset by peer")

    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]  # documented
    monkeypatch.setattr(dist, "rendezvous", lambda _: iter([(store, 0, 2)]))
    monkeypatch.setattr(dist, "init_process_group", leave)
    for name, value in {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "test"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RankFailed, match="another process of this run failed"):
        engine.__wrapped__()


@pytest.mark.slow
def test_a_grid_of_trainings_is_shared_by_training(tmp_path: Path) -> None:
    """Each training is that of one process, also where another process has none left and one of them diverges."""
    words = cases.grid(tmp_path)
    assert cases.run(*words, "--out", tmp_path / "one").code == 0
    ended = cases.run_ranks([*words, "--out", tmp_path / "two"], processes=2)
    assert [one.code for one in ended] == [0, 0], ended
    cases.assert_same(tmp_path / "one", tmp_path / "two", within=1e-9)
    assert {row.model for row in open_run(tmp_path / "two").rows(metric="diverged_at")} == {"lost"}
