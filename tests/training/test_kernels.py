"""What a training may ask of its attention and of its text: bounded logits, low precision, no final norm, noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anisoscope.errors import UsageError
from anisoscope.models.attention_kinds import NAME, transform
from anisoscope.models.open import open_model
from anisoscope.training.data.text import TextData
from anisoscope.training.kernels import QKClip, rounded_loss
from anisoscope.training.pretrain import make_model, pretrain
from anisoscope.training.recipe import Recipe

SMALL = {"arch": "gpt2", "layers": 2, "hidden": 16, "heads": 2, "length": 16, "batch": 4, "validation_batches": 1}
IDS = torch.randint(5, 261, (3, 16), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("text") / "alphabet.txt"
    path.write_bytes(b"abcdefghijklmnopqrstuvwxyz\n" * 100)
    return str(path)


def model_of(text: str, tmp_path: Path, **changes: Any) -> Any:
    recipe = Recipe.check({**SMALL, "data": [text], "initializer_range": 0.5, **changes})
    return make_model(recipe, TextData.open(recipe, tmp_path), 0)


def greatest_logits(model: Any, layer: int) -> torch.Tensor:
    """The greatest visible score of each head, from the projections and nothing else."""
    block = model.transformer.h[layer]
    kept: list[torch.Tensor] = []
    handle = block.attn.c_attn.register_forward_hook(lambda m, x, y: kept.append(y))
    with torch.no_grad():
        model(input_ids=IDS)
    handle.remove()
    q, k, _ = (part.unflatten(-1, (2, 8)).transpose(1, 2).double() for part in kept[0].split(16, dim=-1))
    future = torch.ones(16, 16).triu(1).bool()
    return (q @ k.mT / 8**0.5).masked_fill(future, -torch.inf).amax((0, 2, 3))


def test_centred_keys_change_the_scores_of_a_row_by_one_constant() -> None:
    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 3, 7, 4, generator=draw, dtype=torch.float64) + 2 for _ in range(2))
    padding = torch.zeros(2, 1, 7, 7, dtype=torch.float64)
    padding[1, ..., 5:] = torch.finfo(torch.float64).min
    same, centred = transform("key_centred", q, k, None, mask=padding, scaling=0.5)
    constant = q @ k.mT - same @ centred.mT  # (B, heads, T, T)
    torch.testing.assert_close(constant, constant[..., :1].expand_as(constant))
    assert constant.abs().min() > 1
    for row, length in ((0, 7), (1, 5)):
        torch.testing.assert_close(centred[row, :, :length].mean(-2), torch.zeros(3, 4, dtype=torch.float64))


def test_clipping_brings_a_head_to_the_bound_and_leaves_the_others(text: str, tmp_path) -> None:
    model = model_of(text, tmp_path, qk_clip=1.0)
    before = greatest_logits(model, 0)
    bound = float(before.mean())
    assert before.min() < bound < before.max()
    model(input_ids=IDS)  # training mode: the scores are recorded
    torch.testing.assert_close(getattr(model.transformer.h[0].attn, NAME).greatest.double(), before, rtol=1e-5, atol=0)
    QKClip(bound).on_step_end(None, None, None, model=model)
    torch.testing.assert_close(greatest_logits(model, 0), before.clamp(max=bound), rtol=1e-5, atol=0)


def test_a_training_keeps_its_logits_below_the_bound(text: str, tmp_path) -> None:
    fast = {"data": [text], "steps": 6, "learning_rate": 0.3, "warmup": 0, "initializer_range": 0.5, **SMALL}
    pretrain(Recipe.check({**fast, "qk_clip": 0.5}), tmp_path / "clipped")
    pretrain(Recipe.check(fast), tmp_path / "free")
    folders = [tmp_path / name / "seed-0/checkpoint-6" for name in ("clipped", "free")]
    modules: list[Any] = [open_model(str(folder)).module for folder in folders]
    clipped, free = (module.h[0].attn.c_attn.weight[:, :32].norm() for module in modules)
    assert clipped < free


def test_low_precision_rounds_scores_and_output(text: str, tmp_path) -> None:
    kept: list[torch.Tensor] = []
    for logits in ("bfloat16", "float32"):
        model = model_of(text, tmp_path, logits=logits).eval()
        model.set_attn_implementation(model.config._attn_implementation if logits == "bfloat16" else "eager")
        kept.append(model(input_ids=IDS, output_attentions=True).attentions[0].detach())
    assert torch.equal(kept[0], kept[0].bfloat16().float())
    assert not torch.equal(kept[1], kept[1].bfloat16().float())
    assert 1e-4 < (kept[0] - kept[1]).abs().max() < 0.05
    logits, labels = torch.randn(2, 5, 11, generator=torch.Generator().manual_seed(1)) * 3, torch.arange(10).view(2, 5)
    exact = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).double(), labels[:, 1:].flatten())
    found = rounded_loss(logits, labels, torch.bfloat16).item()
    assert found == pytest.approx(exact.item(), rel=0.02)
    assert found == float(torch.tensor(found).bfloat16())


def test_a_model_without_its_final_norm_comes_back_without_it(text: str, tmp_path) -> None:
    recipe = Recipe.check({**SMALL, "data": [text], "steps": 3, "final_norm": False})
    pretrain(recipe, tmp_path)
    module: Any = open_model(str(tmp_path / "seed-0/checkpoint-3")).module
    with torch.no_grad():
        hidden = module.wte(IDS) + module.wpe(torch.arange(16))
        for block in module.h:
            hidden = block(hidden)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        torch.testing.assert_close(module(input_ids=IDS).last_hidden_state, hidden)


def test_bad_batches_are_noise_where_they_are_asked_for_and_text_elsewhere(text: str, tmp_path) -> None:
    recipe = Recipe.check({**SMALL, "data": [text], "steps": 8, "bad_batch": 3, "bad_batches": 2})
    bad = TextData.open(recipe, tmp_path).training(0)
    good = TextData.open(recipe.model_copy(update={"bad_batch": None}), tmp_path).training(0)
    differs = [not np.array_equal(bad[i]["input_ids"], good[i]["input_ids"]) for i in range(32)]
    assert differs == [8 <= i < 16 for i in range(32)]
    noise = np.concatenate([bad[i]["input_ids"] for i in range(8, 16)])
    assert noise.min() >= 5
    assert len(np.unique(noise)) > 64, "more than the letters of the text"


def test_checkpoints_may_come_every_so_many_steps(text: str, tmp_path) -> None:
    recipe = Recipe.check({**SMALL, "data": [text], "steps": 10, "checkpoint_every": 4})
    assert [step for _, step, _ in pretrain(recipe, tmp_path)] == [0, 4, 8, 10]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"qk_clip": 5.0, "arch": "bert"}, "qk_clip is for gpt2"),
        ({"final_norm": False, "arch": "bert"}, "cannot go without"),
        ({"logits": "float16", "attention": "sigmoid"}, "half-precision logits"),
        ({"qk_clip": 5.0, "attention": "linear"}, "no logits"),
        ({"centre_output": True, "objective": "headless"}, "no output embeddings"),
        ({"optimiser": "coupled_adam", "arch": "vit"}, "embeddings of tokens"),
        ({"isotropy_weight": 1.0, "arch": "convnet"}, "isotropy of a convnet"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Recipe.check({**SMALL, "data": ["-"], **changes})
