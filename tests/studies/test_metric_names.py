"""Every study, run small: each metric that comes out of it is declared, with a label and a meaning."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

import anisoscope
import zoo
from anisoscope.inference.metrics import declared
from anisoscope.inputs.sources import Document, MemorySource
from anisoscope.models.batches.plan import make_batches
from anisoscope.models.open import open_model
from anisoscope.runs.table import Row

torch.set_num_threads(1)

TEXT = "the cat sat on the mat and looked at the small bird that sang in the old tree by the river"
TEXTS = [" ".join(np.random.default_rng(k).permutation(TEXT.split())) for k in range(8)]
SOURCE = Path(anisoscope.__file__).parent


def _opened(folder: Path):
    zoo.save("gpt2", folder)
    model = open_model(folder, head=True)
    texts = MemorySource([Document(str(k), text) for k, text in enumerate(TEXTS)], modality="text", name="texts")
    return model, make_batches(model, texts, length=16)


def measure(folder: Path) -> Iterable[Row]:
    return anisoscope.measure(zoo.module("gpt2"), TEXTS, processor=zoo.processor("gpt2")).rows


def vectors(folder: Path) -> Iterable[Row]:
    return anisoscope.vectors(np.random.default_rng(0).standard_normal((200, 8)) + 1.0).rows


def compare(folder: Path) -> Iterable[Row]:
    found = anisoscope.vectors(np.random.default_rng(0).standard_normal((200, 24)) + 1.0)
    return anisoscope.compare(found, found).rows


def null(folder: Path) -> Iterable[Row]:
    from anisoscope.studies.null import null_rows

    return null_rows(64, 1000)


def calibrate(folder: Path) -> Iterable[Row]:
    np.save(folder / "x.npy", np.random.default_rng(0).standard_normal((200, 8)).astype(np.float32))
    return anisoscope.calibrate(folder / "x.npy", out=folder / "run").rows


def attention(folder: Path) -> Iterable[Row]:
    from anisoscope.studies.attention.rows import attention_rows, measure_attention
    from anisoscope.studies.variants.rows import alignment_rows, averages, differences

    model, batches = _opened(folder)
    sums = measure_attention(model, batches)
    rows = attention_rows(sums.heads, sums.rows)
    rows += alignment_rows(rows, width=8)
    arms = [Row(**{**row.as_dict(), "model": arm, "seed": seed}) for row in rows for arm in "ab" for seed in (0, 1)]
    return [*rows, *averages(arms), *differences(arms, control="a")]


def interventions(folder: Path) -> Iterable[Row]:
    from anisoscope.studies.intervene.outcomes import intervene

    return intervene(*_opened(folder), what=("mean_query", "mean_hidden"))


def vocabulary(folder: Path) -> Iterable[Row]:
    from anisoscope.studies.vocabulary import Matrix, measure_matrix

    rng = np.random.default_rng(0)
    return measure_matrix(
        Matrix("vocabulary.input", rng.standard_normal((300, 8)), True), counts=rng.integers(0, 9, 300)
    )[0]


def final_norm(folder: Path) -> Iterable[Row]:
    from anisoscope.studies.final_norm.study import FinalNormSettings, final_norm_study

    (folder / "text.txt").write_text("\n\n".join(TEXTS))
    model, _ = _opened(folder / "model")
    return final_norm_study([(0, model)], FinalNormSettings(models=[], data=[str(folder / "text.txt")])).rows


def blocks(folder: Path) -> Iterable[Row]:
    from anisoscope.studies.block.study import BlockPlan, run_blocks

    from anisoscope.runs.measurement import Measurement

    (folder / "config.json").write_text(json.dumps(zoo.config("bert").to_dict()))
    norm = Row(model="m", site="block.0", layer=0, metric="mean_norm", value=12.0, n=9)
    trained = Measurement((norm,), "").save(folder / "trained").folder
    plan = BlockPlan(arch=[str(folder)], norms=[0, 2, 10], seeds=2, sequences=1, length=24, against=[str(trained)])
    return run_blocks(plan, out=folder / "run").rows


def training(folder: Path) -> Iterable[Row]:
    from anisoscope.training.trainer import LOGGED

    return [Row(metric=name) for name in LOGGED.values()]


STUDIES: tuple[Callable[[Path], Iterable[Row]], ...] = (
    measure,
    vectors,
    compare,
    null,
    calibrate,
    attention,
    interventions,
    vocabulary,
    final_norm,
    blocks,
    training,
)


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.__name__)
def test_every_metric_of_a_study_is_declared(study: Callable[[Path], Iterable[Row]], tmp_path: Path) -> None:
    names = {row.metric for row in study(tmp_path)}
    assert len(names) >= 5
    assert {name for name in names if declared(name) is None} == set()


def test_every_metric_that_the_code_names_is_declared() -> None:
    """Whatever stands in the sources as `metric="…"`, also in studies that no test above runs."""
    named: dict[str, str] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "metric" and isinstance(node.value, ast.Constant):
                named[str(node.value.value)] = str(path)
    assert len(named) > 10
    assert {name: path for name, path in named.items() if declared(name) is None} == {}
