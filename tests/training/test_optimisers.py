"""Optimisers are their formulas, reach the weights they are for, and go on from a saved state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from anisoscope.training.architectures import build
from anisoscope.training.optimisers import CentreOutput, CoupledAdam, Joint, make_optimiser
from anisoscope.training.pretrain import pretrain
from anisoscope.training.recipe import Recipe

SMALL = {"layers": 1, "hidden": 16, "heads": 2, "length": 16, "batch": 4, "validation_batches": 1}


def model_of(arch: str, **changes: Any) -> Any:
    recipe = Recipe.check({**SMALL, "arch": arch, "data": ["-"], **changes})
    return build(recipe, seed=0, vocabulary=40), recipe


def gradients(model: Any, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=draw)


def test_coupled_adam_is_adam_with_one_second_moment_for_all_rows() -> None:
    draw = np.random.default_rng(0)
    table = draw.standard_normal((5, 3))
    moved = torch.nn.Parameter(torch.tensor(table))
    optimiser = CoupledAdam([moved], lr=0.1, weight_decay=0.2)
    first, second = np.zeros((5, 3)), np.zeros(3)
    for step in range(1, 5):
        gradient = draw.standard_normal((5, 3))
        optimiser.param_groups[0]["lr"] = rate = 0.1 / step
        moved.grad = torch.tensor(gradient)
        optimiser.step()
        first = 0.9 * first + 0.1 * gradient
        second = 0.98 * second + 0.02 * (gradient**2).sum(0) / 5
        table = table - rate * 0.2 * table
        table -= rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.98**step)) + 1e-8)
        np.testing.assert_allclose(moved.detach().numpy(), table, rtol=1e-12)


def test_gradients_that_sum_to_zero_move_the_mean_of_adam_but_not_of_coupled_adam() -> None:
    start = torch.zeros(4, 2, dtype=torch.float64)
    tables = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    gradient = torch.tensor([[3.0, -6.0], [-1.0, 2.0], [-1.0, 3.0], [-1.0, 1.0]], dtype=torch.float64)
    for table, optimiser in zip(
        tables, (CoupledAdam(tables[:1], lr=0.1, weight_decay=0.0), torch.optim.AdamW(tables[1:], lr=0.1)), strict=True
    ):
        table.grad = gradient.clone()
        optimiser.step()
    assert tables[0].mean(0).abs().max() < 1e-12
    assert tables[1].mean(0).abs().min() > 0.04


@pytest.mark.parametrize(
    ("arch", "optimiser", "special"),
    [
        ("gpt2", "coupled_adam", {"transformer.wte.weight"}),
        ("neox", "coupled_adam", {"gpt_neox.embed_in.weight", "lm_head.weight"}),
        ("gpt2", "muon", {f"transformer.h.0.{part}.weight" for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc")}),
    ],
)
def test_each_weight_has_its_optimiser(arch: str, optimiser: str, special: set[str]) -> None:
    model, recipe = model_of(arch, optimiser=optimiser)
    joint: Any = make_optimiser(model, recipe, decayed=["transformer.wte.weight"])
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [
        (type(part).__name__, names[id(parameter)], group["weight_decay"])
        for part, group in zip(joint.parts, joint.param_groups, strict=True)
        for parameter in group["params"]
    ]
    assert sorted(name for _, name, _ in found) == sorted(names.values()), "each weight once"
    own = {name for kind, name, _ in found if kind != "AdamW"}
    assert own == special | ({"transformer.h.0.mlp.c_proj.weight"} if optimiser == "muon" else set())
    assert {name for _, name, decay in found if decay} == ({"transformer.wte.weight"} if arch == "gpt2" else set())


@pytest.mark.parametrize("optimiser", ["coupled_adam", "muon"])
def test_a_saved_state_goes_on_as_if_nothing_had_happened(optimiser: str) -> None:
    ends = []
    for stop in (None, 2):
        model, recipe = model_of("gpt2", optimiser=optimiser)
        joint = make_optimiser(model, recipe, decayed=[])
        for step in range(4):
            if step == stop:
                state = joint.state_dict()
                joint = make_optimiser(model, recipe, decayed=[])
                joint.load_state_dict(state)
            gradients(model, step)
            joint.step()
        ends.append(model.state_dict())
    for name, tensor in ends[0].items():
        assert torch.equal(tensor, ends[1][name]), name


def test_muon_and_adamw_together_move_as_they_do_apart() -> None:
    (together, recipe), (apart, _) = model_of("gpt2", optimiser="muon"), model_of("gpt2")
    joint = make_optimiser(together, recipe, decayed=[])
    assert isinstance(joint, Joint)
    matrices = [p for name, p in apart.named_parameters() if p.ndim == 2 and ".h." in name]
    others = [p for p in apart.parameters() if all(p is not matrix for matrix in matrices)]
    muon = torch.optim.Muon(matrices, lr=2e-3, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(others, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0)
    for step in range(3):
        for model, optimisers in ((together, [joint]), (apart, [muon, adamw])):
            gradients(model, step)
            for optimiser in optimisers:
                optimiser.step()
    for mine, theirs in zip(together.parameters(), apart.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_centring_the_output_changes_no_prediction_of_an_untied_model() -> None:
    model, _ = model_of("neox")
    model.eval()
    ids = torch.arange(5, 15)[None]
    before = model(input_ids=ids).logits.softmax(-1)
    assert model.get_output_embeddings().weight.mean(0).abs().max() > 1e-3
    CentreOutput().on_step_end(None, None, None, model=model)
    assert model.get_output_embeddings().weight.mean(0).abs().max() < 1e-8
    torch.testing.assert_close(model(input_ids=ids).logits.softmax(-1), before)


@pytest.mark.parametrize(
    "changes",
    [{"optimiser": "coupled_adam"}, {"optimiser": "muon", "qk_clip": 5.0}, {"centre_output": True}],
    ids=["coupled_adam", "muon", "centre_output"],
)
def test_a_recipe_trains_with_it(changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"abcdefghijklmnopqrstuvwxyz\n" * 100)
    recipe = {**SMALL, "arch": "gpt2", "data": [str(tmp_path / "text")], "steps": 3, "warmup": 0}
    tables = []
    for name, more in (("usual", {}), ("changed", changes)):
        pretrain(Recipe.check({**recipe, **more}), tmp_path / name)
        model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / name / "seed-0/checkpoint-3")
        tables.append(model.get_output_embeddings().weight)
    assert (tables[0] - tables[1]).abs().max() > 1e-4
    if "centre_output" in changes:
        assert tables[1].mean(0).abs().max() < 1e-7 < tables[0].mean(0).abs().max()
