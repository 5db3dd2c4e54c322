"""The headless loss and the penalty on isotropy are the published formulas, on the right states."""

from __future__ import annotations

import math
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anisoscope.geometry.spectrum import isoscore
from anisoscope.runs.progress import track
from anisoscope.training.architectures import build
from anisoscope.training.data.text import IGNORED, TextData
from anisoscope.training.objectives import contrastive_loss, headless_loss, isoscore_star
from anisoscope.training.pretrain import make_model
from anisoscope.training.recipe import Recipe
from anisoscope.training.trainer import make_trainer


def brute_force(hidden, targets) -> float:
    """−1/N Σ_i log( exp(h_i·e_i) / Σ_j exp(h_i·e_j) ), term by term."""
    total = 0.0
    for i in range(len(hidden)):
        terms = [math.exp((hidden[i] @ targets[j]).item()) for j in range(len(targets))]
        total -= math.log(terms[i] / sum(terms))
    return total / len(hidden)


def test_contrastive_loss_equals_the_formula() -> None:
    torch.manual_seed(0)
    hidden, targets = torch.randn(2, 9, 5, dtype=torch.float64)
    targets[3] = targets[7]  # the same token twice: both count
    assert contrastive_loss(hidden, targets).item() == pytest.approx(brute_force(hidden, targets), abs=1e-13)


@pytest.mark.parametrize("arch", ["bert", "gpt2", "neox", "llama"])
def test_headless_loss_of_a_model(arch: str) -> None:
    recipe = Recipe(arch=arch, objective="headless", data=["-"], layers=1, hidden=16, heads=2, length=12)
    model = build(recipe, seed=0, vocabulary=40).double()
    tokens = torch.randint(5, 40, (2, 12), generator=torch.Generator().manual_seed(0))
    labels = tokens.clone()
    if arch == "bert":
        labels[:, ::3] = IGNORED
    loss, output = headless_loss(model, {"input_ids": tokens, "labels": labels}, causal=recipe.causal)

    embeddings = model.get_input_embeddings().weight
    states = output.last_hidden_state
    pairs = [
        (states[b, t - recipe.causal], embeddings[labels[b, t]])
        for b in range(2)
        for t in range(int(recipe.causal), 12)
        if labels[b, t] != IGNORED
    ]
    expected = brute_force(torch.stack([h for h, _ in pairs]), torch.stack([e for _, e in pairs]))
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    assert not hasattr(model, "lm_head")


def test_both_sides_learn() -> None:
    hidden = torch.randn(4, 3, requires_grad=True)
    targets = torch.randn(4, 3, requires_grad=True)
    contrastive_loss(hidden, targets).backward()
    assert hidden.grad is not None
    assert targets.grad is not None
    assert hidden.grad.any()
    assert targets.grad.any()


@pytest.mark.parametrize("shrinkage", [0.0, 0.2])
def test_isoscore_star_is_isoscore_of_the_shrunk_covariance(shrinkage: float) -> None:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((50, 6)) @ draw.standard_normal((6, 6)) + 3.0
    eigenvalues = np.linalg.eigvalsh(np.cov(x.T))
    eigenvalues = (1 - shrinkage) * eigenvalues + shrinkage * eigenvalues.mean()
    found = isoscore_star(torch.tensor(x), shrinkage=shrinkage)
    assert found.item() == pytest.approx(float(isoscore(eigenvalues)), rel=1e-12)


def test_the_penalty_is_added_while_training_and_never_to_what_is_validated(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"abcdefghijklmnopqrstuvwxyz\n" * 100)
    sizes = {"arch": "gpt2", "layers": 2, "hidden": 16, "heads": 2, "length": 16, "batch": 4, "validation_batches": 1}
    recipe = Recipe.check({**sizes, "data": [str(tmp_path / "text")], "isotropy_weight": -3.0})
    data = TextData.open(recipe, tmp_path)
    model = make_model(recipe, data, 0)
    with track("training", stream=StringIO()) as bar:
        trainer = make_trainer(recipe, model, data, seed=0, folder=tmp_path, fresh=True, what="", bar=bar)
    ids = torch.randint(5, 261, (4, 16), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "labels": ids}
    output: Any = model(**batch, output_hidden_states=True)
    states = torch.cat([one.flatten(0, 1) for one in output.hidden_states[1:]]).detach().double().numpy()
    eigenvalues = np.linalg.eigvalsh(np.cov(states.T))
    score = float(isoscore(0.8 * eigenvalues + 0.2 * eigenvalues.mean()))
    plain = output.loss.item()
    assert trainer.compute_loss(model.train(), batch).item() == pytest.approx(plain - 3 * (1 - score), rel=1e-5)
    assert trainer.compute_loss(model.eval(), batch).item() == pytest.approx(plain, rel=1e-6)
