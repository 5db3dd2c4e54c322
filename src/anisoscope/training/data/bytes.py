"""Text as bytes: a real fast tokenizer of 256 bytes and five special tokens, saved with every checkpoint.

The model is a byte-level BPE without a single merge, so `AutoTokenizer` reads the folder, offsets work, and nothing is
ever unknown. Ids: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, then byte b at 5 + b.

>>> tokenizer = byte_tokenizer(length=128, wrap=True)
>>> tokenizer("aé").input_ids == [2, *(5 + byte for byte in "aé".encode()), 3]
True
>>> len(tokenizer), tokenizer.mask_token_id
(261, 4)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FIRST_BYTE = len(SPECIALS)


def byte_tokenizer(*, length: int, wrap: bool) -> PreTrainedTokenizerFast:
    """The byte tokenizer; with `wrap` it puts [CLS] before and [SEP] after, as BERT's does."""
    from tokenizers import Tokenizer, models

    vocabulary = {token: index for index, token in enumerate(SPECIALS)}
    vocabulary |= {character: FIRST_BYTE + byte for byte, character in enumerate(byte_characters())}
    return dress(Tokenizer(models.BPE(vocab=vocabulary, merges=[])), length=length, wrap=wrap)


def dress(tokenizer: Tokenizer, *, length: int, wrap: bool) -> PreTrainedTokenizerFast:
    """A byte-level model made a tokenizer of transformers: pre-tokenizer, decoder, special tokens, longest input."""
    from tokenizers import decoders, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=tokenizer_merges(tokenizer))
    tokenizer.decoder = decoders.ByteLevel()
    if wrap:
        ends = [(token, SPECIALS.index(token)) for token in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
        )
    pad, unknown, first, last, mask = SPECIALS
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=length,
        pad_token=pad,
        unk_token=unknown,
        cls_token=first,
        sep_token=last,
        mask_token=mask,
    )


def tokenizer_merges(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer joins bytes at all: only then does splitting into words first make a difference."""
    return tokenizer.get_vocab_size() > FIRST_BYTE + 256


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2's table), in byte order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    return [characters[byte] for byte in range(256)]
