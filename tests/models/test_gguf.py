"""GGUF: a file written tensor by tensor opens as the model that it was written from."""

from __future__ import annotations

import importlib.util
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zoo
from anisoscope.errors import MissingExtra, ModelError, UsageError
from anisoscope.models.fingerprint import module_fingerprint
from anisoscope.models.gguf import held
from anisoscope.models.open import open_model

gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers.": "blk.",
}


def rotary_order(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF interleaves the halves that a rotation turns; transformers keeps them apart."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def write(module: Any, tokenizer: Any, file: Path) -> Path:
    """A Llama and its tokenizer as GGUF, unquantised."""
    config = module.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    vocabulary = tokenizer.get_vocab()
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(vocabulary, key=vocabulary.__getitem__))
    special = set(tokenizer.all_special_ids)
    writer.add_token_types([3 if token in special else 1 for token in range(len(vocabulary))])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    for key, weight in module.state_dict().items():
        values = weight.numpy()
        if "q_proj" in key or "k_proj" in key:
            heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
            values = rotary_order(values, heads)
        for theirs, ours in NAMES.items():
            key = key.replace(theirs, ours)
        writer.add_tensor(key, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("owner") / "name"
    folder.mkdir()
    return write(zoo.module("llama", head=True), zoo.processor("llama"), folder / "tiny.gguf")


def test_a_gguf_file_opens_with_its_tokenizer(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    opened = open_model(file)
    expected = zoo.module("llama")
    assert module_fingerprint(opened.module) == module_fingerprint(expected)
    assert (opened.name, opened.family, opened.modality, opened.limit) == ("tiny.gguf", "llama", "text", 128)
    assert opened.notes == ("weights dequantised from tiny.gguf",)
    text = "Queries and keys drift as well, 12 of them."
    own, original = (
        tokenizer(text, add_special_tokens=False) for tokenizer in (opened.processor, zoo.processor("llama"))
    )
    assert own["input_ids"] == original["input_ids"]
    assert capfd.readouterr() == ("", "")


def test_a_gguf_file_opens_with_its_head_and_computes_the_same(file: Path) -> None:
    opened, expected = open_model(file, head=True), zoo.module("llama", head=True)
    tokens = torch.arange(2, 30)[None]
    torch.testing.assert_close(opened.module(tokens).logits, expected(tokens).logits, rtol=0, atol=1e-6)


def test_a_mirror_may_hold_a_gguf_file(file: Path, tmp_path: Path) -> None:
    opened = open_model("owner/name", models_dir=_mirror(file, tmp_path))
    assert opened.name == "owner/name"
    (tmp_path / "owner" / "name" / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(UsageError, match="several GGUF files"):
        open_model("owner/name", models_dir=tmp_path)


def _mirror(file: Path, folder: Path) -> Path:
    target = folder / "owner" / "name" / file.name
    target.parent.mkdir(parents=True)
    target.write_bytes(file.read_bytes())
    return folder


def test_the_library_is_left_as_it_was(file: Path) -> None:
    reader, names = gguf.GGUFReader, gguf.get_tensor_name_map
    open_model(file)
    assert (gguf.GGUFReader, gguf.get_tensor_name_map) == (reader, names)


def test_gguf_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else found(name))
    with pytest.raises(MissingExtra, match=r"'gguf'(.|\n)*anisoscope\[gguf\]"):
        open_model(file)


def test_a_damaged_gguf(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"nothing")
    with pytest.raises(ModelError, match="not a GGUF file"):
        open_model(file)
    file.write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(ModelError, match="cannot be read"):
        open_model(file)


def test_the_header_is_walked_as_the_library_reads_it(file: Path) -> None:
    assert held(file) == [tensor.n_elements for tensor in gguf.GGUFReader(file).tensors]


@pytest.mark.parametrize("keep", [5, 20, 30, 200, 2000])
def test_a_header_that_breaks_off_is_refused(file: Path, tmp_path: Path, keep: int) -> None:
    part = tmp_path / "part.gguf"
    part.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match="damaged or incomplete"):
        open_model(part)


@pytest.mark.parametrize("kind", [0, 4, 9, 12])
def test_an_array_longer_than_its_file_is_refused(tmp_path: Path, kind: int) -> None:
    """The library goes on behind the end of the file, one empty value after the other."""
    key = struct.pack("<QsIIQ", 1, b"a", 9, kind, 2**60)
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + bytes(100))
    with pytest.raises(ModelError, match="damaged or incomplete"):
        open_model(tmp_path / "x.gguf")


@pytest.mark.parametrize("name", ["block_count", "embedding_length", "feed_forward_length"])
def test_a_header_of_a_larger_model_is_refused_before_it_is_made(file: Path, tmp_path: Path, name: str) -> None:
    content = bytearray(file.read_bytes())
    at = content.index(f"llama.{name}".encode()) + len(f"llama.{name}") + 4
    content[at : at + 4] = struct.pack("<I", 2**20)
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ModelError, match="do not have the shapes"):
        open_model(tmp_path / "x.gguf")
