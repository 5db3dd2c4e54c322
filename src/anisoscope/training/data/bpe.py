"""Text as byte pairs: a byte-level BPE trained on the text itself, and the text encoded once, kept on disk.

Training looks at the first `SAMPLE` bytes, encoding goes by blocks, so the memory does not grow with the corpus. The
ids are stored in a file and mapped, not read, by the training.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anisoscope.runs.writing import file_sha256
from anisoscope.training.data.bytes import SPECIALS, byte_characters, dress

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SAMPLE = 20_000_000
BLOCK = 1 << 20


def train_bpe(text: np.ndarray, *, vocabulary: int, length: int, wrap: bool) -> PreTrainedTokenizerFast:
    """A byte-level BPE of `vocabulary` tokens, the five special ones and the 256 bytes included."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIALS), initial_alphabet=byte_characters(), show_progress=False
    )
    tokenizer.train_from_iterator(blocks(text[:SAMPLE]), trainer)
    return dress(tokenizer, length=length, wrap=wrap)


def encode(text: np.ndarray, tokenizer: PreTrainedTokenizerFast, path: Path) -> np.ndarray:
    """The ids of the whole text, memory-mapped; written beside `path` once, with their checksum in the name."""
    for former in path.parent.glob(f"{path.stem}_*.npy"):
        if former == _checked(former, path):
            return np.load(former, mmap_mode="r")
        former.unlink()  # damaged
    ids = [tokenizer(block, add_special_tokens=False, verbose=False)["input_ids"] for block in blocks(text)]
    kind = np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32
    partial = path.with_suffix(".partial.npy")
    np.save(partial, np.concatenate([np.asarray(block, dtype=kind) for block in ids]))
    return np.load(partial.replace(_checked(partial, path)), mmap_mode="r")


def _checked(file: Path, path: Path) -> Path:
    """`path` with the checksum of a file's contents."""
    return path.with_stem(f"{path.stem}_{file_sha256(file)[:16]}")


def blocks(text: np.ndarray) -> Iterator[str]:
    """The text (uint8) cut after line ends, about a megabyte at a time; bytes that are not UTF-8 become U+FFFD."""
    start = 0
    while start < len(text):
        stop = min(start + BLOCK, len(text))
        newline = bytes(text[start:stop]).rfind(b"\n")
        if stop < len(text) and newline >= 0:
            stop = start + newline + 1
        yield bytes(text[start:stop]).decode("utf-8", errors="replace")
        start = stop
