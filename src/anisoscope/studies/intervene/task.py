"""The task of a model while interventions act on it: its inputs, and the tokens that it has to predict.

A causal model is asked for the next token at every position; a masked one for 15 % of the tokens, chosen by a hash of
their place in the text, so that every intervention, and every later run, asks for the same ones. A model without a head
is asked nothing, nor is an encoder-decoder (what its decoder should say is not in the text), a masked model whose
tokenizer has no token for the mask, or one that reads words as characters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.accumulate.keys import group_of, priority, sequence_keys
from anisoscope.capture.inputs import model_inputs
from anisoscope.capture.output import output_head

if TYPE_CHECKING:
    from anisoscope.models.batches.plan import Batch
    from anisoscope.models.open import OpenModel

MASKED = 0.15


@dataclass(frozen=True)
class Task:
    """A batch with its question: labels (B, T) are −100 where nothing is asked, None where there is nothing to ask.

    `inputs` are where the model is.
    """

    batch: Batch
    inputs: dict[str, Any]
    labels: Tensor | None
    sequences: np.ndarray  # (B,) the key of each row's sequence

    @property
    def groups(self) -> np.ndarray:
        """The jackknife group of each row, (B,)."""
        return group_of(self.sequences)


def make_task(model: OpenModel, batch: Batch) -> Task:
    """The question that a model is asked about a batch."""
    inputs, labels = _question(model, batch)
    return Task(batch, model_inputs(model.module, inputs), labels, sequence_keys(batch.keys))


def _question(model: OpenModel, batch: Batch) -> tuple[dict[str, Tensor], Tensor | None]:
    """The inputs, some tokens masked where the model is a masked one, and the labels."""
    ids = batch.inputs.get("input_ids")
    masked, mask_token = "Masked" in type(model.module).__name__, getattr(model.processor, "mask_token_id", None)
    if ids is None or ids.dim() > 2 or output_head(model.module) is None:
        return batch.inputs, None
    asked = torch.where(batch.valid & ~batch.special, ids, -100)
    if not masked:  # causal: position t is asked for token t + 1
        labels = torch.full_like(asked, -100)
        labels[:, :-1] = asked[:, 1:]
        return batch.inputs, labels
    if mask_token is None:  # it sees whatever it could be asked
        return batch.inputs, None
    chosen = _chosen(sequence_keys(batch.keys), batch.starts, ids.shape[1]) & (asked >= 0)
    return {**batch.inputs, "input_ids": torch.where(chosen, mask_token, ids)}, torch.where(chosen, ids, -100)


def _chosen(keys: np.ndarray, starts: list[int], length: int) -> Tensor:
    """Which positions (B, T) are masked: the same of a text in every run, however it is batched."""
    places = np.array(starts)[:, None] + np.arange(length)
    hashed = priority(np.repeat(keys, length), places.ravel(), seed=15).reshape(places.shape)
    return torch.from_numpy(hashed < np.uint64(MASKED * 2**64))
