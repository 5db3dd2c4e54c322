"""Documents to windows of tokens.

A document is tokenised whole and cut into consecutive windows of `length` tokens, the special tokens included: each
window gets its own, as the tokenizer would give them to a short text. So every token of the document is in exactly one
window, and every window looks to the model like a text of its own. The last window of a document may be short.

A document that consists of token ids is cut in the same way, without a tokenizer and without special tokens.

Padding is on the right and masked. It would still change the real positions of some families (`UNPADDED`: the last
molecule of CANINE reaches into it, Funnel pools it), so that only windows of one length share a batch there; and of
MANTa, whose blocks depend on the whole batch, so that each window runs alone. The decoder of an encoder-decoder reads
the same window shifted right behind its start token.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import ModelError, UsageError
from anisoscope.models.batches.plan import Batch, Selection, Window, main_input
from anisoscope.models.processors import MissingTokenizer, check_ids, vocabulary_rows

if TYPE_CHECKING:
    from anisoscope.inputs.sources import Document
    from anisoscope.models.open import OpenModel

DEFAULT_LENGTH = 512


class TextFeed:
    look_ahead = 128
    keeps = True

    def __init__(self, model: OpenModel, items: Selection, *, length: float | None, first: bool = False) -> None:
        self.items, self.first = items, first
        self.tokenizer = getattr(model.processor, "tokenizer", model.processor)
        self.config, self.main_input = getattr(model.module, "config", None), main_input(model.module)
        self.rows = vocabulary_rows(model.module)
        self.encoder = model.encoder
        self.front, self.back = ([], []) if self._only_ids() else special_ends(self.tokenizer)
        self.length = _window_length(length, model, len(self.front) + len(self.back))
        taken = inspect.signature(model.module.forward).parameters
        self.decodes, self.masks = "decoder_input_ids" in taken, "attention_mask" in taken
        self.shares = _shares(model.family, self.masks)
        self.minimum = getattr(self.config, "downsampling_rate", 1) if model.family == "canine" else 1
        cut = "to their first" if first else "into windows of at most"
        self.protocol = {
            "windows": f"documents cut {cut} {self.length} tokens, special tokens included",
            "batches": self.shares,
        }
        if self.encoder is not None and self.encoder.prompt:
            self.protocol["prompt"] = repr(self.encoder.prompt)
        if self.decodes:
            self.protocol["decoder"] = "the same window, shifted right behind the start token"

    def _only_ids(self) -> bool:
        """Whether the model has no tokenizer, and the data needs none."""
        if not isinstance(self.tokenizer, MissingTokenizer):
            return False
        return getattr(next(iter(self.items.source), None), "ids", None) is not None

    def expected(self) -> int | None:
        return None

    def windows(self, tally: Counter[str]) -> Iterator[Window]:
        for document in self.items:
            tally["documents"] += 1
            tokens, front, back = self._tokens(document)
            tally["empty"] += not len(tokens)
            ends = len(front) + len(back)
            room = self.length - ends
            starts = range(0, len(tokens), room)
            for number, start in enumerate(starts[:1] if self.first else starts):
                ids = np.asarray([*front, *tokens[start : start + room], *back], dtype=np.int32)  # (T,) or (T, 50)
                if len(ids) < self.minimum:
                    tally["too_short"] += 1
                    continue
                place = start + number * ends  # the special tokens of earlier windows have places too
                form = {_PADDED: None, _EQUAL: len(ids), _ALONE: (document.key, place)}[self.shares]
                size, whole = len(ids), len(tokens) <= room
                yield Window(document.key, place, (ids, len(front), len(back)), size, size, form, whole)

    def _tokens(self, document: Document) -> tuple[Any, list[Any], list[Any]]:
        """The ids of a document, and what stands before and behind each of its windows: nothing, where it is ids."""
        given = getattr(document, "ids", None)
        if given is not None:
            check_ids(given, self.rows, where=f"document {document.key}")
            if self.encoder is not None and self.encoder.prompt:
                raise UsageError("a prompt goes before a text, not before token ids", got=self.encoder.prompt)
            return given, [], []
        tokens = self.tokenizer(self._led(document.text), add_special_tokens=False, verbose=False)["input_ids"]
        check_ids(tokens, self.rows, where=f"document {document.key}")
        return tokens, self.front, self.back

    def _led(self, text: str) -> str:
        """The text behind its prompt, as the encoder of a sentence reads it."""
        if self.encoder is None:
            return text
        led = self.encoder.prompt + text
        return led.lower() if self.encoder.lower else led

    def collate(self, windows: list[Window]) -> Batch:
        lengths, fronts, backs = (
            torch.tensor(column)[:, None]  # (B, 1)
            for column in zip(*((window.length, *window.data[1:]) for window in windows), strict=True)
        )
        places = torch.arange(int(lengths.max()))
        valid = places < lengths  # (B, T)
        special = valid & ((places < fronts) | (places >= lengths - backs))
        ids = self._padded(windows, len(places))
        inputs = {self.main_input: ids} | ({"attention_mask": valid.long()} if self.masks else {})
        keys, starts = [window.key for window in windows], [window.start for window in windows]
        if not self.decodes:
            return Batch(inputs, keys, starts, valid, special)
        inputs |= {"decoder_input_ids": _shifted(ids, start_token(self.config)), "decoder_attention_mask": valid.long()}
        return Batch(inputs, keys, starts, valid, special, valid, _shifted(special, True) & valid)

    def _padded(self, windows: list[Window], width: int) -> Tensor:
        pad = _pad_id(self.tokenizer)
        ids = torch.full((len(windows), width, *windows[0].data[0].shape[1:]), pad)  # (B, T) or (B, T, 50)
        for row, window in zip(ids, windows, strict=True):
            row[: window.length] = torch.from_numpy(window.data[0])
        return ids


_PADDED = "windows of similar length share a batch, padded on the right"
_EQUAL = "only windows of equal length share a batch: padding would change the states"
_ALONE = "one window at a time: a batch would change the states"


UNPADDED = {  # families of transformers in which padding changes real positions, although it is masked
    "big_bird",  # which blocks a block sees at random depends on how many there are
    "bigbird_pegasus",
    "canine",  # the last molecule reaches into it
    "convbert",  # so do convolutions
    "funnel",  # neighbours are pooled
    "mobilebert",  # the embedding of a token holds that of the next
    "nystromformer",  # landmarks are means over everything
    "reformer",  # chunks and buckets reach around the end
    "yoso",
}


def _shares(family: str, masks: bool) -> str:
    if family == "manta":
        return _ALONE
    return _EQUAL if family in UNPADDED or not masks else _PADDED


def special_ends(tokenizer: Any) -> tuple[list[Any], list[Any]]:
    """The ids that a tokenizer puts before and after every text.

    >>> from transformers import ByT5Tokenizer
    >>> special_ends(ByT5Tokenizer())
    ([], [1])
    """
    if not callable(tokenizer):
        raise ModelError("a text model needs its tokenizer", got=type(tokenizer).__name__, do="pass it as processor=")
    encode: Callable[..., Any] = tokenizer
    bare, full = [], []
    for text in _PROBES:
        bare, full = list(encode(text, add_special_tokens=False)["input_ids"]), list(encode(text)["input_ids"])
        for at in range(len(full) - len(bare) + 1):
            if bare and full[at : at + len(bare)] == bare:
                return full[:at], full[at + len(bare) :]
    raise ModelError("cannot tell the special tokens of this tokenizer", got=f"{full} with them, {bare} without")


_PROBES = ("a", "C", "0")  # tokenizers of formulas and numbers drop what they do not know: SMILES has no a


def start_token(config: Any) -> int:
    """What the decoder's input begins with."""
    names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    return next((value for name in names if (value := getattr(config, name, None)) is not None), 0)


def _window_length(length: float | None, model: OpenModel, ends: int) -> int:
    cut = None if model.encoder is None else model.encoder.limit
    if length is None:
        return min(cut or DEFAULT_LENGTH, model.limit or cut or DEFAULT_LENGTH)
    if length != int(length) or length <= ends:
        got, expected = f"{length} tokens", f"a whole number above {ends}, the special tokens of a window"
        raise UsageError("a window is too short for its special tokens", where=model.name, got=got, expected=expected)
    if cut is not None and length > cut:
        raise UsageError(
            "windows longer than the texts that the model embeds",
            where=model.name,
            got=f"{int(length)} tokens",
            expected=f"at most {cut}, its max_seq_length",
            do="--pool none measures the layers without the embedding",
        )
    if model.limit is not None and length > model.limit:
        raise UsageError(
            "windows longer than the model reads",
            where=model.name,
            got=f"{int(length)} tokens",
            expected=f"at most {model.limit}",
        )
    return int(length)


def _pad_id(tokenizer: Any) -> int:
    """The padding id; CharacterBERT pads with 50 zeros. Models without one mask the padding, whatever it is."""
    pad = getattr(tokenizer, "pad_token_id", None)
    return pad if isinstance(pad, int) else 0


def _shifted(rows: Tensor, start: int | bool) -> Tensor:
    """The rows moved one place to the right, behind `start`."""
    return torch.cat([torch.full_like(rows[:, :1], start), rows[:, :-1]], dim=1)
