"""`anisoscope sweep embedded`, all three parts, against the checkpoints themselves in plain float64."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer
from typer.testing import CliRunner

from anisoscope.cli.main import app
from anisoscope.models.embedded_series import EMBEDDED
from anisoscope.runs.store import open_run

LINES = ["To be, or not to be.", "That is the question, is it not?", "Whether 'tis nobler", "in the mind to suffer"]
STEPS = (0, 64)
Key = tuple[int, str, str]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Key, float]]:
    """The run folder, and the values of seed 1 by step, site and metric."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "lines.txt").write_text("\n".join([*LINES, "a line too many"]) + "\n")
    given = ["sweep", "embedded", "--data", str(folder / "lines.txt"), "--documents", "lines", "--limit", "4"]
    given += ["--steps", "0,64", "--seeds", "1", "--sites", "hidden,attention,vocabulary", "--sample", "8"]
    done = CliRunner().invoke(app, [*given, "--no-figures", "--out", str(folder / "run"), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert {row["seed"] for row in told["measurements"]} == {1}
    assert {row["model"] for row in told["measurements"]} == {"embedded series"}
    return folder / "run", {
        (row["step"], row["site"], row["metric"]): row["value"]
        for row in told["measurements"]
        if row["positions"] == "all" and row["at"] is None
    }


@pytest.fixture(scope="module")
def states() -> dict[tuple[int, str], NDArray[np.float64]]:
    """Hidden states, queries and keys (n, d) of every site at each step, a line at a time, without padding."""
    found: dict[tuple[int, str], list[NDArray]] = {}
    for step in STEPS:
        place = EMBEDDED / f"seed-1/checkpoint-{step}"
        model, tokenizer = AutoModel.from_pretrained(place, dtype=torch.float64), AutoTokenizer.from_pretrained(place)
        for number, layer in enumerate(model.encoder.layer):
            for side in ("query", "key"):
                getattr(layer.attention.self, side).register_forward_hook(
                    lambda _module, _given, made, name=f"block.{number}.{side}", step=step: found.setdefault(
                        (step, name), []
                    ).append(made[0].numpy())
                )
        for line in LINES:
            with torch.no_grad():
                hidden = model(**tokenizer(line, return_tensors="pt"), output_hidden_states=True).hidden_states
            for number, state in enumerate(hidden):
                site = f"block.{number - 1}" if number else "embeddings"
                found.setdefault((step, site), []).append(state[0].numpy())
    return {key: np.concatenate(parts) for key, parts in found.items()}


def mean_cosine(x: NDArray[np.float64]) -> float:
    """Over all pairs, one by one."""
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    return float((units @ units.T)[~np.eye(len(x), dtype=bool)].mean())


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("site", ["embeddings", "block.0", "block.3"])
def test_hidden_states(step: int, site: str, swept: tuple[Path, dict[Key, float]], states: dict) -> None:
    _, found = swept
    x = states[step, site]
    drift = np.square(x.mean(0)).sum() / np.square(x).sum(1).mean()
    assert found[step, site, "mean_cosine"] == pytest.approx(mean_cosine(x), abs=1e-6)
    assert found[step, site, "drift_ratio"] == pytest.approx(drift, abs=1e-6)


@pytest.mark.parametrize("step", STEPS)
def test_queries_and_keys(step: int, swept: tuple[Path, dict[Key, float]], states: dict) -> None:
    _, found = swept
    for layer in range(4):
        queries, keys = (states[step, f"block.{layer}.{side}"].reshape(-1, 4, 24) for side in ("query", "key"))
        for head in range(4):
            q, k = queries[:, head].mean(0), keys[:, head].mean(0)
            site = f"block.{layer}.head.{head}"
            cosine = q @ k / np.linalg.norm(q) / np.linalg.norm(k)
            assert found[step, site, "query_key_cosine"] == pytest.approx(cosine, abs=1e-5)
            assert found[step, site, "query_key_dot"] == pytest.approx(q @ k, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("step", STEPS)
def test_vocabulary(step: int, swept: tuple[Path, dict[Key, float]]) -> None:
    _, found = swept
    model = AutoModelForMaskedLM.from_pretrained(EMBEDDED / f"seed-1/checkpoint-{step}", dtype=torch.float64)
    entering, leaving = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert entering.data_ptr() == leaving.data_ptr(), "one matrix, so one site"
    assert not [key for key in found if key[1].startswith("vocabulary.output")]
    w = entering.detach().numpy()
    for site, cloud in (("vocabulary.input", w), ("vocabulary.input.centred", w - w.mean(0))):
        _, vectors = np.linalg.eigh(cloud.T @ cloud)
        z = np.exp(cloud @ np.concatenate([vectors, -vectors], axis=1)).sum(0)
        kept = cloud[np.linalg.norm(cloud, axis=1) > 0]
        assert found[step, site, "mean_cosine"] == pytest.approx(mean_cosine(kept), abs=1e-6)
        assert found[step, site, "partition_both"] == pytest.approx(z.min() / z.max(), rel=1e-5)


def test_the_steps_are_told_apart(swept: tuple[Path, dict[Key, float]]) -> None:
    folder, found = swept
    assert {step for step, _, _ in found} == set(STEPS)
    run = open_run(folder)
    assert {row.step for row in run.rows(metric="partition_both")} == set(STEPS)
    assert run.arrays()["seed-1/steps"].tolist() == list(STEPS)
    assert found[64, "block.3", "mean_cosine"] > found[0, "block.3", "mean_cosine"] + 0.5, "the collapse of the warm-up"
