"""Models outside the attention interface, and those within it that do something of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import zoo
from anisoscope.capture.attention.call import AttentionCall
from anisoscope.capture.attention.capture import AttentionCapture
from anisoscope.errors import ModelError
from capture.attention.whole import probabilities

transformers.logging.set_verbosity_error()
SMALL = zoo.sizes()
IDS = torch.randint(5, 60, (2, 12), generator=torch.Generator().manual_seed(0))


def _model(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**options)
    return transformers.AutoModel.from_config(config).eval().requires_grad_(False)


def _run(module: nn.Module, **inputs: Tensor) -> tuple[Any, list[tuple[str, AttentionCall]]]:
    calls: list[tuple[str, AttentionCall]] = []
    with AttentionCapture(module, lambda site, call: calls.append((site, call))):
        output = module(**inputs)
    return output, calls


def _check(module: Any, **inputs: Tensor) -> list[tuple[str, AttentionCall]]:
    """Outputs unchanged, probabilities those of eager attention."""
    expected = module(**inputs).last_hidden_state
    output, calls = _run(module, **inputs)
    torch.testing.assert_close(output.last_hidden_state, expected, rtol=0, atol=1e-5)
    module.set_attn_implementation("eager")
    attentions = module(**inputs, output_attentions=True).attentions
    for (_, call), eager in zip(calls, attentions, strict=True):
        torch.testing.assert_close(probabilities(call), eager, rtol=0, atol=1e-6)
    return calls


@pytest.mark.parametrize("shared", [False, True])  # as in DeBERTa-v3: before, those of positions were given
def test_deberta_gives_queries_and_keys_but_no_rows(shared: bool) -> None:
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": shared}
    module = _model("DebertaV2", **SMALL, vocab_size=60, **relative)
    expected: list[Tensor] = []
    for layer in module.encoder.layer:
        layer.attention.self.query_proj.register_forward_hook(lambda _, __, out: expected.append(out))
    plain = module(IDS).last_hidden_state
    expected.clear()
    output, calls = _run(module, input_ids=IDS)
    assert output.last_hidden_state.equal(plain)
    assert [site for site, _ in calls] == ["block.0", "block.1"]
    for (_, call), query in zip(calls, [query for query in expected if len(query) == 2], strict=True):
        torch.testing.assert_close(call.queries, query.unflatten(-1, (2, 8)).transpose(1, 2))
        assert call.scaling is None
        with pytest.raises(ModelError, match="cannot be rebuilt"):
            next(iter(call.chunks()))


def test_wavlm_uses_the_weights_of_projections_that_it_never_calls() -> None:
    convolutions = {"conv_dim": (8, 8), "conv_kernel": (10, 4), "conv_stride": (5, 4)}
    module = _model("WavLM", **SMALL, **convolutions, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2)
    inputs: list[Tensor] = []
    for layer in module.encoder.layers:
        layer.attention.register_forward_pre_hook(
            lambda _, args, kwargs: inputs.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )
    _, calls = _run(module, input_values=torch.randn(2, 800))
    assert [site for site, _ in calls] == ["block.0", "block.1"]
    for (_, call), layer, hidden in zip(calls, module.encoder.layers, inputs, strict=True):
        for found, projection in ((call.queries, layer.attention.q_proj), (call.keys, layer.attention.k_proj)):
            torch.testing.assert_close(found, projection(hidden).unflatten(-1, (2, 8)).transpose(1, 2))


def test_albert_runs_one_module_as_every_block() -> None:
    module = _model("Albert", **{**SMALL, "num_hidden_layers": 3}, vocab_size=60, embedding_size=8)
    calls = _check(module, input_ids=IDS)
    assert [site for site, _ in calls] == ["block.0", "block.1", "block.2"]
    _, again = _run(module, input_ids=IDS)
    assert [site for site, _ in again] == ["block.0", "block.1", "block.2"]


def test_swin_has_windows_biases_and_masked_neighbours() -> None:
    module = _model(
        "Swin", image_size=32, patch_size=4, embed_dim=8, depths=[2, 1], num_heads=[2, 2], window_size=4, num_channels=3
    )
    for block in module.modules():
        if hasattr(block, "relative_position_bias_table"):
            nn.init.normal_(block.relative_position_bias_table)
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = module(pixels).last_hidden_state
    output, calls = _run(module, pixel_values=pixels)
    torch.testing.assert_close(output.last_hidden_state, expected, rtol=0, atol=1e-5)
    assert [site for site, _ in calls] == ["stage.0.block.0", "stage.0.block.1", "stage.1.block.0"]
    plain, shifted = calls[0][1], calls[1][1]
    assert len(plain.queries) == 2 * 4  # four windows to a picture
    assert plain.visible is None
    assert plain.position_bias is not None
    assert shifted.visible is not None  # a shifted window joins patches that are no neighbours, masked by −100
    assert 0 < shifted.visible.float().mean() < 1
    assert probabilities(shifted)[(~shifted.visible)[:, None].expand(-1, 2, -1, -1)].max() < 1e-20
    assert shifted.position_bias is not None
    assert shifted.position_bias.abs().max() < 10


def test_sliding_windows_are_seen() -> None:
    tokens = {"pad": 0, "bos": 1, "eos": 2, "cls": 1, "sep": 2}
    ids = {f"{name}_token_id": token for name, token in tokens.items()}
    module = _model("ModernBert", **SMALL, **ids, vocab_size=60, local_attention=4, global_attn_every_n_layers=2)
    calls = _check(module, input_ids=IDS)
    assert calls[0][1].visible is None
    near = calls[1][1].visible
    assert near is not None
    away = (torch.arange(12)[:, None] - torch.arange(12)).abs()
    assert near[0].equal(away <= 2)


def test_bart_crosses_under_the_decoders_name() -> None:
    sides = {
        f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("ffn_dim", 16), ("attention_heads", 2))
    }
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 32}
    module = _model("Bart", **sizes, **sides, vocab_size=60)
    _, calls = _run(module, input_ids=IDS, decoder_input_ids=IDS[:, :5])
    own = [f"decoder.block.{k}{cross}" for k in range(2) for cross in ("", ".cross")]
    assert [site for site, _ in calls] == ["encoder.block.0", *own]
    assert [call.kind for _, call in calls] == ["self", "self", "cross", "self", "cross"]


def test_capped_scores_stay_capped() -> None:
    module = _model(
        "Gemma2",
        **SMALL,
        vocab_size=60,
        num_key_value_heads=1,
        head_dim=8,
        attn_logit_softcapping=0.5,
        query_pre_attn_scalar=4,
        sliding_window=4,
    )
    for layer in module.layers:
        layer.self_attn.q_proj.weight.mul_(50)
    call = _check(module, input_ids=IDS)[0][1]
    assert call.scaling == 0.5
    assert next(iter(call.chunks())).content.abs().max() > 1  # what is captured is the score before the cap


def test_learned_sinks_are_refused() -> None:
    module = _model(
        "GptOss", **SMALL, vocab_size=60, num_key_value_heads=1, head_dim=8, num_local_experts=2, num_experts_per_tok=1
    )
    with pytest.raises(ModelError, match="learned sink logits"):
        _run(module, input_ids=IDS)


def test_head_and_body_have_the_same_sites() -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, vocab_size=60)
    headed = transformers.BertForMaskedLM(config).eval()
    _, calls = _run(headed, input_ids=IDS)
    assert [site for site, _ in calls] == ["block.0", "block.1"]


def test_a_module_without_library_code_is_recognised_by_its_names() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n_head = 2
            self.to_q, self.to_k, self.to_v = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return (self.to_q(x) @ self.to_k(x).transpose(-1, -2)).softmax(-1) @ self.to_v(x)

    module = nn.Sequential(*(nn.Sequential(Attention(), nn.Linear(8, 8)) for _ in range(3)))
    x = torch.randn(2, 5, 8)
    _, calls = _run(module, input=x)
    assert len(calls) == 3
    torch.testing.assert_close(calls[0][1].queries, module[0][0].to_q(x).unflatten(-1, (2, 4)).transpose(1, 2))


@pytest.mark.parametrize("kind", ["RoFormer", "GPTJ"])
def test_rotation_outside_the_interface_is_repeated(kind: str) -> None:
    """Before, queries and keys of these were those before rotation, and said to be those after it."""
    own = {"rotary_dim": 4} if kind == "GPTJ" else {"embedding_size": 16}
    module = _model(kind, **SMALL, vocab_size=60, **own)
    expected = module(IDS, output_attentions=True).attentions
    _, calls = _run(module, input_ids=IDS)
    for (_, call), eager in zip(calls, expected, strict=True):
        torch.testing.assert_close(probabilities(call), eager, rtol=0, atol=1e-6)
    projection = module.get_submodule("h.0.attn.q_proj" if kind == "GPTJ" else "encoder.layer.0.attention.self.query")
    projected: list[Tensor] = []
    projection.register_forward_hook(lambda _, __, out: projected.append(out))
    before: list[AttentionCall] = []
    with AttentionCapture(module, lambda _, call: before.append(call), before_rotary=True):
        module(IDS)
    assert before[0].queries.equal(projected[0].unflatten(-1, (2, 8)).transpose(1, 2))
    assert not before[0].queries.allclose(calls[0][1].queries)


SIDES = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
PLACED = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LED", {"d_model": 16, "vocab_size": 60, "attention_window": 4, **SIDES, **PLACED}),
        ("FSMT", {"d_model": 16, "src_vocab_size": 60, "tgt_vocab_size": 60, "langs": ["a", "b"], **SIDES, **PLACED}),
        ("SqueezeBert", {**SMALL, "vocab_size": 60, "embedding_size": 16}),
        ("IBert", {**SMALL, "vocab_size": 60}),
    ],
)
def test_queries_stand_by_sequence_however_a_projection_lays_them_out(kind: str, options: dict[str, Any]) -> None:
    """Before, positions were taken for sequences (LED, FSMT), channels for positions (SqueezeBERT), or it failed."""
    module = _model(kind, **options)
    two, one = (
        [
            call
            for _, call in _run(module, input_ids=ids, **({"decoder_input_ids": ids} if "d_model" in options else {}))[
                1
            ]
        ]
        for ids in (IDS, IDS[1:])
    )
    for both, alone in zip(two, one, strict=True):
        assert both.queries.shape == (2, 2, 12, 8)
        torch.testing.assert_close(both.queries[1:], alone.queries)
        torch.testing.assert_close(both.keys[1:], alone.keys)


LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5}
ROUTED = {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 2}
OWN_WAYS = {
    "DeepseekV3": ("q_b_proj", 6, {**LATENT, **ROUTED, "moe_intermediate_size": 8}),
    "Cohere2": ("q_proj", 0, {"num_key_value_heads": 2, "layer_types": ["sliding_attention", "full_attention"]}),
}


@pytest.mark.parametrize("kind", sorted(OWN_WAYS))
def test_queries_before_rotation_are_those_of_the_projection(kind: str) -> None:
    """Before, latent attention was turned back at the wrong end, and layers without positions were turned as well."""
    projection, plain, own = OWN_WAYS[kind]
    module = _model(kind, **SMALL, vocab_size=60, **own)
    projected: list[Tensor] = []
    for layer in module.layers:
        layer.self_attn.get_submodule(projection).register_forward_hook(lambda _, __, out: projected.append(out))
    calls: list[AttentionCall] = []
    with AttentionCapture(module, lambda _, call: calls.append(call), before_rotary=True):
        module(IDS)
    assert len(calls) == 2
    for call, out in zip(calls, projected, strict=True):
        expected = out.unflatten(-1, (2, -1)).transpose(1, 2)
        torch.testing.assert_close(call.queries[..., :plain], expected[..., :plain])
        ordered = (x[..., plain:].sort(-1).values for x in (call.queries, expected))  # DeepSeek pairs them otherwise
        torch.testing.assert_close(*ordered, rtol=1e-4, atol=1e-5)


def test_rotations_that_cannot_be_followed_are_refused() -> None:
    """Before, the rotated queries of Llama 4 were said to be those before rotation."""
    own = {"num_key_value_heads": 2, "head_dim": 8, "intermediate_size_mlp": 16, "num_local_experts": 2}
    module = _model("Llama4Text", **SMALL, vocab_size=60, **own)
    with (
        pytest.raises(ModelError, match="cannot be followed"),
        AttentionCapture(module, lambda *_: None, before_rotary=True),
    ):
        module(IDS)
