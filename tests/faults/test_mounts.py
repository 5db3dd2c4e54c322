"""Disks that are full or read-only, as small mounts of their own: an error that names the place, and nothing lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import cases
from faults import jobs


def _mount(*words: object) -> bool:
    try:
        return subprocess.run(["mount", *map(str, words)], capture_output=True).returncode == 0
    except OSError:
        return False


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A memory disk of its own at the folder."""
    folder.mkdir(exist_ok=True)
    if not _mount("-t", "tmpfs", "-o", options, "tmpfs", folder):
        pytest.skip("this machine does not let the tests mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = cases.make_world(tmp_path_factory.mktemp("world"))
    (folder / "book.txt").write_bytes(b"The quick brown fox jumps over the lazy dog.\n" * 60)
    for shard in (0, 1):
        words = [*cases.words_of("vectors", folder), "--shard", f"{shard}/2", "--out", folder / f"shard-{shard}"]
        assert cases.run(*words).code == 0
    for seed in (0, 1):
        words = [*cases.words_of("vectors", folder), "--seed", seed, "--out", folder / f"run-{seed}"]
        assert cases.run(*words).code == 0
    return folder


SMALL = {"vectors": "24k", "run": "24k", "merge": "24k", "report": "64k", "pretrain": "100k", "attention": "24k"}


@pytest.mark.parametrize("command", SMALL)
def test_a_full_disk(command: str, world: Path, tmp_path: Path, command_line: Callable[..., cases.Ended]) -> None:
    words = [*jobs.words_of(command, world), "--out"]
    with mounted(tmp_path / "disk", f"size={SMALL[command]}") as disk:
        ended = command_line(*words, jobs.out_of(command, disk))
        assert ended.code == 1
        assert "No space left" in ended.err
        assert "unexpected" not in ended.err
        assert str(disk) in ended.err
        assert not list(disk.rglob("*.partial"))
        assert not list(disk.rglob("manifest.json"))
        assert _mount("-o", "remount,size=64m", disk)  # somebody made room
        again = command_line(*words, jobs.out_of(command, disk))
        assert again.code == 0, again.err


@pytest.mark.parametrize("command", SMALL)
def test_a_read_only_disk(command: str, world: Path, tmp_path: Path, command_line: Callable[..., cases.Ended]) -> None:
    with mounted(tmp_path / "disk", "ro") as disk:
        ended = command_line(*jobs.words_of(command, world), "--out", jobs.out_of(command, disk))
        assert ended.code == 1
        assert "Read-only file system" in ended.err
        assert "unexpected" not in ended.err
        assert str(disk) in ended.err


def test_a_finished_run_on_a_read_only_disk_is_used_again(world: Path, tmp_path: Path, command_line) -> None:
    with mounted(tmp_path / "disk", "size=64m") as disk:
        words = [*cases.words_of("vectors", world), "--json", "--out", disk / "run"]
        first = command_line(*words)
        (disk / "run/.lock").write_text("left by a kill")
        assert _mount("-o", "remount,ro", disk)
        assert command_line(*words).out == first.out != ""
        assert command_line("show", disk / "run").code == 0
