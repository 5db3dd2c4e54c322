"""Every family of the tables agrees with what the library itself returns as its hidden states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import zoo
from anisoscope.capture.families import _BY_CONFIG, _STACKS
from anisoscope.capture.sites import map_sites
from anisoscope.capture.unknown import check_sites

SMALL = zoo.sizes()
WORDS = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BART = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_inner": 32}
IMAGE = {"image_size": 32, "patch_size": 8}
WAVE = {"conv_dim": (8,) * 7, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
SIZES: dict[str, dict[str, Any]] = {
    **{key: {**SMALL, "embedding_size": 8} for key in ("albert", "electra")},
    **{key: {**SMALL, "num_key_value_heads": 2, "head_dim": 8} for key in ("gemma", "gemma2", "qwen3")},
    **{key: {**SMALL, "num_key_value_heads": 2} for key in ("mistral", "qwen2", "smollm3")},
    **dict.fromkeys(("gpt2", "gpt_bigcode"), GPT2),
    **dict.fromkeys(("bart", "mbart", "marian", "pegasus", "m2m_100"), BART),
    **dict.fromkeys(("t5", "mt5", "umt5"), T5),
    "mixtral": {**SMALL, "num_key_value_heads": 2, "num_local_experts": 2},
    "modernbert": {**SMALL, "cls_token_id": 1, "sep_token_id": 2},
    "gptj": {**GPT2, "rotary_dim": 4},
    "gpt_neo": {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]]},
    "bloom": {"hidden_size": 16, "n_layer": 2, "n_head": 2},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    "opt": {**SMALL, "ffn_dim": 32, "word_embed_proj_dim": 16},
    "mamba": {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
    "mamba2": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "state_size": 4,
        "num_heads": 4,
        "head_dim": 8,
        "n_groups": 1,
    },
}
ELSEWHERE = {"canine", "manta", "character_bert", "whisper"}  # compared state by state in test_hidden.py
TEXT = sorted((_STACKS.keys() | {"albert"}) - ELSEWHERE)


def agrees(module: Any, inputs: dict[str, torch.Tensor]) -> None:
    found = map_sites(module)
    assert found.known
    with torch.inference_mode():
        checked = check_sites(module, found.sites, inputs)
    assert not checked.from_library
    assert checked.sites == found.sites


@pytest.mark.parametrize("family", TEXT)
def test_families_of_text(family):
    if family == "siglip_text_model":  # the library opens this tower by its own class only
        module = transformers.SiglipTextModel(transformers.SiglipTextConfig(**SMALL, **WORDS))
    else:
        config = transformers.AutoConfig.for_model(family, **SIZES.get(family, SMALL), **WORDS)
        module = transformers.AutoModel.from_config(config)
    ids = torch.randint(3, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if module.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids[:, :5]
    agrees(module.eval(), inputs)


@pytest.mark.parametrize("family", ["wav2vec2", "hubert", "wavlm"])
@pytest.mark.parametrize("stable", [False, True])
def test_families_of_speech(family, stable):
    norm = {"do_stable_layer_norm": stable, "feat_extract_norm": "layer" if stable else "group"}
    config = transformers.AutoConfig.for_model(family, **SMALL, **WAVE, **norm)
    agrees(transformers.AutoModel.from_config(config).eval(), {"input_values": torch.randn(2, 2000)})


def test_the_spectrogram_transformer():
    config = transformers.ASTConfig(**SMALL, max_length=64, num_mel_bins=32)
    agrees(transformers.ASTModel(config).eval(), {"input_values": torch.randn(2, 64, 32)})


@pytest.mark.parametrize(
    "family", ["vit", "deit", "beit", "dinov2", "dinov2_with_registers", "clip_vision_model", "siglip_vision_model"]
)
def test_families_of_patches(family):
    extra = {"out_indices": [1]} if family == "beit" else {}
    config = transformers.AutoConfig.for_model(family, **SMALL, **IMAGE, **extra)
    agrees(transformers.AutoModel.from_config(config).eval(), {"pixel_values": torch.randn(2, 3, 32, 32)})


def test_the_stages_of_swin_and_convnext_v2():
    """The library returns what each stage hands on; Swin's stages merge patches before that, except for the last."""
    pixels = torch.randn(2, 3, 32, 32)
    swin = transformers.SwinConfig(embed_dim=8, depths=[1, 2], num_heads=[1, 2], image_size=32, window_size=2)
    convnext = transformers.ConvNextV2Config(hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, image_size=32)
    for config, kept in ((swin, {0: "embeddings", 2: "stage.1.block.1"}), (convnext, {1: "stage.0.block.0"})):
        module = transformers.AutoModel.from_config(config).eval()
        seen = states(module, pixels)
        with torch.inference_mode():
            returned = module(pixel_values=pixels, output_hidden_states=True).hidden_states
        for place, site in kept.items():
            torch.testing.assert_close(seen[site].flatten(1), returned[place].flatten(1))


def states(module: Any, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    from anisoscope.capture.hooks import hooked

    seen: dict[str, torch.Tensor] = {}
    with (
        torch.inference_mode(),
        hooked(module, map_sites(module).sites, lambda site, state: seen.__setitem__(site.name, state)),
    ):
        module(pixel_values=pixels)
    return seen


def test_every_family_of_the_tables_is_tested_somewhere():
    maps = {
        "segformer",
        "resnet",
        "convnext",
        "convnextv2",
        "cvt",
        "swin",
        "van",
        "tinyvit",
        "efficientnet",
        "mobilenet_v2",
    }
    patches = {"vit", "deit", "beit", "dinov2", "dinov2_with_registers", "clip_vision_model", "siglip_vision_model"}
    speech = {"wav2vec2", "hubert", "wavlm", "audio-spectrogram-transformer"}
    assert set(_BY_CONFIG) == maps | patches | speech | {"albert"}
