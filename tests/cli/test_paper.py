"""`anisoscope paper` as a person or a script meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from anisoscope.cli.commands.paper import paper
from anisoscope.errors import AnisoscopeError


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(paper)
    return made


def test_a_script_gets_one_object(app: typer.Typer, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["17", "--out", str(tmp_path / "paper"), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    (figure,) = found["figures"]
    assert (figure["name"], figure["status"], figure["statements"][0]["holds"]) == ("17", "holds", True)
    assert figure["statements"][0]["section"] == "appendix B"
    assert Path(found["page"]).read_text().startswith("<!doctype html>")


def test_a_person_gets_a_line_per_figure_and_the_page(app: typer.Typer, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["17", "--out", str(tmp_path)])
    assert "Cosines of isotropic pairs" in done.stdout
    assert f"page: {tmp_path / 'index.html'}\nfigures: 1 as SVG" in done.stdout
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".svg", ".pdf", ".png"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["99"],
        ["17", "--scale", "paper"],
        ["17", "--protocol", "theirs"],
        ["17", "--scale", "local"],
        ["17", "--existing", "maybe"],
    ],
)
def test_bad_use_is_refused_before_anything_is_written(app: typer.Typer, tmp_path: Path, arguments: list[str]) -> None:
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "paper")])
    assert isinstance(done.exception, AnisoscopeError)
    assert done.exception.exit_code == 2
    assert not (tmp_path / "paper").exists()
