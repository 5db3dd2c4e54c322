"""The output of a language model: where its logits are made, from what, and what they should predict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from anisoscope.models.batches.plan import Batch

SITE = "logits"
_LOGITS = 2**26  # numbers in a batch of logits, by default: 256 MB, and two of them may be held
_POSITIONS = 8192


def output_head(module: nn.Module) -> Any:
    """The layer that makes logits of the last state; None for bare models and for encoder-decoders."""
    find = getattr(module, "get_output_embeddings", None)
    if not callable(find) or getattr(getattr(module, "config", None), "is_encoder_decoder", False):
        return None
    return find()


def batch_positions(module: nn.Module) -> int:
    """How many positions a batch may have so that its logits stay small."""
    head = output_head(module)
    vocabulary = 1 if head is None else len(head.weight)
    return max(1, min(_POSITIONS, _LOGITS // vocabulary))


@contextmanager
def head_input(module: nn.Module) -> Iterator[list[Tensor]]:
    """Within this context a forward pass leaves what enters the head in the list."""
    kept: list[Tensor] = []
    hook = output_head(module).register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    try:
        yield kept
    finally:
        hook.remove()


def next_tokens(module: nn.Module, batch: Batch, labels: Tensor | None = None) -> Tensor | None:
    """What each position (B, T) should predict, −100 for nothing; None where that is not known.

    A causal model predicts the next token, or the next of the given labels; a masked one its labels.
    """
    masked = "Masked" in type(module).__name__
    if labels is None:
        ids = batch.inputs.get("input_ids")
        if masked or ids is None:
            return None
        labels = torch.where(batch.valid & ~batch.special, ids, -100)
    if masked:
        return labels
    return torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], 1)
