"""Conversions of published weights: archives without a directory, sentence pieces, gates that a model lacks."""

from __future__ import annotations

import io
import struct
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from real_weights import marian, onnx_files, vision_files


def test_a_member_is_read_where_its_header_stands_and_checked() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("a/first.txt", "one" * 50)
        opened.writestr("a/second.txt", "two" * 50)
        header = opened.getinfo("a/second.txt").header_offset
    archive = packed.getvalue()
    assert marian.member_at(archive, header) == b"two" * 50
    with pytest.raises(ValueError, match="begins at 1"):
        marian.member_at(archive, 1)
    damaged = bytearray(archive)
    damaged[header + 14] ^= 1  # of its CRC
    with pytest.raises(ValueError, match="damaged"):
        marian.member_at(bytes(damaged), header)


def field(number: int, content: bytes | float) -> bytes:
    if isinstance(content, float):
        return bytes([number << 3 | 5]) + struct.pack("<f", content)
    return bytes([number << 3 | 2, len(content)]) + content


def test_sentence_pieces_keep_their_scores_and_take_the_numbers_of_the_vocabulary() -> None:
    scores = {"<unk>": 0.0, "▁a": -1.0, "b": -2.0, "▁": -3.0, "ab": -2.5, "▁ab": -9.0, "a": -4.0}
    pieces = [field(1, field(1, piece.encode()) + field(2, score)) for piece, score in scores.items()]
    model = b"".join(pieces) + field(3, field(1, b"identity"))
    numbers = {"</s>": 0, "<unk>": 1, "b": 2, "▁a": 3, "seulement": 4, "▁ab": 5, "▁": 6, "ab": 7, "a": 8, "<pad>": 9}
    tokenizer = marian.pieces_tokenizer(model, numbers)
    # ▁a + b scores −3, ▁ + ab −5.5, ▁ab −9: the best segmentation wins, not the longest piece
    assert tokenizer.encode("ab").ids == [3, 2, 0]
    assert tokenizer.encode("  ab   ab ").tokens == ["▁a", "b", "▁a", "b", "</s>"]


def test_a_lite_network_has_its_gates_wide_open() -> None:
    torch.manual_seed(0)
    config = vision_files.lite_config()
    model = transformers.EfficientNetModel(config).eval()
    published = {
        "_blocks.1._bn1.weight": "encoder.blocks.1.depthwise_conv.depthwise_norm.weight",
        "_bn1.bias": "encoder.top_bn.bias",
        "_conv_stem.weight": "embeddings.convolution.weight",
    }
    renamed = vision_files.lite_names({name: torch.ones(1) for name in published}, model.state_dict())
    assert set(published.values()) <= set(renamed)
    model.load_state_dict({key: renamed[key] for key in renamed if ".squeeze_excite." in key}, strict=False)
    gate = model.encoder.blocks[3].squeeze_excite
    x = torch.randn(2, gate.reduce.in_channels, 5, 5)
    torch.testing.assert_close(gate(x), x, rtol=0, atol=0)


def test_a_tensor_that_the_class_ties_to_another_one_is_not_overwritten_unnoticed() -> None:
    config = transformers.T5Config(vocab_size=20, d_model=8, d_ff=8, d_kv=4, num_heads=2, num_layers=1)
    model = transformers.T5ForConditionalGeneration(config)
    weights = {name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"shared\.weight was overwritten: T5ForConditionalGeneration ties it"):
        onnx_files.fill(model, weights)
