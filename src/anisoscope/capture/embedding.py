"""The vector of a whole text, from the states of its positions: the site `embedding`.

    embed(encoder, states, valid)         # states (B, T, d), valid (B, T) → (B, k)

Positions that are padding, on either side, never count; those of a prompt count unless the model says otherwise. Sums
are float32 or better, even of states in half precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anisoscope.errors import ModelError
from anisoscope.models.encoders import POOLER

if TYPE_CHECKING:
    from anisoscope.models.encoders import Encoder

SITE = "embedding"


def embed_output(encoder: Encoder, output: Any, valid: Tensor) -> Tensor:
    """One vector per input, (B, k), of what the model returned."""
    if encoder.pooling != (POOLER,):
        return embed(encoder, final_states(output), valid)
    return _through(encoder, output.pooler_output)


def embed(encoder: Encoder, states: Tensor, valid: Tensor) -> Tensor:
    """One vector per text, (B, k): pooled states (B, T, d) through the layers of the encoder."""
    if states.dim() != 3 or states.shape[:2] != valid.shape:
        got = f"states {tuple(states.shape)}, mask {tuple(valid.shape)}"
        raise ModelError("the states cannot be pooled: their positions are not those of the text", got=got)
    valid = valid.to(states.device)
    places = valid.cumsum(1)  # 1, 2, … from the first position that is no padding
    counted = valid & (places > encoder.prompt_tokens)
    vectors = torch.cat([pool(mode, states, counted, places) for mode in encoder.pooling], dim=-1)
    return _through(encoder, vectors)


def _through(encoder: Encoder, vectors: Tensor) -> Tensor:
    for layer in encoder.layers:
        vectors = layer.to(vectors.device)(vectors)
    return vectors


def pool(mode: str, states: Tensor, counted: Tensor, places: Tensor) -> Tensor:
    """The states (B, T, d) of the counted positions (B, T) as one vector each, (B, d); `places` (B, T) count from 1.

    >>> states = torch.tensor([[[1.0], [2.0], [6.0], [9.0]]])
    >>> counted = torch.tensor([[True, True, True, False]])
    >>> modes = ("cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean")
    >>> [round(pool(mode, states, counted, torch.tensor([[1, 2, 3, 3]])).item(), 3) for mode in modes]
    [1.0, 6.0, 6.0, 3.0, 5.196, 3.833]
    """
    if mode in ("cls", "lasttoken"):
        every = torch.arange(counted.shape[1], device=counted.device).expand_as(counted)
        chosen = every.where(counted, counted.shape[1]).amin(1) if mode == "cls" else every.where(counted, -1).amax(1)
        chosen = chosen.clamp(0, counted.shape[1] - 1)
        return states[torch.arange(len(states), device=states.device), chosen]
    if mode == "max":
        return states.masked_fill(~counted[..., None], -torch.inf).amax(1)
    exact = states.dtype if states.dtype == torch.float64 else torch.float32
    weights = counted.to(exact)  # (B, T)
    if mode == "weightedmean":
        weights = weights * places.to(exact)
    total = (states.to(exact) * weights[..., None]).sum(1)  # (B, d)
    size = weights.sum(1, keepdim=True).clamp(min=1e-9)
    return (total / (size.sqrt() if mode == "mean_sqrt_len_tokens" else size)).to(states.dtype)


def final_states(output: Any) -> Tensor:
    """The last states of a forward pass: of the encoder, where there is a decoder too."""
    for name in ("encoder_last_hidden_state", "last_hidden_state"):
        found = getattr(output, name, None)
        if found is not None:
            return found
    first = output if isinstance(output, Tensor) else output[0]
    if not isinstance(first, Tensor):
        raise ModelError("the model returns no states that could be pooled", got=type(output).__name__)
    return first
