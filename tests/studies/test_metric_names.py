"""Every study, run small: each metric that comes out of it is declared, with a label and a meaning."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anisoscope
import zoo
from anisoscope.inference.metrics import declared
from anisoscope.runs.finding import entries
from anisoscope.runs.perform import perform
from anisoscope.runs.table import Row

torch.set_num_threads(1)

TEXT = "the cat sat on the mat and looked at the small bird that sang in the old tree by the river"
TEXTS = [" ".join(np.random.default_rng(k).permutation(TEXT.split())) for k in range(8)]
SOURCE = Path(anisoscope.__file__).parent


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model, texts, vectors, runs of both: what the studies need."""
    folder = tmp_path_factory.mktemp("place")
    zoo.save("gpt2", folder / "gpt2")
    zoo.config("bert").save_pretrained(folder / "bert")
    (folder / "text.txt").write_text("\n".join(TEXTS))
    np.save(folder / "x.npy", (np.random.default_rng(0).standard_normal((200, 24)) + 1).astype(np.float32))
    perform("vectors", {"files": [str(folder / "x.npy")]}, out=folder / "vectors")
    text = {"data": [str(folder / "text.txt")], "documents": "lines", "length": 16}
    perform("measure", {"models": [str(folder / "gpt2")], **text}, out=folder / "measured")
    return folder


def small(study: str, place: Path) -> dict[str, Any]:
    """Settings under which a study takes a second."""
    model, files = str(place / "gpt2"), [str(place / "x.npy")]
    text: dict[str, Any] = {"data": [str(place / "text.txt")], "documents": "lines", "length": 16}
    block = {"arch": [str(place / "bert")], "norms": [0, 2, 10], "seeds": 2, "sequences": 1, "length": 24}
    seeds = {"seeds": [0, 1], "recipe": {"hidden": 32, "layers": 1, "heads": 2, "length": 32, "batch": 4}}
    return {
        "advise": {"files": files, "dims": [0.5]},
        "attention": {"model": model, **text},
        "block": {**block, "against": [str(place / "measured")]},
        "calibrate": {"files": files},
        "compare": {"first": str(place / "vectors"), "second": str(place / "vectors")},
        "gate": {"first": str(place / "vectors"), "second": str(place / "vectors")},
        "final-norm": {"models": [model], **text},
        "intervene": {"model": model, "what": ["mean_query", "mean_hidden"], **text},
        "measure": {"models": [model], **text},
        "null": {"dim": [64]},
        "remedy": {"files": files},
        "sweep": {"series": "embedded", "seeds": [0], "steps": "0,64", **text},
        "variants": {"data": text["data"], "texts": text["data"], "arms": ["softmax", "gated"], "steps": 2, **seeds},
        "vectors": {"files": files},
        "vocabulary": {"models": [model], "data": text["data"]},
    }[study]


@pytest.mark.parametrize("study", list(entries()))
def test_every_metric_of_a_study_is_declared(study: str, place: Path, tmp_path: Path) -> None:
    found = perform(study, small(study, place), out=tmp_path / "run")
    names = {row.metric for row in found.rows}
    assert len(names) >= 5
    assert {name for name in names if declared(name) is None} == set()


def test_every_metric_of_a_training_log_is_declared() -> None:
    from anisoscope.training.trainer import LOGGED

    rows = [Row(metric=name) for name in LOGGED.values()]
    assert {row.metric for row in rows if declared(row.metric) is None} == set()


def test_every_metric_that_the_code_names_is_declared() -> None:
    """Whatever stands in the sources as `metric="…"`, also in studies that no test above runs."""
    named: dict[str, str] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "metric" and isinstance(node.value, ast.Constant):
                named[str(node.value.value)] = str(path)
    assert len(named) > 10
    assert {name: path for name, path in named.items() if declared(name) is None} == {}
