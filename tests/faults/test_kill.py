"""Every command that can be killed: a real signal in the middle, the same command again, the same numbers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import cases
from anisoscope.runs.store import Run
from anisoscope.runs.writing import atomic


@pytest.fixture(scope="module")
def whole(world: Path, tmp_path_factory: pytest.TempPathFactory):
    """The run of a command that nobody disturbed."""
    made: dict[str, Path] = {}

    def of(command: str) -> Path:
        if command not in made:
            made[command] = tmp_path_factory.mktemp("whole") / command
            done = cases.run(*cases.words_of(command, world), "--out", made[command])
            assert done.code == 0, done.err
        return made[command]

    return of


def windows_run(folder: Path) -> int:
    return sum(header["done"] for header in cases.states(folder))


@pytest.mark.parametrize("command", cases.COMMANDS)
def test_a_killed_command_continues_to_the_same_numbers(command: str, world: Path, whole, tmp_path: Path) -> None:
    words = [*cases.words_of(command, world), "--out", tmp_path / "run"]
    after = 26 if command == "measure" else 2  # in the second model
    killed = cases.run(*words, signal_=signal.SIGKILL, after=after)
    assert (killed.code, killed.out) == (-signal.SIGKILL, ""), killed.err
    assert not (tmp_path / "run/manifest.json").exists()
    saved = cases.states(tmp_path / "run")
    assert any(not header["finished"] for header in saved)
    if command == "measure":
        assert sum(header["finished"] for header in saved) == 1
    unfinished = cases.run("show", tmp_path / "run")
    assert unfinished.code == 1
    assert "not finished" in unfinished.err
    continued = cases.run(*words)
    assert continued.code == 0, continued.err
    cases.assert_same(tmp_path / "run", whole(command))
    assert {path.name for path in (tmp_path / "run").iterdir()} == {path.name for path in whole(command).iterdir()}


@pytest.mark.parametrize(
    ("command", "number", "code"), [("vectors", signal.SIGINT, 130), ("sweep", signal.SIGTERM, 143)]
)
def test_a_signal_saves_says_so_in_one_line_and_the_same_command_continues(
    command: str, number: int, code: int, world: Path, whole, tmp_path: Path
) -> None:
    words = [*cases.words_of(command, world), "--out", tmp_path / "run"]
    stopped = cases.run(*words, signal_=number, after=2)
    assert (stopped.code, stopped.out) == (code, ""), stopped.err
    assert stopped.err == "anisoscope: saved; the same command continues\n"
    before = windows_run(tmp_path / "run")
    assert before > 0
    assert cases.run(*words).code == 0
    cases.assert_same(tmp_path / "run", whole(command))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("stage", ["figures", "merge"])
def test_a_signal_after_the_measuring_says_one_line_and_leaves_nothing_half_written(
    stage: str, number: int, code: int, world: Path, tmp_path: Path, command_line, monkeypatch
) -> None:
    shards = [tmp_path / "0", tmp_path / "1"]
    words = ["vectors", world / "vectors.parquet", "--column", "x", "--no-neighbours", "--no-figures"]
    for k, shard in enumerate(shards):
        assert command_line(*words, "--shard", f"{k}/2", "--out", shard).code == 0
    replace, signals = os.replace, [number]

    def interrupted(source: str, target: Path) -> None:
        if Path(target).suffix == (".svg" if stage == "figures" else ".parquet") and signals:
            os.kill(os.getpid(), signals.pop())
        replace(source, target)

    def draw(run: Run) -> list[Path]:
        with atomic(run.folder / "figure.svg") as partial:
            partial.write_text("<svg/>")
        return [run.folder / "figure.svg"]

    monkeypatch.setattr(os, "replace", interrupted)
    monkeypatch.setattr("anisoscope.report.figures.draw", draw)
    merge = ["merge", *shards, "--out", tmp_path / "run", "--existing", "resume"]
    ended = command_line(*merge)
    assert (ended.code, ended.err) == (code, "anisoscope: stopped; every file that was written is complete\n")
    assert not list(tmp_path.rglob("*.partial")) + list(tmp_path.rglob(".lock"))
    assert command_line(*merge).code == 0
    assert (tmp_path / "run/figure.svg").exists()


def test_what_was_done_is_not_done_again(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The continuation reads the windows after the last saved state, and no other."""
    from anisoscope.capture.hidden import HiddenCapture
    from anisoscope.cli.main import main

    words = [*map(str, cases.words_of("final-norm", world)), "--out", str(tmp_path / "run")]
    cases.run(*words, signal_=signal.SIGKILL, after=3)
    done = windows_run(tmp_path / "run")
    seen: list[int] = []
    attached = HiddenCapture.attached
    monkeypatch.setattr(
        HiddenCapture, "attached", lambda self, batch, take: (seen.append(len(batch)), attached(self, batch, take))[1]
    )
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code in (0, None)
    assert 0 < done < 24
    assert sum(seen) == 24 - done
