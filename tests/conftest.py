"""What tests of several folders ask for: one thread, the command line in this process, checkpoints and data."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import cases


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small models: more threads only wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def command_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], one_thread: None
) -> Callable[..., cases.Ended]:
    """Run a command as the entry point does: exit code, standard output, standard error."""
    import cases
    from anisoscope.cli.main import main

    def run(*words: object) -> cases.Ended:
        monkeypatch.setattr(sys, "argv", ["anisoscope", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return cases.Ended(code if isinstance(code, int) else 0, *capfd.readouterr())

    return run


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, a series, texts and vectors for every command."""
    import cases

    return cases.make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a small BERT."""
    import zoo

    return zoo.save("bert", tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def copy(bert: Path, tmp_path: Path) -> Path:
    """A BERT checkpoint to be damaged."""
    return Path(shutil.copytree(bert, tmp_path / "copy"))


@pytest.fixture
def small_config(tmp_path: Path) -> str:
    """A folder with nothing but the config of a small BERT."""
    import zoo

    folder = tmp_path / "small-bert"
    folder.mkdir()
    zoo.config("bert").to_json_file(folder / "config.json", use_diff=False)
    return str(folder)
