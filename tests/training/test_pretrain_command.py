"""The command: a training, its report, and what it says of wrong options."""

from __future__ import annotations

import csv
import json

import pytest
import typer
from typer.testing import CliRunner

from anisoscope.cli.pretrain import pretrain
from anisoscope.errors import UsageError

app = typer.Typer()
app.command()(pretrain)


@pytest.fixture
def text(tmp_path) -> str:
    (tmp_path / "text").write_bytes(b"abcdefghijklmnopqrstuvwxyz\n" * 100)
    return str(tmp_path / "text")


def call(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_training_from_options_and_again_from_its_recipe(text: str, tmp_path) -> None:
    sizes = ("--layers", 1, "--hidden", 16, "--heads", 2, "--length", 16, "--batch", 4, "--threads", 1)
    out, table = tmp_path / "out", tmp_path / "log.csv"
    done = call("--data", text, "--steps", 4, "--seeds", "0,1", *sizes, "--out", out, "--json", "--csv", table)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["run"] == str(out)
    last = [row for row in report["measurements"] if row["step"] == 4 and row["metric"] == "validation_loss"]
    assert [row["seed"] for row in last] == [0, 1]
    assert f"seed 1: validation loss {last[1]['value']:.4f}" in report["verdict"]
    assert len(list(csv.DictReader(table.open()))) == len(report["measurements"])
    assert "seed 0: step 4/4" in done.stderr

    again = call("--recipe", out / "recipe.toml", "--seeds", "2", "--out", out, "--threads", 1)
    assert again.exit_code == 0, again.output
    assert again.stdout.startswith(f"2 checkpoints in {out}; seed 2: validation loss")


def test_wrong_options_are_named_before_anything_is_written(text: str, tmp_path) -> None:
    for arguments, reason in (
        (("--arch", "gpt2", "--objective", "mlm", "--data", text), "gpt2 is trained for clm or headless"),
        (("--steps", 5), "data"),
        (("--data", text, "--seeds", "a"), "0,1,2"),
    ):
        done = call(*arguments, "--out", tmp_path / "out")
        assert isinstance(done.exception, UsageError)
        assert reason in str(done.exception)
    assert not (tmp_path / "out").exists()
