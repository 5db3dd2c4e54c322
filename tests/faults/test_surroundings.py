"""Terminals that know few letters, names that no file system takes: a word about it, never an unexpected error."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import cases
from anisoscope.cli.main import main

X = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_terminal_without_a_sign_gets_a_question_mark(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", X)
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding=encoding))
    with pytest.raises(SystemExit) as ended:
        main(["vectors", str(tmp_path / "x.npy"), "--no-figures", "--out", str(tmp_path / "run")])
    sys.stdout.flush()
    assert not ended.value.code
    assert b"cosine" in shown.getvalue()


def test_a_width_of_nothing_is_an_unknown_one(
    tmp_path: Path, command_line: Callable[..., cases.Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((50, 4)))
    words = ["vectors", tmp_path / "x.npy", "--no-figures", "--out", tmp_path / "run"]
    told = command_line(*words).out
    monkeypatch.setenv("COLUMNS", "0")
    assert command_line(*words).out == told != ""


def test_a_name_that_is_too_long_is_named(tmp_path: Path, command_line: Callable[..., cases.Ended]) -> None:
    np.save(tmp_path / "x.npy", X)
    ended = command_line("vectors", tmp_path / "x.npy", "--no-figures", "--out", tmp_path / ("x" * 300))
    assert ended.code in (1, 2)
    assert "unexpected" not in ended.err
    assert "name" in ended.err


def test_a_folder_that_links_to_itself_is_named(tmp_path: Path, command_line: Callable[..., cases.Ended]) -> None:
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "loop").symlink_to("loop")
    ended = command_line("vectors", tmp_path / "x.npy", "--no-figures", "--out", tmp_path / "loop")
    assert ended.code == 1
    assert "unexpected" not in ended.err
    assert "loop" in ended.err


@pytest.mark.parametrize("name", ["manifest.json", "measurements.parquet"])
def test_a_run_that_may_not_be_read_is_not_called_damaged(
    name: str, tmp_path: Path, command_line: Callable[..., cases.Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", X)
    words = ("vectors", tmp_path / "x.npy", "--no-figures", "--no-neighbours", "--out", tmp_path / "run")
    assert command_line(*words).code == 0
    read, opened = Path.read_bytes, Path.open

    def guarded(method: Callable[..., object]) -> Callable[..., object]:
        def call(path: Path, *words: object, **options: object) -> object:
            if path.name == name:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return method(path, *words, **options)

        return call

    monkeypatch.setattr(Path, "read_bytes", guarded(read))
    monkeypatch.setattr(Path, "open", guarded(opened))
    ended = command_line("show", tmp_path / "run")
    assert ended.code == 1
    assert "check the permissions" in ended.err
    assert "anew" not in ended.err


def test_a_working_folder_that_was_removed_is_named(
    tmp_path: Path, command_line: Callable[..., cases.Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    np.save(tmp_path / "x.npy", X)
    ended = command_line("vectors", tmp_path / "x.npy")
    assert (ended.code, ended.out) == (2, "")
    assert "the current folder was removed" in ended.err


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.EIO, errno.ELOOP])
def test_what_the_system_refuses_is_not_called_unexpected(
    number: int, tmp_path: Path, command_line: Callable[..., cases.Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", X)

    def refuse(*words: object, **options: object) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr("anisoscope.runs.store.find_existing", refuse)
    monkeypatch.setattr("anisoscope.runs.perform.find_existing", refuse, raising=False)
    ended = command_line("vectors", tmp_path / "x.npy", "--no-figures", "--out", tmp_path / "run")
    assert ended.code == 1
    assert "the system refuses" in ended.err
    assert "to do:" in ended.err


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOMEM, "no room"), ImportError("x.so: failed to map segment from shared object")]
)
def test_too_little_memory_for_a_library_is_too_little_memory(
    error: Exception, tmp_path: Path, command_line: Callable[..., cases.Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", X)

    def refuse(*words: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("anisoscope.runs.perform.find_existing", refuse)
    ended = command_line("vectors", tmp_path / "x.npy", "--no-figures", "--out", tmp_path / "run")
    assert (ended.code, ended.err.startswith("anisoscope: not enough memory")) == (1, True), ended
