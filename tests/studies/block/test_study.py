"""The block study as a run and as a command; vocabulary and final-norm as commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import zoo
from anisoscope.cli.block import block
from anisoscope.cli.final_norm import final_norm
from anisoscope.cli.vocabulary import vocabulary
from anisoscope.errors import InputError, UsageError
from anisoscope.runs.store import open_run, write_run
from anisoscope.runs.table import Row
from anisoscope.studies.block.study import BlockPlan, hidden_norm_rows, run_blocks


@pytest.fixture
def small(tmp_path: Path) -> str:
    folder = tmp_path / "small-bert"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(zoo.config("bert").to_dict()))
    return str(folder)


def plan(small: str, **changes) -> BlockPlan:
    return BlockPlan(**{"arch": [small], "norms": [0, 2, 10], "seeds": 2, "sequences": 1, "length": 24, **changes})


def invoke(function, arguments: list[str]):
    app = typer.Typer()
    app.command()(function)
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_a_plan_gives_every_combination_and_is_kept(small: str, tmp_path: Path) -> None:
    asked = plan(small, without=["none", "mlp"], input=["table", "embeddings"])
    found = run_blocks(asked, out=tmp_path / "run")
    labels = {row.model for row in found.rows}
    assert labels == {f"small-bert{end}" for end in ("", ", no mlp", ", embeddings", ", embeddings, no mlp")}
    assert found.verdict.count("drift norms") == 4
    again = run_blocks(asked, out=tmp_path / "run")
    assert again.run is not None
    assert [row.value for row in again.rows] == [row.value for row in found.rows]
    assert "small-bert/scores_counts" in open_run(tmp_path / "run").arrays()


def test_trained_norms_are_compared_with_the_fixed_point(small: str, tmp_path: Path) -> None:
    trained = [Row(model="m", site="block.0", layer=0, metric="mean_norm", value=12.0, low=11.0, high=13.0, n=9)]
    folder = write_run(tmp_path / "trained", command="measure", settings={}, rows=trained, protocol={}).folder
    found = run_blocks(plan(small, against=[str(folder)]), out=tmp_path / "run")
    fixed = next(row for row in found.rows if row.metric == "fixed_point" and row.seed is None)
    ratio = next(row for row in found.rows if row.metric == "norm_over_fixed_point")
    assert fixed.value == pytest.approx(zoo.D**0.5, abs=0.1)
    assert ratio.value == pytest.approx(12.0 / fixed.value)
    assert ratio.low == pytest.approx(11.0 / fixed.value)
    nothing = write_run(tmp_path / "nothing", command="vectors", settings={}, rows=[], protocol={})
    with pytest.raises(InputError, match="no norms of blocks"):
        hidden_norm_rows(found.rows, nothing)


def test_the_command_prints_one_json_object(small: str, tmp_path: Path) -> None:
    options = ["--arch", small, "--norms", "0,2,10", "--seeds", "2", "--sequences", "1", "--length", "24"]
    result = invoke(block, [*options, "--json", "--out", str(tmp_path / "run")])
    said = json.loads(result.stdout)
    assert set(said) == {"run", "verdict", "measurements"}
    assert len(said["measurements"]) > 20
    assert any("fixed" in row["metric"] for row in said["measurements"])
    shown = invoke(block, [*options, "--out", str(tmp_path / "run"), "--csv", str(tmp_path / "rows.csv")])
    assert "fixed_point" in shown.stdout
    assert (tmp_path / "rows.csv").read_text().count("\n") > 20


@pytest.mark.parametrize(
    "wrong", [["--arch", "gpt9"], ["--norms", "5,1"], ["--norms", "a,b"], ["--without", "norm"], ["--input", "pixels"]]
)
def test_wrong_options_are_refused(wrong: list[str], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        invoke(block, [*wrong, "--out", str(tmp_path / "run")])


def test_vocabulary_and_final_norm_commands(tmp_path: Path) -> None:
    model = str(zoo.save("gpt_neox", tmp_path / "model"))
    result = invoke(vocabulary, [model, "--out", str(tmp_path / "v"), "--no-figures", "--json"])
    said = json.loads(result.stdout)
    assert {"vocabulary.input", "vocabulary.output"} <= {row["site"] for row in said["measurements"]}
    shown = invoke(vocabulary, [model, "--out", str(tmp_path / "v"), "--no-figures"])
    assert "I(W)" in shown.stdout
    (tmp_path / "t.txt").write_text("\n".join(f"line {k} of the text" for k in range(20)))
    options = ["--data", str(tmp_path / "t.txt"), "--documents", "lines", "--length", "24"]
    shown = invoke(final_norm, [model, *options, "--out", str(tmp_path / "n"), "--no-figures"])
    assert "final_norm" in shown.stdout
    assert "mean removed" in shown.stdout
