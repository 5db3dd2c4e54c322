"""Which positions of a state count.

A batch says which positions of its *input* are real and which are special. States have other positions: wav2vec2 makes
one frame of 320 samples, CANINE one molecule of four characters, Whisper always fills its window. This file carries the
batch's answer over to each state. Padding never counts; special tokens and prefix tokens (class, distillation,
registers) count as `specials` says.

`first` marks position 0 of each row, the place of attention sinks and massive activations: the first real position of
the window, special or not. With `specials="drop"` a first position that is a special token does not count at all, so
nothing is marked in its place. The places of a convolutional map have no order, and none is first. With
`positions="last"` only the last of the counted positions of each window is left, but for maps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.capture.families import Positions
from anisoscope.errors import ModelError

if TYPE_CHECKING:
    from anisoscope.capture.sites import Site
    from anisoscope.models.batches.plan import Batch

Specials = Literal["keep", "drop"]
WhisperWindow = Literal["speech", "all"]
Which = Literal["all", "last"]

_PAD_TO = ("attention_window", "block_size", "local_attn_chunk_length")
"""Fields of configs of models that pad texts to a multiple of it: Longformer, LED, BigBird, PEGASUS-X, Reformer."""


@dataclass(frozen=True, slots=True)
class RowIndex:
    """Where each of N vectors comes from: the row of the batch, the position in that row, whether it is its first."""

    row: NDArray[np.int64]  # (N,)
    position: NDArray[np.int64]  # (N,)
    first: NDArray[np.bool_]  # (N,)


@dataclass(frozen=True, slots=True)
class Counted:
    """The positions of a state that count: places in the flattened (B·T,) order, `None` if all do; and their index."""

    places: Tensor | None
    index: RowIndex


def count_positions(
    site: Site,
    batch: Batch,
    length: int,
    model: Any,
    *,
    specials: Specials,
    whisper_window: WhisperWindow,
    positions: Which = "all",
) -> Counted:
    """The counted positions of a state (B, length, d) at a site. `model` is the model without its head."""
    kind = _resolve(site, batch, length, model) if site.positions == "unknown" else site.positions
    valid = _valid(kind, site, batch, length, model, whisper_window)
    if valid.shape != (len(batch), length):
        got = f"{length} positions, where the mask has {valid.shape[1]}"
        raise ModelError("the state has other positions than its input", where=site.name, got=got)
    special = _special(kind, site, batch, length)
    keep = valid & ~special if specials == "drop" else valid
    if positions == "last" and kind != "map":
        keep = keep & (keep.flip(1).cumsum(1).flip(1) == 1)
    first = torch.zeros_like(valid) if kind == "map" else valid & (valid.cumsum(1) == 1)
    row, position = keep.nonzero(as_tuple=True)
    places = None if bool(keep.all()) else row * length + position
    return Counted(places, RowIndex(row.numpy(), position.numpy(), first[row, position].numpy()))


def _valid(kind: Positions, site: Site, batch: Batch, length: int, model: Any, whisper_window: WhisperWindow) -> Tensor:
    """Which positions are real, (B, length)."""
    if kind == "tokens":
        return _lengthened(batch.valid, site, length)
    if kind == "decoder":
        return _decoder(site, batch)[0]
    if kind == "molecules":
        return model._downsample_attention_mask(batch.valid, model.config.downsampling_rate).bool()
    if kind == "frames":
        return model._get_feature_vector_attention_mask(length, batch.valid.long()).bool()
    if kind == "window" and whisper_window == "speech":
        lengths = model._get_feat_extract_output_lengths(batch.valid.sum(1))  # (B,)
        return torch.arange(length) < lengths[:, None]
    return torch.ones(len(batch), length, dtype=torch.bool)


def _special(kind: Positions, site: Site, batch: Batch, length: int) -> Tensor:
    """Which positions are special, (B, length)."""
    if kind == "tokens":
        return _lengthened(batch.special, site, length)
    if kind == "decoder":
        return _decoder(site, batch)[1]
    return (torch.arange(length) < site.prefix_tokens).expand(len(batch), length)


def _lengthened(places: Tensor, site: Site, length: int) -> Tensor:
    """The places of an input as those of a state that its model padded on the right."""
    more = length - places.shape[1]
    return torch.nn.functional.pad(places, (0, more)) if more > 0 and site.positions == "unknown" else places


def _decoder(site: Site, batch: Batch) -> tuple[Tensor, Tensor]:
    if batch.decoder_valid is None or batch.decoder_special is None:
        raise ModelError(
            "the batch does not say which positions of the decoder count",
            where=site.name,
            expected="decoder_valid and decoder_special beside the decoder's input",
        )
    return batch.decoder_valid, batch.decoder_special


def _resolve(site: Site, batch: Batch, length: int, model: Any) -> Positions:
    """What the positions of a state of unknown architecture are, by their number."""
    if site.name.startswith("decoder."):
        return "decoder"
    padded = any(getattr(getattr(model, "config", None), name, None) for name in _PAD_TO)
    if length == batch.valid.shape[1] or (padded and length > batch.valid.shape[1] and "input_ids" in batch.inputs):
        return "tokens"
    if hasattr(model, "_get_feature_vector_attention_mask"):
        return "frames"
    if bool(batch.valid.all()):
        return "all"
    raise ModelError(
        "cannot tell which positions of this state are padding",
        where=site.name,
        got=f"{length} positions from an input of {batch.valid.shape[1]}, some of it padding",
        do="run the inputs one by one: --batch-tokens 1",
    )
