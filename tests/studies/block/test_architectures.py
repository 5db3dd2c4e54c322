"""Untrained blocks of many families: right initialisation, right wiring, branches that really go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, LlamaConfig

import zoo
from anisoscope.errors import UsageError
from anisoscope.studies.block.architectures import ARCHITECTURES, build, configuration
from anisoscope.studies.block.experiment import Experiment, run_experiment

TOKENS = ("bert", "roberta", "modernbert", "gpt2", "opt", "gpt_neox", "llama", "t5", "vit")


def vectors(width: int, length: int = 12) -> torch.Tensor:
    return torch.randn(2, length, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", [*TOKENS, "convnext", "resnet"])
def test_every_family_takes_vectors_and_gives_vectors_of_the_same_shape(name: str) -> None:
    stack = build(zoo.config(name), seed=0, depth=2)
    x = vectors(stack.width)
    seen = stack.run(x)
    assert list(seen)[:2] == ["block.0", "block.1"]
    assert all(hidden.shape == x.shape for hidden in seen.values())
    assert all(hidden.isfinite().all() for hidden in seen.values())


@pytest.mark.parametrize("name", TOKENS)
def test_what_enters_the_first_block_is_what_was_given(name: str) -> None:
    """Without both branches a pre-norm block is the identity, a post-norm block two LayerNorms."""
    stack = build(zoo.config(name), seed=0, without="attention")
    for part in build(zoo.config(name), seed=0, without="mlp").blocks[0].parameters():
        assert part.isfinite().all()
    from anisoscope.studies.block.architectures import _remove

    _remove(stack.blocks[0], "mlp")
    x = vectors(stack.width)
    post_norm = name in ("bert", "roberta")
    expected = torch.nn.functional.layer_norm(x, (stack.width,), eps=1e-12) if post_norm else x
    torch.testing.assert_close(stack.run(x)["block.0"], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("branch", ["attention", "mlp"])
@pytest.mark.parametrize("name", TOKENS)
def test_removing_a_branch_changes_the_output(name: str, branch: str) -> None:
    x = vectors(build(zoo.config(name), seed=0).width)
    whole = build(zoo.config(name), seed=0, init_std=None).run(x)["block.0"]
    cut = build(zoo.config(name), seed=0, without=branch).run(x)["block.0"]  # pyright: ignore[reportArgumentType]
    assert not torch.allclose(whole, cut, atol=1e-5)


def test_without_attention_a_token_does_not_see_the_others() -> None:
    stack = build(zoo.config("bert"), seed=0, without="attention")
    x = vectors(stack.width)
    alone = stack.run(x[:, :1])["block.0"]
    torch.testing.assert_close(stack.run(x)["block.0"][:, :1], alone, atol=1e-5, rtol=1e-5)


def test_a_cut_network_keeps_the_initialisation_of_its_full_depth() -> None:
    """GPT-2 draws its residual projections with std 0.02/√(2·layers)."""
    config = GPT2Config(n_embd=128, n_layer=12, n_head=4, vocab_size=50)
    block = build(config, seed=0).blocks[0]
    assert block.attn.c_proj.weight.std().item() == pytest.approx(0.02 / 24**0.5, rel=0.05)  # pyright: ignore
    assert block.mlp.c_fc.weight.std().item() == pytest.approx(0.02, rel=0.05)  # pyright: ignore
    assert config.n_layer == 12


def test_a_causal_block_stays_causal() -> None:
    stack = build(zoo.config("gpt2"), seed=0)
    x = vectors(stack.width)
    changed = x.clone()
    changed[:, -1] += 1.0
    before, after = stack.run(x)["block.0"], stack.run(changed)["block.0"]
    torch.testing.assert_close(before[:, :-1], after[:, :-1])
    assert not torch.allclose(before[:, -1], after[:, -1])


def test_init_std_sets_the_spread_of_the_weights() -> None:
    block = build(zoo.config("bert"), seed=0, init_std=0.3).blocks[0]
    assert block.intermediate.dense.weight.std().item() == pytest.approx(0.3, rel=0.1)  # pyright: ignore
    with pytest.raises(UsageError, match="standard deviation"):
        build(zoo.config("t5"), seed=0, init_std=0.3)


@pytest.mark.parametrize("name", ["bert", "gpt2", "gpt_neox", "vit", "opt"])
def test_query_and_key_biases_are_drawn_and_value_biases_are_not(name: str) -> None:
    def biases(qk_bias: bool) -> dict[str, torch.Tensor]:
        block = build(zoo.config(name), seed=0, qk_bias=qk_bias).blocks[0]
        return {path: part for path, part in block.named_parameters() if path.endswith("bias")}

    plain, drawn = biases(False), biases(True)
    changed = {path for path in plain if not torch.equal(plain[path], drawn[path])}
    assert changed
    assert not any(key in path for path in changed for key in (".value.", "v_proj"))
    for path in changed:
        if "c_attn" in path:
            q, k, v = drawn[path].chunk(3)
            assert q.abs().min() > 0
            assert k.abs().min() > 0
            assert v.abs().max() == 0
        if "query_key_value" in path:
            per_head = drawn[path].view(zoo.HEADS, 3, -1)
            assert (per_head[:, :2] != 0).all()
            assert (per_head[:, 2] == 0).all()


def test_an_architecture_without_such_biases_is_refused() -> None:
    config = LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=50
    )
    with pytest.raises(UsageError, match="no query and key biases"):
        build(config, seed=0, qk_bias=True)
    config.attention_bias = True
    build(config, seed=0, qk_bias=True)


def test_names_folders_and_configs_are_understood(tmp_path: Path) -> None:
    widths = {configuration(name).model_type: configuration(name) for name in ARCHITECTURES}
    assert len(widths) == len(ARCHITECTURES)
    (tmp_path / "config.json").write_text(json.dumps(zoo.config("gpt2").to_dict()))
    assert configuration(str(tmp_path)).model_type == "gpt2"
    with pytest.raises(UsageError, match="unknown architecture"):
        configuration("gpt7")


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "vit", "convnext"])
def test_the_study_runs_on_every_kind_of_block(name: str) -> None:
    settings = Experiment(zoo.config(name), name, norms=(0.0, 1.0, 10.0), seeds=2, length=16)
    rows = run_experiment(settings)[0]
    sites = {row.site for row in rows}
    assert {"input", "output"} <= sites
    assert ("softmax" in sites) == (name != "convnext")
    assert all(row.value is None or row.value == row.value for row in rows)
    assert ("equation_1_distance" in {row.metric for row in rows}) is False  # a norm stands before their projections


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_the_embedding_layer_can_feed_the_block(name: str) -> None:
    settings = Experiment(zoo.config(name), name, norms=(0.0, 5.0), seeds=1, length=16, input="embeddings")
    row = next(row for row in run_experiment(settings)[0] if row.site == "input" and row.metric == "mean_norm")
    assert row.value is not None
    assert row.value > 0
