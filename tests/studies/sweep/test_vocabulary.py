"""A sweep of vocabularies alone, over a series whose input and output matrices are two."""

from __future__ import annotations

import numpy as np
import pytest

import zoo
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.perform import perform

STEPS = (0, 8)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    folder = tmp_path_factory.mktemp("training")
    for step in STEPS:
        zoo.save("gpt_neox", folder / f"checkpoint-{step}", seed=step)
    (folder / "text.txt").write_text("some words that are not looked at\n")
    settings = {"series": str(folder), "sites": ["vocabulary"], "data": [str(folder / "text.txt")]}
    return perform("sweep", settings, out=folder / "run")


def test_only_vocabularies_are_measured(swept: Measurement) -> None:
    sites = {row.site.removesuffix(".centred") for row in swept.rows}
    assert sites == {"vocabulary.input", "vocabulary.output"}
    assert {row.step for row in swept.rows} == set(STEPS)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("end", ["input", "output"])
def test_each_matrix_of_each_step_is_measured_by_itself(step: int, end: str, swept: Measurement) -> None:
    headed = zoo.module("gpt_neox", seed=step, head=True)
    w = getattr(headed, f"get_{end}_embeddings")().weight.detach().double().numpy()
    units = w / np.linalg.norm(w, axis=1, keepdims=True)
    cosine = (units @ units.T)[~np.eye(len(w), dtype=bool)].mean()
    _, vectors = np.linalg.eigh(w.T @ w)
    z = np.exp(w @ np.concatenate([vectors, -vectors], axis=1)).sum(0)
    found = {
        row.metric: row.value
        for row in swept.rows
        if row.step == step and row.site == f"vocabulary.{end}" and row.positions == "all" and row.at is None
    }
    assert found["mean_cosine"] == pytest.approx(cosine, abs=1e-6)
    assert found["partition_both"] == pytest.approx(z.min() / z.max(), rel=1e-5)
