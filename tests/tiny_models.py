"""A tiny random model of any architecture that transformers has, and something for it to read.

The usual size fields of a config are set small, in its sub-configs too; what an architecture wants beyond that is in
`OWN`. Models are made in float64, so that two ways to the same state agree to rounding.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import AutoModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from anisoscope.models.batches.plan import Batch
from anisoscope.models.modality import is_composite

LARGEST = 4_000_000  # parameters; what is larger was not made small
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "embed_dim": 32,
    "embedding_size": 32,
    "emb_dim": 32,
    "n_embd": 32,
    "d_model": 32,
    "d_kv": 16,
    "intermediate_size": 48,
    "d_ff": 48,
    "ffn_dim": 48,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "intermediate_dim": 48,
    "output_hidden_size": 32,
    "text_hidden_size": 32,
    "projection_dim": 16,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "num_attention_heads": 2,
    "num_heads": 2,
    "n_head": 2,
    "n_heads": 2,
    "num_key_value_heads": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "head_dim": 16,
    "vocab_size": 99,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "entity_vocab_size": 20,
    "pronunciation_vocab_size": 20,
    "shape_vocab_size": 20,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "expert_ffn_hidden_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "shared_expert_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "state_size": 8,
    "mamba_d_state": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "image_size": 32,
    "patch_size": 8,
    "num_mel_bins": 80,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 3,
    "context_size": 16,
}
LISTS = {"num_attention_heads": 2, "num_heads": 2, "hidden_sizes": 16, "depths": 1, "embed_dim": 16}
CONVOLUTIONS = {"conv_dim": [8, 8, 8], "conv_stride": [5, 4, 4], "conv_kernel": [10, 8, 8]}
UNSET = ("head_dim", "num_key_value_heads", "num_experts_per_tok", "vocab_size", "pad_token_id")  # None in some


def _mrope(*sections: int) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections)}}


OWN: dict[str, dict[str, Any]] = {
    "audio-spectrogram-transformer": {"max_length": 32, "num_mel_bins": 16},
    "codegen": {"n_head": 4, "rotary_dim": 4},
    "convnext": {"patch_size": 4},
    "convnextv2": {"patch_size": 4},
    "cvt": {"patch_sizes": [3, 3, 3], "depth": [1, 2, 3], "num_heads": [1, 2, 2]},
    "dinov3_convnext": {"image_size": 64},
    "efficientnet": {"width_coefficient": 0.2, "depth_coefficient": 0.3, "hidden_dim": 256},
    "falcon": {"head_dim": None},
    "falcon_h1": {"mamba_d_ssm": 64},
    "funnel": {"num_hidden_layers": None, "num_layers": None, "block_sizes": [1, 1], "d_head": 16, "d_inner": 48},
    "glm4v_moe_text": _mrope(1, 1, 2),
    "glm4v_text": _mrope(2, 3, 3),
    "glm_image_text": _mrope(2, 3, 3),
    "glm_ocr_text": _mrope(2, 3, 3),
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 8},
    "lilt": {"hidden_size": 48},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "mobilenet_v2": {"depth_multiplier": 0.25},
    "mobilevitv2": {"width_multiplier": 0.25, "patch_size": 2},
    "mobilevit": {"patch_size": 2},
    "cosmos3_edge_text": _mrope(2, 3, 3),
    "hunyuan_vl_text": _mrope(2, 2, 2, 2),
    "bit": {"num_groups": 4},
    "longcat_flash": {"head_dim": 8},
    "prophetnet": {"num_hidden_layers": None, "num_encoder_layers": 2, "num_decoder_layers": 2},
    "qwen2_5_vl_text": _mrope(2, 3, 3),
    "qwen2_vl_text": _mrope(2, 3, 3),
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "local"], "attention_head_size": 16},
    "swin": {"patch_size": 2, "window_size": 4, "image_size": 64},
    "swin2sr": {"patch_size": 1, "window_size": 4},
    "swinv2": {"patch_size": 2, "window_size": 4},
    "donut-swin": {"patch_size": 2, "window_size": 4, "image_size": 64},
    "maskformer-swin": {"patch_size": 2, "window_size": 4, "image_size": 64},
    "xlnet": {"max_position_embeddings": None, "d_inner": 48},
    "xlstm": {"v_head_dim": None},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layer_types": ["mamba", "hybrid", "mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": 99,
        "hidden_size_per_layer_input": 8,
        "activation_sparsity_pattern": [0.0, 0.0],
    },
    "gemma4_text": {"num_kv_shared_layers": 0, "vocab_size_per_layer_input": 99, "hidden_size_per_layer_input": 8},
    "gemma4_unified_text": {"num_kv_shared_layers": 0},
    "wav2vec2-bert": {"feature_projection_input_dim": 80},
    "gemma4_audio": {"num_mel_bins": 128},
}
SHAPES: dict[str, tuple[int, ...]] = {  # of one input, where it is not the usual one of its kind
    "audio-spectrogram-transformer": (32, 16),
    "glmasr_encoder": (80, 40),
    "moss_transcribe_diarize_audio": (80, 3000),
    "qwen2_audio_encoder": (80, 3000),
    "voxtral_encoder": (80, 3000),
    "voxtral_realtime_encoder": (80, 40),
    "wav2vec2-bert": (40, 80),
    "granite_speech5_encoder": (40, 320),
    "granite_speech5_ctc": (40, 320),
    "gemma4_audio": (40, 128),
    "whisper": (80, 3000),
}
FLOAT32 = {"canine", "fsmt", "mra", "prophetnet", "xglm"}  # they compute parts of themselves in float32


def architectures(*inputs: str) -> dict[str, Any]:
    """The config class of every architecture with one of these main inputs, by model type; composites are left out."""
    from transformers import CONFIG_MAPPING

    found = {}
    for name in MODEL_MAPPING_NAMES:
        try:
            config_class = CONFIG_MAPPING[name]
            made = AutoModel._model_mapping[config_class]  # type: ignore[attr-defined]
            made = made[0] if isinstance(made, tuple) else made
            if made.main_input_name in inputs and not is_composite(made):
                found[name] = config_class
        except (ImportError, KeyError, ValueError, TypeError):  # a library is missing, or the mapping names nothing
            continue
    return found


def tiny_model(config_class: Any) -> torch.nn.Module:
    """A random model of this config, small."""
    name = config_class.model_type
    config = config_class(**_small(config_class, OWN.get(name, {})))
    config._experts_implementation = "eager"  # the grouped product has no float64
    made = AutoModel._model_mapping[config_class]  # type: ignore[attr-defined]
    made = made[0] if isinstance(made, tuple) else made
    with torch.device("meta"):
        size = sum(weight.numel() for weight in made._from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size} parameters")
    torch.manual_seed(0)
    return made._from_config(config).to(torch.float32 if name in FLOAT32 else torch.float64).eval()


def _small(config_class: Any, own: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments that make a config small."""
    default = config_class()
    sizes = {default.attribute_map.get(name, name): size for name, size in SIZES.items()}
    chosen: dict[str, Any] = {}
    for name, size in sizes.items():
        value = _value(default, name)
        if (isinstance(value, int) and not isinstance(value, bool)) or (value is None and name in UNSET):
            chosen[name] = size
    for name, size in LISTS.items():
        value = _value(default, name)
        if isinstance(value, list | tuple) and all(isinstance(one, int) for one in value):
            chosen[name] = [size] * len(value)
    if hasattr(default, "conv_kernel") and isinstance(default.conv_kernel, list | tuple):
        chosen |= CONVOLUTIONS
    if hasattr(default, "qk_rope_head_dim"):
        chosen.pop("head_dim", None)
    for name in config_class.sub_configs or {}:
        part = getattr(default, name, None)
        if part is not None and hasattr(type(part), "sub_configs"):
            chosen[name] = _small(type(part), {}) | {"model_type": part.model_type}
    return {name: size for name, size in (chosen | own).items() if size is not None}


def _value(config: Any, name: str) -> Any:
    """The value of a field; a word where there is none, or one per layer."""
    try:
        return getattr(config, name)
    except Exception:  # Gemma 4 refuses fields that differ between layers
        return "none"


def tiny_batch(module: Any) -> Batch:
    """Two inputs of equal length for a model."""
    main, taken = module.main_input_name, inspect.signature(module.forward).parameters
    torch.manual_seed(1)
    if main == "input_ids":
        ids = torch.randint(5, 90, (2, 16))
        valid = torch.ones(2, 16, dtype=torch.bool)
        inputs = {main: ids} | ({"attention_mask": valid.long()} if "attention_mask" in taken else {})
    else:
        values = torch.randn(2, *_shape(module, main), dtype=torch.float64)
        channels_first = values.shape[1] == 80
        frames = 1 if main == "pixel_values" else values.shape[2 if channels_first else 1]
        valid = torch.ones(2, frames, dtype=torch.bool)
        inputs = {main: values}
    decoder = None
    if "decoder_input_ids" in taken:
        inputs["decoder_input_ids"] = torch.randint(5, 90, (2, 5))
        decoder = torch.ones(2, 5, dtype=torch.bool)
    none = torch.zeros_like(valid)
    return Batch(inputs, ["0", "1"], [0, 0], valid, none, decoder, None if decoder is None else ~decoder)


def _shape(module: Any, main: str) -> tuple[int, ...]:
    config = module.config
    if config.model_type in SHAPES:
        return SHAPES[config.model_type]
    if main == "pixel_values":
        size = getattr(config, "image_size", None) or 32
        return getattr(config, "num_channels", None) or 3, *(size if isinstance(size, list | tuple) else (size, size))
    return (4000,) if main == "input_values" else (40, getattr(config, "num_mel_bins", None) or 80)
