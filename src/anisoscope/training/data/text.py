"""Text files as an endless, numbered stream of windows.

Window `i` of a stream is a function of (seed, i) alone: where it starts, which tokens are masked and by what are drawn
from a counter-based generator (Philox) keyed by both. So a training that was interrupted continues with exactly the
windows that it would have seen, whatever the machine did in between, and nothing but the step number has to be
remembered.

Masking is BERT's (Devlin et al. 2019): of the chosen positions 80 % become [MASK], 10 % a random token, 10 % stay.
Exactly `round(rate · n)` positions are chosen in each window, so the mean loss over windows is the mean over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anisoscope.errors import InputError
from anisoscope.inputs.files import Stamps, check_all, digest, file_digest, stamp
from anisoscope.training.data.bytes import FIRST_BYTE, SPECIALS, byte_tokenizer
from anisoscope.training.folder import writing

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from anisoscope.training.recipe import Recipe

IGNORED = -100
"""The label of a position that no loss looks at (the convention of transformers)."""

HELD_OUT = 2**32
"""The seed of the windows that are validated on: no training has it."""

FIRST, LAST, MASK = (SPECIALS.index(token) for token in ("[CLS]", "[SEP]", "[MASK]"))


@dataclass(frozen=True, slots=True)
class Corpus:
    """The bytes (uint8) of text files: what is trained on, and the end of each file, which is held out."""

    training: np.ndarray
    held_out: np.ndarray
    sha256: str
    stamps: Stamps


def read_corpus(files: Sequence[str | Path], *, validation: float, length: int) -> Corpus:
    """Map the files and hold out the last `validation` of each; one file is mapped, several are joined in memory."""
    training, held_out, stamps = [], [], []
    for file in files:
        if not Path(file).is_file() or not Path(file).stat().st_size:
            raise InputError("cannot train on this text", where=file, expected="a file that exists and is not empty")
        stamps.append((Path(file), stamp(Path(file))))
        text = np.memmap(file, dtype=np.uint8, mode="r")
        cut = len(text) - int(len(text) * validation)
        training.append(text[:cut])
        held_out.append(text[cut:])
    corpus = Corpus(_join(training), _join(held_out), _sha256(tuple(stamps)), stamps)
    check_all(stamps)
    if min(len(corpus.training), len(corpus.held_out)) < length:
        raise InputError(
            "the text is too short to train on",
            where=", ".join(map(str, files)),
            got=f"{len(corpus.training):,} bytes, and {len(corpus.held_out):,} held out",
            expected=f"at least {length} of each",
        )
    return corpus


@cache
def _sha256(stamps: Stamps) -> str:
    """The hash of files, made once for all trainings of a grid (the stamps say whether a file is what it was)."""
    found = [file_digest(file) for file, _ in stamps]
    return found[0].hex() if len(found) == 1 else digest(found)


def _join(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class Windows:
    """A map-style dataset of `count` windows of `length` tokens over the ids of one text.

    - `wrap`: [CLS] and [SEP] take the first and the last position.
    - `mask`: the share of positions to predict; `None` for causal models, whose labels are the tokens themselves.
    """

    ids: np.ndarray
    offset: int
    length: int
    count: int
    seed: int
    vocabulary: int
    wrap: bool
    mask: float | None
    noise: range = range(0)  # windows of random tokens instead of text

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        draw = np.random.Generator(np.random.Philox(key=[self.seed, index]))
        content = self.length - 2 * self.wrap
        start = int(draw.integers(0, len(self.ids) - content + 1))
        tokens = self.ids[start : start + content].astype(np.int64) + self.offset
        if index in self.noise:
            tokens = draw.integers(len(SPECIALS), self.vocabulary, content)
        labels = tokens
        if self.mask is not None:
            tokens, labels = mask_tokens(tokens, rate=self.mask, vocabulary=self.vocabulary, draw=draw)
        if self.wrap:
            tokens = np.concatenate(([FIRST], tokens, [LAST]))
            labels = np.concatenate(([IGNORED], labels, [IGNORED]))
        return {"input_ids": tokens, "labels": labels}


def mask_tokens(
    tokens: np.ndarray, *, rate: float, vocabulary: int, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens with some hidden, and the labels of the hidden ones."""
    chosen = draw.permutation(len(tokens))[: max(1, round(rate * len(tokens)))]
    fate = draw.random(len(chosen))
    labels = np.full_like(tokens, IGNORED)
    labels[chosen] = tokens[chosen]
    hidden = tokens.copy()
    hidden[chosen[fate < 0.8]] = MASK
    replaced = chosen[fate >= 0.9]
    hidden[replaced] = draw.integers(len(SPECIALS), vocabulary, len(replaced))
    return hidden, labels


@dataclass(frozen=True, slots=True)
class TextData:
    """The text of a recipe: its tokenizer, its training windows by seed, its held-out windows."""

    recipe: Recipe
    processor: PreTrainedTokenizerFast
    ids: np.ndarray
    held_out_ids: np.ndarray
    offset: int
    sha256: str
    stamps: Stamps

    @classmethod
    def open(cls, recipe: Recipe, out: Path) -> TextData:
        """Read the files; with `bpe`, train the tokenizer and encode the text once, into `out`."""
        corpus = read_corpus(recipe.data, validation=recipe.validation, length=recipe.length)
        if recipe.tokens == "bytes":
            tokenizer = byte_tokenizer(length=recipe.length, wrap=recipe.masked)
            return cls(recipe, tokenizer, corpus.training, corpus.held_out, FIRST_BYTE, corpus.sha256, corpus.stamps)
        from anisoscope.training.data.bpe import encode, train_bpe

        tokenizer = train_bpe(corpus.training, vocabulary=recipe.vocabulary, length=recipe.length, wrap=recipe.masked)
        name = digest([repr((corpus.sha256, recipe.vocabulary, recipe.validation)).encode()])[:16]
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            ids = encode(corpus.training, tokenizer, out / f"tokens-{name}.npy")
            held_out = encode(corpus.held_out, tokenizer, out / f"held-out-tokens-{name}.npy")
        check_all(corpus.stamps)
        return cls(recipe, tokenizer, ids, held_out, 0, corpus.sha256, corpus.stamps)

    @property
    def sizes(self) -> dict[str, int]:
        return {"vocabulary": len(self.processor)}

    def training(self, seed: int) -> Windows:
        first, batch = self.recipe.bad_batch, self.recipe.batch
        noise = range(0) if first is None else range((first - 1) * batch, (first - 1 + self.recipe.bad_batches) * batch)
        return self._windows(self.ids, count=self.recipe.steps * batch, seed=seed, noise=noise)

    def held_out(self) -> Windows:
        """The same windows and masks for every seed and every recipe of the same length and batch."""
        return self._windows(self.held_out_ids, count=self.recipe.validation_batches * self.recipe.batch, seed=HELD_OUT)

    def _windows(self, ids: np.ndarray, *, count: int, seed: int, noise: range = range(0)) -> Windows:
        return Windows(
            ids=ids,
            offset=self.offset,
            length=self.recipe.length,
            count=count,
            seed=seed,
            vocabulary=len(self.processor),
            wrap=self.recipe.masked,
            mask=self.recipe.mask if self.recipe.masked else None,
            noise=noise,
        )
