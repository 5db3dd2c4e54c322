"""The command: a training, its report, and what it says of wrong options."""

from __future__ import annotations

import csv
import json

import pytest
import torch

from anisoscope.training.recipe import Recipe


@pytest.fixture
def text(tmp_path) -> str:
    (tmp_path / "text").write_bytes(b"abcdefghijklmnopqrstuvwxyz\n" * 100)
    return str(tmp_path / "text")


SIZES = ("--layers", 1, "--hidden", 16, "--heads", 2, "--length", 16, "--batch", 4, "--threads", 1)


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_training_from_options_and_again_from_its_recipe(command, text: str, tmp_path) -> None:
    out, table = tmp_path / "out", tmp_path / "log.csv"
    given = ("--data", text, "--steps", 4, "--seeds", "0-1", *SIZES, "--out", out)
    done = command("pretrain", *given, "--json", "--csv", table)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert (report["schema"], report["run"], report["command"]) == (1, str(out), "pretrain")
    last = [row for row in report["measurements"] if row["step"] == 4 and row["metric"] == "validation_loss"]
    assert [row["seed"] for row in last] == [0, 1]
    assert f"seed 1: {last[1]['value']:.4f}" in report["verdict"]
    assert len(list(csv.DictReader(table.open()))) == len(report["measurements"])
    assert "seed 0: starts at step 0" in done.err

    again = command("pretrain", "--recipe", out / "recipe.toml", "--seeds", "2", "--out", out, "--threads", 1)
    assert again.code == 0, again.err
    assert again.out.startswith(f"2 checkpoints in {out}. Validation loss after 4 steps: seed 2: ")
    assert Recipe.read(out / "recipe.toml").seeds == [0, 1, 2]


def test_every_field_of_the_recipe_is_an_option(command) -> None:
    shown = command("pretrain", "--help").out
    fields = [name for name in Recipe.model_fields if name != "data_sha256"]
    assert [name for name in fields if f"--{name.replace('_', '-')}" not in shown] == []


def test_wrong_options_are_named_before_anything_is_written(command, text: str, tmp_path) -> None:
    for arguments, reason in (
        (("--arch", "gpt2", "--objective", "mlm", "--data", text), "gpt2 is trained for clm or headless"),
        (("--arch", "gtp2", "--data", text), 'did you mean "gpt2"'),
        (("--steps", 5), "data"),
        (("--data", text, "--seeds", "a"), "0,2,3"),
        (("--data", text, "--hidden", 2), "hidden"),
        (("--recipe", tmp_path / "absent.toml"), "no such file"),
    ):
        done = command("pretrain", *arguments, "--out", tmp_path / "out")
        assert (done.code, reason in done.err) == (2, True), done.err
    assert not (tmp_path / "out").exists()


def test_the_table_must_not_overwrite_the_text(command, text: str, tmp_path) -> None:
    done = command("pretrain", "--data", text, *SIZES, "--out", tmp_path / "out", "--csv", text)
    assert done.code == 2
    assert "overwrite an input" in done.err
    assert not (tmp_path / "out").exists()
