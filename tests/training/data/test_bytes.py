"""The byte tokenizer is a real one, and its ids are bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from anisoscope.training.data.bpe import blocks, encode, train_bpe
from anisoscope.training.data.bytes import FIRST_BYTE, SPECIALS, byte_characters, byte_tokenizer

TOKENIZER = byte_tokenizer(length=64, wrap=False)
ENGLISH = b"The quick brown fox jumps over the lazy dog, and the other foxes jump over the other dogs.\n" * 60


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_ids_are_bytes_and_text_comes_back(text: str) -> None:
    text = text.translate({ord("["): None})  # no special token can be spelled
    ids = [FIRST_BYTE + byte for byte in text.encode()]
    assert TOKENIZER(text, verbose=False).input_ids == ids
    assert TOKENIZER.decode(ids, clean_up_tokenization_spaces=False) == text


def test_the_table_of_byte_characters_is_that_of_tokenizers() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    assert sorted(byte_characters()) == sorted(ByteLevel.alphabet())


@pytest.mark.parametrize("wrap", [True, False])
def test_autotokenizer_reads_the_folder(tmp_path, wrap: bool) -> None:
    byte_tokenizer(length=64, wrap=wrap).save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    body = [FIRST_BYTE + byte for byte in "naïve".encode()]
    assert again("naïve").input_ids == ([2, *body, 3] if wrap else body)
    assert (len(again), again.model_max_length, again.mask_token, again.pad_token_id) == (261, 64, "[MASK]", 0)
    assert again("[MASK]", add_special_tokens=False).input_ids == [SPECIALS.index("[MASK]")]
    padded = again(["a", "abc"], padding=True, return_special_tokens_mask=True)
    assert padded.attention_mask[0] == [1] * (len(padded.attention_mask[0]) - 2) + [0, 0]


def test_bpe_covers_every_byte_and_joins_what_is_frequent(tmp_path) -> None:
    text = np.frombuffer(ENGLISH, dtype=np.uint8)
    tokenizer = train_bpe(text, vocabulary=300, length=32, wrap=True)
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert len(again) == 300
    assert again.convert_ids_to_tokens(list(range(FIRST_BYTE))) == list(SPECIALS)
    assert len(again(" the").input_ids) == 3  # [CLS] Ġthe [SEP]
    for text_ in ("日本 \x00\x7f", "the fox"):
        assert again.decode(again(text_).input_ids, skip_special_tokens=True) == text_


def test_an_encoded_corpus_decodes_to_the_text_and_is_encoded_once(tmp_path) -> None:
    text = np.frombuffer(ENGLISH, dtype=np.uint8)
    tokenizer = train_bpe(text, vocabulary=300, length=32, wrap=True)
    ids = encode(text, tokenizer, tmp_path / "tokens.npy")
    assert ids.dtype == np.uint16
    assert tokenizer.decode(ids).encode() == ENGLISH
    (file,) = tmp_path.iterdir()
    stamp = file.stat().st_mtime_ns
    assert (encode(text, tokenizer, tmp_path / "tokens.npy") == ids).all()
    assert (list(tmp_path.iterdir()), file.stat().st_mtime_ns) == ([file], stamp)


def test_an_encoded_corpus_with_a_flipped_bit_is_encoded_again(tmp_path) -> None:
    text = np.frombuffer(ENGLISH, dtype=np.uint8)
    tokenizer = train_bpe(text, vocabulary=300, length=32, wrap=True)
    before = encode(text, tokenizer, tmp_path / "tokens.npy").copy()
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    assert (encode(text, tokenizer, tmp_path / "tokens.npy") == before).all()
    assert list(tmp_path.iterdir()) == [file]


@settings(deadline=None)
@given(st.binary(max_size=200).filter(lambda raw: len(raw) > 0))
def test_blocks_are_the_whole_text_cut_after_line_ends(raw: bytes) -> None:
    from unittest import mock

    with mock.patch("anisoscope.training.data.bpe.BLOCK", 16):
        cut = list(blocks(np.frombuffer(raw, dtype=np.uint8)))
    if raw.isascii():
        assert "".join(cut).encode() == raw
    assert all(block.endswith("\n") or "\n" not in block for block in cut[:-1])
