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

LONG = (  # minutes, or started processes; what takes longest comes first
    *("distributed/test_torchrun", "notebooks", "models/test_hub.py", "browser", "faults/test_processes"),
    *("studies/intervene/test_outcomes", "distributed", "report/test_figures_block", "studies/measure/test_embedding"),
    *("studies/attention/test_rows", "training", "models/test_every", "faults", "watch", "accumulate/test_m"),
    *("studies/variants", "studies/test_metric_names", "studies/measure", "test_docs", "test_walk", "packaging"),
    *("contributing", "scripts", "cli", "inputs/stores", "studies/paper", "properties", "test_api"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first: handed out last, one of them would keep one process busy while the others wait."""
    places = {item.nodeid: item.nodeid.removeprefix("tests/") for item in items}
    ranks = {
        place: next((rank for rank, long in enumerate(LONG) if place.startswith(long)), len(LONG))
        for place in places.values()
    }
    items.sort(key=lambda item: ranks[places[item.nodeid]])


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small models: more threads only wait for each other."""
    from fixtures import recorded

    with recorded.one_thread():
        yield


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
