"""`anisoscope block`, `vocabulary` and `final-norm` as a person or a script meets them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zoo


def test_block_prints_a_table_or_one_object(command: Callable[..., Any], small_config: str, tmp_path: Path) -> None:
    options = ["--arch", small_config, "--norms", "0,2,10", "--seeds", "2", "--sequences", "1", "--length", "24"]
    given = ["block", *options, "--input", "table,embeddings", "--out", tmp_path / "run"]
    printed = command(*given, "--json", "--no-figures")
    assert printed.code == 0, printed.err
    said = json.loads(printed.out)
    assert {row["model"] for row in said["measurements"]} == {"small-bert", "small-bert, embeddings"}
    assert not (tmp_path / "run/figures").exists()
    shown = command(*given, "--csv", tmp_path / "rows.csv")
    assert "norms meet at N*" in shown.out
    assert len(shown.out.splitlines()) < 40
    assert (tmp_path / "rows.csv").read_text().count("\n") == len(said["measurements"]) + 1
    assert (tmp_path / "run/figures/blocks-side-by-side.svg").exists()
    again = command("show", tmp_path / "run")
    assert again.out.splitlines() == shown.out.splitlines()[: len(again.out.splitlines())]


@pytest.mark.parametrize(
    "wrong", [["--arch", "gpt9"], ["--norms", "5,1"], ["--norms", "a,b"], ["--without", "norm"], ["--input", "both"]]
)
def test_wrong_options_are_refused(command: Callable[..., Any], wrong: list[str], tmp_path: Path) -> None:
    ended = command("block", *wrong, "--out", tmp_path / "run")
    assert ended.code == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--length", "2000"], "takes fewer vectors per sequence"),
        (["--length", "8", "--init-std", "1e24"], "not finite"),
        (["--length", "8", "--norms", "0,1e300"], "not finite"),
    ],
)
def test_what_a_block_cannot_hold_is_refused(
    wrong: list[str], words: str, command: Callable[..., Any], small_config: str, tmp_path: Path
) -> None:
    ended = command("block", "--arch", small_config, "--seeds", 1, *wrong, "--out", tmp_path / "run")
    assert (ended.code > 0, words in ended.err) == (True, True), ended
    assert not (tmp_path / "run").exists()


def test_vocabulary_and_final_norm(command: Callable[..., Any], tmp_path: Path) -> None:
    model = str(zoo.save("gpt_neox", tmp_path / "model"))
    printed = command("vocabulary", model, "--out", tmp_path / "v", "--json")
    said = json.loads(printed.out)
    assert {"vocabulary.input", "vocabulary.output"} <= {row["site"] for row in said["measurements"]}
    assert (tmp_path / "v/figures/partition-function.svg").exists()
    shown = command("vocabulary", model, "--out", tmp_path / "v", "--no-figures")
    assert "I(W)" in shown.out
    refused = command("vocabulary", model, "--data", "typo.txt", "--out", tmp_path / "w")
    assert (refused.code, "typo.txt" in refused.err) == (2, True)
    (tmp_path / "t.txt").write_text("\n".join(f"line {k} of the text" for k in range(20)))
    options = ["--data", tmp_path / "t.txt", "--documents", "lines", "--length", "24"]
    shown = command("final-norm", model, *options, "--out", tmp_path / "n")
    assert "final_norm" in shown.out
    assert "no mean" in shown.out
    assert (tmp_path / "n/figures/final-norm.svg").exists()
