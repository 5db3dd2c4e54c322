"""The config of each stand-in: small, and of the shape that the published model has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as library

from anisoscope.models.extra import characterbert
from anisoscope.models.extra.manta import MantaConfig
from anisoscope.models.extra.van import VanConfig
from anisoscope.models.stand_ins import processors

transformers: Any = library  # its classes take more than their signatures say

D, LAYERS, HEADS, WIDE = 32, 3, 4, 64
BODY = {"hidden_size": D, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
SMALL = {**BODY, "intermediate_size": WIDE}


def ids(tokenizer: Any) -> dict[str, Any]:
    """The vocabulary size and the ids of the special tokens, as config fields."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    return {"vocab_size": len(tokenizer), **{name: getattr(tokenizer, name) for name in names}}


def encoder(kind: str, tokenizer: Callable[[], Any], **options: Any) -> Callable[[], Any]:
    """A config of `kind` with the small sizes and the vocabulary of its tokenizer."""
    return lambda: getattr(transformers, f"{kind}Config")(**{**SMALL, **ids(tokenizer()), **options})


def t5(tokenizer: Callable[[], Any], **options: Any) -> Callable[[], Any]:
    sizes = {
        "d_model": D,
        "d_kv": D // HEADS,
        "d_ff": WIDE,
        "num_layers": LAYERS,
        "num_decoder_layers": 2,
        "num_heads": HEADS,
    }
    return lambda: transformers.T5Config(
        **sizes, vocab_size=len(tokenizer()), pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, **options
    )


def waveform(kind: str, **options: Any) -> Callable[[], Any]:
    """wav2vec 2.0 and HuBERT: three convolutions of stride 5, 4, 4 instead of seven; 16,000 samples give 199 frames."""
    convolutions = {"conv_dim": (16, 16, 16), "conv_kernel": (10, 4, 4), "conv_stride": (5, 4, 4)}
    positions = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
    return lambda: getattr(transformers, f"{kind}Config")(
        **SMALL, **convolutions, **positions, vocab_size=32, **options
    )


def whisper() -> Any:
    layers = {
        "encoder_layers": LAYERS,
        "decoder_layers": 2,
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
    }
    widths = {"d_model": D, "encoder_ffn_dim": WIDE, "decoder_ffn_dim": WIDE, "num_mel_bins": 16}
    limits = {"max_source_positions": 100, "max_target_positions": 64}
    tokenizer = processors.whisper_text()
    start = tokenizer.convert_tokens_to_ids("<|startoftranscript|>")
    marks = {**ids(tokenizer), "pad_token_id": tokenizer.eos_token_id, "decoder_start_token_id": start}
    return transformers.WhisperConfig(**layers, **widths, **limits, **marks)


def clip() -> Any:
    tokenizer = processors.clip_text()
    text = {**SMALL, **ids(tokenizer), "max_position_embeddings": 24, "projection_dim": 16}
    vision = {**SMALL, "image_size": 32, "patch_size": 8, "projection_dim": 16}
    return transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)


def patches(kind: str, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, f"{kind}Config")(**SMALL, image_size=32, patch_size=8, num_labels=5, **options)


def segformer() -> Any:
    return transformers.SegformerConfig(
        depths=[2, 2, 1, 1], hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 3, 4], num_labels=5
    )


def resnet() -> Any:
    return transformers.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32, 48, 64], depths=[2, 2, 2, 1], num_labels=5)


def efficientnet() -> Any:
    """B0's sixteen blocks, thinner: the depth is part of what is measured."""
    return transformers.EfficientNetConfig(
        width_coefficient=0.25, depth_coefficient=1.0, hidden_dim=320, image_size=64, num_labels=5
    )


def cvt() -> Any:
    """The depth of stage s must exceed s, or the library raises IndexError."""
    return transformers.CvtConfig(embed_dim=[8, 16, 32], num_heads=[1, 2, 4], depth=[1, 2, 3], num_labels=5)


def convnext() -> Any:
    return transformers.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[2, 2, 3, 2], num_labels=5)


def falcon() -> Any:
    """Falcon-7b's layout: one key/value head, parallel attention, one norm a block, rotary positions."""
    return transformers.FalconConfig(
        **BODY,
        multi_query=True,
        parallel_attn=True,
        bias=False,
        alibi=False,
        new_decoder_architecture=False,
        **ids(processors.falcon()),
    )


def opt() -> Any:
    return transformers.OPTConfig(
        **BODY, ffn_dim=WIDE, word_embed_proj_dim=D, max_position_embeddings=128, **ids(processors.opt())
    )


def gpt2() -> Any:
    return transformers.GPT2Config(n_embd=D, n_layer=LAYERS, n_head=HEADS, n_positions=128, **ids(processors.gpt2()))


def modernbert() -> Any:
    tokenizer = processors.modernbert()
    names = {"cls_token_id": tokenizer.bos_token_id, "sep_token_id": tokenizer.eos_token_id}
    return transformers.ModernBertConfig(**SMALL, **ids(tokenizer), **names, max_position_embeddings=128)


def character_bert() -> Any:
    filters = {"cnn_filters": [[1, 8], [2, 8], [3, 16]], "character_embeddings_dim": 8}
    config: Any = characterbert.CharacterBertConfig
    return config(**SMALL, **filters, max_position_embeddings=128, mlm_vocab_size=50)


def manta() -> Any:
    sizes: dict[str, Any] = {
        "d_model": D,
        "d_kv": D // HEADS,
        "d_ff": WIDE,
        "num_layers": LAYERS,
        "num_decoder_layers": 2,
    }
    lengths = {"max_length_inputs": 256, "max_length_encoder_decoder": 64}
    frontier = {"byte_embedding_dim": 16, "frontier_predictor_num_attention_heads": 4}
    config: Any = MantaConfig
    return config(**sizes, **lengths, **frontier, num_heads=HEADS)


def van() -> Any:
    config: Any = VanConfig
    return config(hidden_sizes=[8, 16, 24, 32], depths=[2, 2, 3, 2], mlp_ratios=[4, 4, 2, 2], num_labels=5)
