"""An observer that keeps the text of sampled vectors (`--keep-text`): a token in its context, or the whole document.

    observers["texts"] = TextSums(capacity=4096)      # beside hidden states or attention, with their seed
    observers["texts"].parts["tokens"].of(sample.keys, sample.positions)

`tokens` belongs to the sites whose positions are those of the tokens, `embedding` to the vector of a whole text.
Models whose states have other positions (CANINE's molecules, pooled blocks) keep none, with a note.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from anisoscope.accumulate.keys import sequence_keys
from anisoscope.capture.sites import find_sites
from anisoscope.models.processors import MissingTokenizer
from anisoscope.runs.work.clouds import TOKENS, KeptTexts, excerpt
from anisoscope.runs.work.collected import Watching

if TYPE_CHECKING:
    from torch import Tensor

    from anisoscope.models.batches.plan import Batch
    from anisoscope.models.open import OpenModel

DOCUMENTS = "embedding"
CONTEXT = 40  # characters on each side of a token
_TOKENWISE = {"tokens", "decoder", "unknown"}


class TextSums(KeptTexts, Watching):
    """The texts of what reservoirs of the same seed, and of at most this capacity, hold."""

    def __init__(self, *, capacity: int = 4096, seed: int = 0, specials: str = "keep") -> None:
        super().__init__(capacity=capacity, seed=seed)
        self.specials, self._refused = specials, ""

    def prepare(self, model: OpenModel, batch: Batch) -> None:
        if model.modality != "text" or isinstance(_tokenizer(model), MissingTokenizer):
            self._refused = "no text was kept: the model reads no text"
        elif _ids(batch).ndim != 2 or not {site.positions for site in find_sites(model.module)} <= _TOKENWISE:
            self._refused = "no text was kept: the states of this model are not those of single tokens"

    def watch(self, model: OpenModel, batch: Batch) -> AbstractContextManager[Any]:
        if not self._refused:
            self._take(_tokenizer(model), batch, whole=model.encoder is not None)
        return nullcontext()

    def _take(self, tokenizer: Any, batch: Batch, *, whole: bool) -> None:
        ids = _ids(batch)
        counted = batch.valid & ~batch.special if self.specials == "drop" else batch.valid
        row, place = (index.numpy() for index in counted.nonzero(as_tuple=True))
        keys, starts = sequence_keys(batch.keys), np.array(batch.starts, dtype=np.int64)
        words = batch.valid & ~batch.special

        def in_context(k: int) -> str:
            return token_in_context(tokenizer, ids[row[k]].tolist(), words[row[k]].tolist(), int(place[k]))

        self.texts(TOKENS).offer(keys[row], starts[row] + place, in_context)
        begins = np.flatnonzero(starts == 0)
        if whole and len(begins):

            def document(k: int) -> str:
                return excerpt(tokenizer.decode(ids[begins[k]][words[begins[k]]].tolist()))

            self.texts(DOCUMENTS).offer(keys[begins], keys[begins].view(np.int64), document)

    def about(self) -> dict[str, Any]:
        words = f"kept for at most {self.made['capacity']:,} sampled vectors (--keep-text)"
        if self._refused:
            return {"protocol": {}, "sites": [], "notes": [self._refused]}
        return {
            "protocol": {"text": words},
            "sites": [],
            "notes": ["this run holds excerpts of its data (--keep-text)"],
        }


def token_in_context(tokenizer: Any, ids: list[int], words: list[bool], place: int) -> str:
    """The token at a place in brackets, between the words around it."""
    near = range(max(0, place - CONTEXT), place), range(place + 1, min(place + 1 + CONTEXT, len(ids)))
    before, after = (tokenizer.decode([ids[k] for k in side if words[k]]) for side in near)
    return f"{before[-CONTEXT:]}⟦{tokenizer.decode([ids[place]])}⟧{after[:CONTEXT]}"


def _tokenizer(model: OpenModel) -> Any:
    return getattr(model.processor, "tokenizer", model.processor)


def _ids(batch: Batch) -> Tensor:
    return next(iter(batch.inputs.values()))
