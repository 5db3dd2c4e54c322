"""The headless loss is the published formula, on the right positions."""

from __future__ import annotations

import math

import pytest
import torch

from anisoscope.training.architectures import build
from anisoscope.training.objectives import contrastive_loss, headless_loss
from anisoscope.training.recipe import Recipe
from anisoscope.training.text import IGNORED


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
