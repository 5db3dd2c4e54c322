"""The help lists every command, and every command explains itself with examples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import anisoscope
from anisoscope.cli.main import commands

MODULES = Path(anisoscope.__file__).parent / "cli"


def test_the_help_lists_every_command(command) -> None:
    ended = command("--help")
    assert (ended.code, ended.err) == (0, "")
    listed = [line.split()[0] for line in ended.out.splitlines() if line.startswith("  ") and line.strip()]
    for name, (_, summary) in commands().items():
        assert name in listed
        assert summary.split()[0] in ended.out


def test_every_command_has_its_place_in_the_list() -> None:
    """What is not named in the order of the list comes last, behind the demo: a new command must be put somewhere."""
    assert list(commands())[-1] == "demo"
    files = {path.stem for path in (MODULES / "commands").glob("[!_]*.py")}
    assert {name.replace("-", "_") for name in commands()} >= files


@pytest.mark.parametrize("name", list(commands()))
def test_every_command_explains_itself(command, name: str) -> None:
    ended = command(name, "--help")
    assert (ended.code, ended.err) == (0, "")
    assert "Usage:" in ended.out
    assert "<list[" not in ended.out  # the type of Python
    assert f"anisoscope {name}" in ended.out.split("Example", 1)[-1]


def test_a_group_of_commands_is_listed_like_all_commands(command) -> None:
    ended = command("remedy", "--help")
    assert {"fit", "apply", "export"} <= {line.split()[0] for line in ended.out.splitlines() if line.startswith("  ")}
    assert not {"╭", "<bool>", "..."} & set(ended.out.replace("ARGS]...", "").split())
    assert "│" not in ended.out


def test_nothing_at_all_prints_the_help(command) -> None:
    ended = command()
    assert "Usage:" in ended.out + ended.err


def test_the_version(command) -> None:
    assert command("--version").out == f"anisoscope {anisoscope.__version__}\n"


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "anisoscope", "--version"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"anisoscope {anisoscope.__version__}\n", "")


def test_the_models_stand_on_one_line_each_and_our_choices_below(command, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = command("models", "--modality", "vision").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if "vision" in line]) == 9
    assert "our choice for ViT: the base size, patches of 16" in lines
