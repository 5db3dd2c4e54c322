"""Every architecture has the sizes of its recipe and the classes of transformers."""

from __future__ import annotations

import pytest
import torch

from anisoscope.training.architectures import build, sinusoids
from anisoscope.training.recipe import Recipe

CLASSES = {
    "bert": ("BertForMaskedLM", "BertModel"),
    "gpt2": ("GPT2LMHeadModel", "GPT2Model"),
    "neox": ("GPTNeoXForCausalLM", "GPTNeoXModel"),
    "llama": ("LlamaForCausalLM", "LlamaModel"),
    "vit": ("ViTForImageClassification", None),
    "convnet": ("ConvNextForImageClassification", None),
}


@pytest.mark.parametrize("arch", CLASSES)
def test_classes_and_sizes(arch: str) -> None:
    sizes = {"layers": 3, "hidden": 24, "heads": 2, "feedforward": 40, "length": 20}
    model = build(Recipe(arch=arch, data=["-"], **sizes), seed=0, vocabulary=50, classes=7)
    assert type(model).__name__ == CLASSES[arch][0]
    assert model.training
    config = model.config
    if arch == "convnet":
        assert (config.depths, config.hidden_sizes) == ([1, 2], [24, 48])
        assert model(pixel_values=torch.randn(2, 3, 16, 16)).logits.shape == (2, 7)
    elif arch == "vit":
        assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (3, 24, 2)
        assert model(pixel_values=torch.randn(2, 3, 16, 16)).logits.shape == (2, 7)
    else:
        assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (3, 24, 2)
        assert model(input_ids=torch.randint(5, 50, (2, 20))).logits.shape == (2, 20, 50)
        assert any(40 in parameter.shape for parameter in model.parameters())


@pytest.mark.parametrize("arch", ["bert", "gpt2", "neox", "llama"])
def test_headless_models_have_no_head(arch: str) -> None:
    recipe = Recipe(arch=arch, objective="headless", data=["-"], layers=1, hidden=16, heads=2, length=8)
    assert type(build(recipe, seed=0, vocabulary=50)).__name__ == CLASSES[arch][1]


def test_the_seed_decides_the_weights() -> None:
    recipe = Recipe(data=["-"], layers=1, hidden=16, heads=2, length=8)
    one, same, other = (build(recipe, seed=seed, vocabulary=50).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(one[name], other[name])


def test_an_untrained_bert_adds_no_constant_to_its_inputs() -> None:
    model = build(Recipe(data=["-"], hidden=96, length=32), seed=0, vocabulary=261)
    states = model.bert.embeddings(torch.randperm(250)[None, :32] + 5)[0]
    units = torch.nn.functional.normalize(states, dim=-1)
    off_diagonal = (units @ units.T)[~torch.eye(32, dtype=torch.bool)]
    assert abs(off_diagonal.mean()) < 0.05


def test_sinusoids_have_unit_mean_square_and_know_relative_places() -> None:
    table = sinusoids(64, 32).double()
    assert table.square().mean().item() == pytest.approx(1, abs=1e-6)
    products = table @ table.T
    for distance in (0, 1, 5):
        line = products.diagonal(distance)
        assert line.std() < 1e-3 * products[0, 0]
    assert sinusoids(8, 7).shape == (8, 7)


def test_positions_can_start_random() -> None:
    sizes = {"layers": 1, "hidden": 16, "heads": 2, "length": 8}
    for arch, path in (("bert", "bert.embeddings.position_embeddings"), ("gpt2", "transformer.wpe")):
        for positions, expected in (("sinusoidal", True), ("random", False)):
            model = build(Recipe(arch=arch, data=["-"], positions=positions, **sizes), seed=0, vocabulary=50)
            table = model.get_submodule(path).weight.data
            assert torch.allclose(table, 0.035 * sinusoids(8, 16), atol=1e-6) is expected
