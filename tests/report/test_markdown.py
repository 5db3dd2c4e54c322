"""`report --markdown`: a section for a model card that says what the run says, and cannot be broken by a name."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import report_runs
from anisoscope import __version__
from anisoscope.cli.commands.report import report
from anisoscope.cli.main import app
from anisoscope.errors import UsageError
from anisoscope.report.markdown import CITATION, markdown
from anisoscope.results import Result
from anisoscope.runs.store import Run, write_run

HOSTILE = "a|b <script>alert(1)</script> [x](javascript:y) `*` \\ ![i](z)\n# heading"


def invoke(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["report", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return report_runs.layers_run(tmp_path / "run", ("org/alpha",), layers=2)


def test_the_table_of_each_model_says_whose_it_is(tmp_path: Path) -> None:
    text = markdown([report_runs.layers_run(tmp_path / "run", ("org/alpha", "org/beta"), layers=2)])
    assert text.index("**org/alpha**") < text.index("| block.0") < text.index("**org/beta**")


def test_findings_protocol_settings_and_citation_are_there(run: Run) -> None:
    text = markdown([run])
    told = dict(line.strip("| ").split(" | ")[:2] for line in text.splitlines() if line.startswith("| block"))
    cosines = {row.site: row.value for row in run.rows(metric="mean_cosine", positions="all")}
    assert told
    assert {site: float(value) for site, value in told.items()} == pytest.approx(
        {site: cosines[site] for site in told}, rel=1e-3
    )
    assert "**Protocol.**" in text
    plan = re.search(r"```toml\n(.*?)\n```", text, re.DOTALL)
    assert plan is not None
    read = tomllib.loads(plan[1])
    assert (read["command"], read["settings"]) == (run.command, run.manifest["settings"])
    assert text == Result.of_run(run).markdown()


def test_the_citation_is_that_of_the_citation_file() -> None:
    cited = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text())
    assert cited["version"] == __version__
    for one in (cited, cited["references"][0]):
        assert one["title"] in CITATION
    assert "Godey, Nathan and de la Clergerie, Éric and Sagot, Benoît" in CITATION


def test_a_foreign_name_stays_text(tmp_path: Path) -> None:
    """As the renderer of notebooks reads it: no script, no link, no image, no heading, and every cell in its place."""
    mistune = pytest.importorskip("mistune")
    text = markdown([report_runs.layers_run(tmp_path / "run", (HOSTILE, "plain"), layers=2)])
    shown = mistune.create_markdown(escape=False, plugins=["table", "strikethrough"])(text)
    assert "<script" not in shown
    assert "<img" not in shown
    assert "<a " not in shown
    assert "<h1" not in shown
    cells = {row.count("<td") for row in re.findall(r"<tr>(.*?)</tr>", shown, re.DOTALL) if "<td" in row}
    assert len(cells) == 1
    assert "alert(1)" in shown


def test_signs_that_turn_the_text_around_are_escaped_in_the_settings(tmp_path: Path) -> None:
    name = "a\u202egnp\u2066\x85.npy"
    run = write_run(tmp_path / "run", command="vectors", settings={"files": [name]}, rows=[])
    text = markdown([run])
    assert not set(name) & set("\u202e\u2066\x85") & set(text)
    plan = re.search(r"```toml\n(.*?)\n```", text, re.DOTALL)
    assert plan is not None
    assert tomllib.loads(plan[1])["settings"]["files"] == [name]


def test_the_command_prints_or_writes_and_guards_other_files(run: Run, tmp_path: Path) -> None:
    printed = invoke(run.folder, "--markdown")
    assert printed == markdown([run])
    assert json.loads(invoke(run.folder, "--markdown", "--json"))["markdown"] == printed
    with pytest.raises(UsageError, match="Markdown is no page"):
        report([run.folder], out=tmp_path / "page.html", markdown=True)
    assert not (tmp_path / "page.html").exists()
    for _ in range(2):
        invoke(run.folder, "--markdown", "-o", tmp_path / "card.md")
    assert (tmp_path / "card.md").read_text(encoding="utf-8") == printed
    (tmp_path / "README.md").write_text("mine")
    refused = CliRunner().invoke(app, ["report", str(run.folder), "--markdown", "-o", str(tmp_path / "README.md")])
    assert isinstance(refused.exception, UsageError)
    assert (tmp_path / "README.md").read_text() == "mine"
