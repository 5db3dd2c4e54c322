"""`anisoscope intervene` as a person or a script meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import zoo
from anisoscope.models.stand_ins.processors import PASSAGE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal model with its head, and a text of eight lines."""
    root = tmp_path_factory.mktemp("model")
    zoo.save("gpt2", root / "body")
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(root / "body")
    transformers.GPT2LMHeadModel(config).save_pretrained(root / "body")
    words = PASSAGE.split()
    (root / "lines.txt").write_text("\n".join(" ".join(words[i : i + 8]) for i in range(0, 48, 6)) + "\n")
    return root


def test_each_intervention_is_a_line_with_its_control(
    command: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    given = ["intervene", folder / "body", "--data", folder / "lines.txt", "--documents", "lines", "--out", tmp_path]
    ended = command(*given, "--what", "mean_query", "--what", "mean_key")
    assert ended.code == 0, ended.err
    lines = [line.split() for line in ended.out.splitlines()]
    (query,), (key,) = ([line for line in lines if line[:1] == [name]] for name in ("mean_query", "mean_key"))
    assert len(query) == len(key) == 7
    assert {cell.strip("+-") for cell in key[1:]} == {"0.0000"}  # softmax cannot see a mean key
    assert (tmp_path / "figures/interventions.png").exists()
    told = json.loads(command(*given, "--what", "mean_query", "--what", "mean_key", "--json").out)
    assert {row["site"] for row in told["measurements"]} == {
        "untouched",
        "mean_query",
        "mean_query.control",
        "mean_key",
        "mean_key.control",
    }
    assert "the mean key is invisible to softmax" in told["verdict"]
    shown = command("show", tmp_path)
    assert shown.out.splitlines() == ended.out.splitlines()[: len(shown.out.splitlines())]


def test_a_pattern_that_names_no_block_is_refused(command: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    ended = command("intervene", folder / "body", "--layers", "final_norm", "--out", tmp_path / "run")
    assert ended.code == 2
    assert "no block has such a name" in ended.err
