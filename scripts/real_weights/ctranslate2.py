"""Whisper as CTranslate2 stores it: one binary file of named arrays, projections of one attention fused.

    version, name of the spec, revision, count; then each array: name, rank, shape, type, bytes, data

Queries, keys and values of self-attention are the rows of one matrix; keys and values of cross-attention of another.
Keys have no bias in Whisper: CTranslate2 writes zeros, which are dropped.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

_TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
_NAMES = (
    (r"/", "."),
    (r"\.layer_(\d+)\.", r".layers.\1."),
    (r"\.attention\.layer_norm\.", ".encoder_attn_layer_norm."),
    (r"\.self_attention\.layer_norm\.", ".self_attn_layer_norm."),
    (r"\.ffn\.layer_norm\.", ".final_layer_norm."),
    (r"\.ffn\.linear_0\.", ".fc1."),
    (r"\.ffn\.linear_1\.", ".fc2."),
    (r"\.position_encodings\.encodings$", ".embed_positions.weight"),
    (r"\.embeddings\.weight$", ".embed_tokens.weight"),
    (r"\.gamma$", ".weight"),
    (r"\.beta$", ".bias"),
)


def read_arrays(data: bytes) -> dict[str, np.ndarray]:
    """The named arrays of a CTranslate2 file."""
    stream = io.BytesIO(data)

    def number(form: str) -> int:
        return struct.unpack(f"<{form}", stream.read(struct.calcsize(form)))[0]

    def text() -> str:
        return stream.read(number("H")).rstrip(b"\0").decode()

    number("I"), text(), number("I")  # version, spec, revision
    arrays = {}
    for _ in range(number("I")):
        name, rank = text(), number("B")
        shape = [number("I") for _ in range(rank)]
        kind, size = number("B"), number("I")
        arrays[name] = np.frombuffer(stream.read(size), _TYPES[kind]).reshape(shape)
    return arrays


def rename(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """CTranslate2's names to those of WhisperModel, with fused projections taken apart."""
    weights: dict[str, Tensor] = {}
    for name, array in arrays.items():
        if array.ndim == 0 or "alignment" in name:
            continue
        weight = torch.from_numpy(array.astype(np.float32))
        block, cross, part, end = _projection(name)
        if block:
            kinds = _parts(cross, part)
            for kind, piece in zip(kinds, weight.chunk(len(kinds)), strict=True):
                if (kind, end) != ("k_proj", "bias"):
                    weights[f"{block}.{'encoder' if cross else 'self'}_attn.{kind}.{end}"] = piece.clone()
            continue
        for pattern, new in _NAMES:
            name = re.sub(pattern, new, name)
        weights[name] = weight
    return weights


def _projection(name: str) -> tuple[str, bool, int, str]:
    found = re.fullmatch(r"(\w+)/layer_(\d+)/(self_)?attention/linear_(\d)/(weight|bias)", name)
    if found is None:
        return "", False, 0, ""
    return f"{found[1]}.layers.{found[2]}", found[3] is None, int(found[4]), found[5]


def _parts(cross: bool, part: int) -> tuple[str, ...]:
    if cross:
        return (("q_proj",), ("k_proj", "v_proj"), ("out_proj",))[part]
    return (("q_proj", "k_proj", "v_proj"), ("out_proj",))[part]


def whisper_config(weights: Mapping[str, Tensor], heads: int) -> transformers.WhisperConfig:
    """The sizes of a multilingual Whisper, read off its weights."""

    def layers(stack: str) -> int:
        return 1 + max(int(name.split(".")[2]) for name in weights if name.startswith(f"{stack}.layers."))

    width, bins, _ = weights["encoder.conv1.weight"].shape
    special: dict[str, Any] = {"decoder_start_token_id": 50258, "bos_token_id": 50257, "eos_token_id": 50257}
    return transformers.WhisperConfig(
        vocab_size=len(weights["decoder.embed_tokens.weight"]),
        num_mel_bins=bins,
        d_model=width,
        encoder_layers=layers("encoder"),
        decoder_layers=layers("decoder"),
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_source_positions=len(weights["encoder.embed_positions.weight"]),
        max_target_positions=len(weights["decoder.embed_positions.weight"]),
        pad_token_id=50257,
        **special,
    )


def whisper(data: bytes, tokenizer: bytes, target: Path) -> None:
    """A folder of transformers with tokenizer and feature extractor."""
    arrays = read_arrays(data)
    weights = rename(arrays)
    model = transformers.WhisperForConditionalGeneration(whisper_config(weights, int(arrays["encoder/num_heads"])))
    model.model.load_state_dict(weights, strict=True)
    model.half().save_pretrained(target)  # as published
    file = target / "tokenizer.json"
    file.write_bytes(tokenizer)
    transformers.WhisperTokenizer(tokenizer_file=str(file)).save_pretrained(target)
    transformers.WhisperFeatureExtractor(feature_size=model.config.num_mel_bins).save_pretrained(target)
    assert json.loads((target / "config.json").read_text())["d_model"] == model.config.d_model
