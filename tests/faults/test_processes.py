"""Two processes in one folder, a lock whose owner is dead, memory that runs out, and errors that nobody foresaw."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

import anisoscope
import cases
from anisoscope.errors import ModelError, StoreError
from anisoscope.runs.locking import locked

# -- locks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("existing", ["resume", "replace"])
def test_the_second_process_says_who_is_at_work(existing: str, world: Path, tmp_path: Path, command_line) -> None:
    words = [*cases.words_of("attention", world), "--out", tmp_path / "run"]
    assert cases.run(*words, signal_=signal.SIGKILL, after=2).code == -signal.SIGKILL
    kept = cases.states(tmp_path / "run")
    child, parent = os.pipe(), os.pipe()
    owner = os.fork()
    if owner == 0:  # another process takes the folder and waits
        with locked(tmp_path / "run") as take:
            take()
            os.write(child[1], b"x")
            os.read(parent[0], 1)
        os._exit(0)
    try:
        os.read(child[0], 1)
        ended = command_line(*words, "--existing", existing)
        assert ended.code == 1
        assert "another process is at work" in ended.err
        assert f"process {owner}" in ended.err
        assert cases.states(tmp_path / "run") == kept  # nothing of its work was touched
    finally:
        os.write(parent[1], b"x")
        os.waitpid(owner, 0)
    assert command_line(*words, "--existing", existing).code == 0


def test_a_dead_owner_does_not_block(world: Path, tmp_path: Path, command_line) -> None:
    words = [*cases.words_of("vectors", world), "--out", tmp_path / "run"]
    assert cases.run(*words, signal_=signal.SIGKILL, after=1).code == -signal.SIGKILL
    assert (tmp_path / "run/.lock").exists()
    assert command_line(*words).code == 0
    assert not (tmp_path / "run/.lock").exists()


def test_a_lock_on_a_file_that_was_taken_away_counts_for_nothing(tmp_path: Path) -> None:
    """Whoever opened the lock file just before its owner removed it must not hold a lock that nobody can see."""
    with locked(tmp_path) as first:
        first()
        (tmp_path / ".lock").unlink()  # as an owner does when it ends
        with locked(tmp_path) as second:
            second()
            with locked(tmp_path) as third, pytest.raises(StoreError, match="at work"):
                third()


# -- memory ------------------------------------------------------------------------------------------------------------

ERRORS = {
    "CUDA": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "CPU": lambda: RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"),
    "Python": lambda: MemoryError(),
}


def short_of_memory(monkeypatch, *, most: int, error) -> list[int]:
    """Forward passes of more than so many windows fail in the middle of the model; the sizes that were tried."""
    from transformers import GPT2Model

    tried: list[int] = []
    forward = GPT2Model.forward

    def limited(self, input_ids=None, **inputs):
        tried.append(len(input_ids))
        if len(input_ids) > most:
            forward(self, input_ids=input_ids, **inputs)  # the sums of this batch are there, and must not count
            raise error()
        return forward(self, input_ids=input_ids, **inputs)

    monkeypatch.setattr(GPT2Model, "forward", limited)
    return tried


OPTIONS = {"documents": "lines", "neighbours": False, "dtype": "float64", "batch_tokens": 200}


@pytest.fixture(scope="module")
def expected(world: Path) -> anisoscope.Measurement:
    return anisoscope.measure(world / "gpt2", world / "texts.txt", **OPTIONS)


@pytest.mark.parametrize(("kind", "kept"), [("CUDA", True), ("CPU", True), ("Python", True), ("CUDA", False)])
def test_batches_are_halved_when_memory_runs_out(
    kind: str, kept: bool, expected: anisoscope.Measurement, world: Path, tmp_path: Path, monkeypatch
) -> None:
    tried = short_of_memory(monkeypatch, most=2, error=ERRORS[kind])
    out = {"out": tmp_path / "run"} if kept else {}
    found = anisoscope.measure(world / "gpt2", world / "texts.txt", **OPTIONS, **out)
    assert max(tried) > 2
    assert any("memory ran out with 200 positions" in note for note in found.notes)
    assert not any("memory" in note for note in expected.notes)
    for row, other in zip(expected.rows, found.rows, strict=True):
        assert row.n == other.n
        assert (row.value is None) == (other.value is None)
        assert row.value is None or row.value == pytest.approx(other.value, rel=1e-9, abs=1e-9)


def test_one_window_that_does_not_fit_is_an_error_with_advice(world: Path, tmp_path: Path, monkeypatch) -> None:
    short_of_memory(monkeypatch, most=0, error=ERRORS["CUDA"])
    with pytest.raises(ModelError, match="not enough memory") as caught:
        anisoscope.attention(world / "gpt2", world / "texts.txt", documents="lines", out=tmp_path / "run")
    assert "--length" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_other_failures_of_a_model_are_not_taken_for_memory(world: Path, monkeypatch) -> None:
    tried = short_of_memory(monkeypatch, most=0, error=lambda: RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes"):
        anisoscope.attention(world / "gpt2", world / "texts.txt", documents="lines")
    assert len(tried) == 1


# -- the one boundary --------------------------------------------------------------------------------------------------


def test_an_unforeseen_error_is_short_and_debug_shows_the_rest(
    world: Path, tmp_path: Path, command_line, monkeypatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("first line\nsecond line \x1b[31m")

    monkeypatch.setattr("anisoscope.inference.cloud.measure_cloud", broken)
    words = [*cases.words_of("vectors", world), "--out", tmp_path / "run"]
    ended = command_line(*words)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines()[0] == "anisoscope: unexpected ZeroDivisionError: first line"
    assert "--debug" in ended.err
    assert "Traceback" not in ended.err
    from anisoscope.cli.main import REPORT_TO, main

    assert REPORT_TO in ended.err
    with pytest.raises(ZeroDivisionError):
        main([*map(str, words), "--debug"])


def test_too_little_memory_is_one_line_with_advice(world: Path, tmp_path: Path, command_line, monkeypatch) -> None:
    def short(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 7.45 GiB")

    monkeypatch.setattr("anisoscope.inference.cloud.measure_cloud", short)
    ended = command_line(*cases.words_of("vectors", world), "--out", tmp_path / "run")
    assert (ended.code, ended.out) == (1, "")
    assert "anisoscope: not enough memory; try" in ended.err
    assert "Traceback" not in ended.err


def test_a_full_disk_is_named_and_nothing_is_lost(world: Path, tmp_path: Path, command_line, monkeypatch) -> None:
    import safetensors.numpy
    from safetensors import SafetensorError

    words = [*cases.words_of("attention", world), "--out", tmp_path / "run"]
    assert cases.run(*words, signal_=signal.SIGKILL, after=2).code == -signal.SIGKILL
    kept = cases.states(tmp_path / "run")

    def full(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patched:
        patched.setattr(safetensors.numpy, "save_file", full)
        ended = command_line(*words)
    assert ended.code == 1
    assert "No space left" in ended.err
    assert "free some space" in ended.err
    assert cases.states(tmp_path / "run") == kept
    assert not list((tmp_path / "run").rglob("*.partial"))
    assert command_line(*words).code == 0


def test_a_damaged_state_is_named_and_can_be_replaced(world: Path, tmp_path: Path, command_line) -> None:
    words = [*cases.words_of("attention", world), "--out"]
    assert cases.run(*words, tmp_path / "killed", signal_=signal.SIGKILL, after=2).code == -signal.SIGKILL
    for number, pattern in enumerate(("*.safetensors", "*.json")):
        folder = shutil.copytree(tmp_path / "killed", tmp_path / f"{number}")
        file = next((folder / "partial").rglob(pattern))
        file.write_bytes(file.read_bytes()[:40])
        ended = command_line(*words, folder)
        assert ended.code == 1
        assert "damaged" in ended.err
        assert "--existing replace" in ended.err
        assert command_line(*words, folder, "--existing", "replace").code == 0
