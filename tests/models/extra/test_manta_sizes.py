"""MANTa-LM has the tensors of the published sizes, and starts as its authors specify."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anisoscope.models.extra.manta import MantaConfig, MantaForConditionalGeneration
from fixtures import recorded

CONFIG = recorded.facts("manta_tiny")["config"]
BASE = {
    "byte_embedding_dim": 128,
    "frontier_predictor_num_layers": 2,
    "max_length_inputs": 2048,
    "max_length_encoder_decoder": 512,
    "d_model": 768,
    "d_ff": 3072,
    "num_heads": 12,
    "num_layers": 12,
}


@pytest.mark.parametrize(("size", "options"), [("small", {}), ("base", BASE)])
def test_published_sizes_have_the_published_tensors(size: str, options: dict[str, Any]):
    made = recorded.empty(MantaForConditionalGeneration, MantaConfig(**options))
    expected = recorded.facts(f"published_shapes_manta-lm-{size}")
    assert recorded.shapes(made) == expected["tensors"]
    assert made.num_parameters() == expected["n_parameters"]


def test_a_fresh_model_starts_as_specified():
    torch.manual_seed(0)
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "byte_embedding_dim": 32}
    state = MantaForConditionalGeneration(MantaConfig(**{**CONFIG, **sizes})).state_dict()
    local, block = "encoder.frontier_predictor.local_transformer", "encoder.t5_encoder.block.0.layer"
    deviations = {
        "encoder.byte_embeddings.weight": 1,
        "decoder_embeddings.weight": 1,
        f"{local}.encoder.layer.0.intermediate.dense.weight": 0.02,
        f"{local}.embeddings.position_embeddings.weight": 0.02,
        f"{block}.0.SelfAttention.q.weight": (64 * 16) ** -0.5,
        f"{block}.0.SelfAttention.k.weight": 64**-0.5,
        f"{block}.0.SelfAttention.v.weight": 64**-0.5,
        f"{block}.0.SelfAttention.o.weight": 64**-0.5,
        f"{block}.1.DenseReluDense.wi_0.weight": 64**-0.5,
        f"{block}.1.DenseReluDense.wo.weight": 128**-0.5,
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": 64**-0.5,
    }
    for name, deviation in deviations.items():
        assert float(state[name].std()) == pytest.approx(deviation, rel=0.15), name
    bounds = {
        "encoder.pooler.conv_layers.0.weight": 3**-0.5,
        "encoder.pooler.out_projection.weight": 32**-0.5,
        "encoder.frontier_predictor.output_projection.weight": 32**-0.5,
        "lm_head.weight": 64**-0.5,
    }
    for name, bound in bounds.items():
        assert 0.85 * bound < float(state[name].abs().max()) <= bound, name
    assert not state[f"{local}.embeddings.position_embeddings.weight"][0].any()
    assert not state[f"{local}.encoder.layer.0.intermediate.dense.bias"].any()
    assert (state["encoder.t5_encoder.final_layer_norm.weight"] == 1).all()
    assert torch.equal(state["decoder.embed_tokens.weight"], state["decoder_embeddings.weight"])
