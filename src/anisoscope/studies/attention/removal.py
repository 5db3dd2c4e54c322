"""What the mean key and the mean query of a layer do to its attention, by taking them away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.capture.attention.call import AttentionCall
from anisoscope.capture.attention.capture import AttentionCapture
from anisoscope.capture.inputs import model_inputs

if TYPE_CHECKING:
    from anisoscope.models.batches.plan import Batch
    from anisoscope.models.open import OpenModel

METRICS = ("mean_key_removal", "mean_query_removal")
Head = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_] | None, int]


def removal_effects(model: OpenModel, batch: Batch) -> list[list[Any]]:
    """[site, metric, value]: the greatest change of a probability on a batch, over the heads of each layer.

    The means are those of a sequence, of the vectors that are scored; position biases, soft caps and masks stay.
    Without a cap, taking the key's away changes nothing but rounding; if it did, the rows would not be softmax(q·k).
    """
    found: dict[str, list[tuple[float, ...]]] = {}

    def sink(name: str, call: AttentionCall) -> None:
        if call.scaling is not None:
            found.setdefault(name, []).append(_changes(call))

    show_attention(model, batch, sink)
    return [
        [site, metric, max(values)]
        for site, effects in found.items()
        for metric, values in zip(METRICS, zip(*effects, strict=True), strict=True)
    ]


def _changes(call: AttentionCall) -> tuple[float, ...]:
    """The greatest change of a probability without the mean key, and without the mean query."""
    queries, keys = call.score_queries.double(), call.score_keys.double()
    sides = ((queries, keys), (queries, _centred(keys, call.valid_keys)), (_centred(queries, call.valid_queries), keys))
    calls = [replace(call, score_queries=q, score_keys=k, values=None, _done=set()) for q, k in sides]
    greatest = [0.0, 0.0]
    for before, *after in zip(*(one.chunks() for one in calls), strict=True):
        outside = ~call.valid_queries[before.batch, before.rows][:, None, :, None]
        for place, chunk in enumerate(after):
            moved = (chunk.probabilities - before.probabilities).abs().masked_fill(outside, 0.0)
            greatest[place] = max(greatest[place], float(moved.max()))
    return tuple(greatest)


def _centred(x: Tensor, valid: Tensor) -> Tensor:
    """Vectors (B, heads, T, d) without the mean over the valid positions (B, T) of each sequence."""
    kept = valid[:, None, :, None]
    return x - x.masked_fill(~kept, 0.0).sum(2, keepdim=True) / kept.sum(2, keepdim=True).clamp(min=1)


def show_attention(model: OpenModel, batch: Batch, sink: Callable[[str, AttentionCall], None]) -> None:
    """Run a model on one batch and show every call of attention."""
    with torch.inference_mode(), AttentionCapture(model.module, sink):
        model.module(**model_inputs(model.module, batch.inputs))


def heads_of(call: AttentionCall) -> Iterator[Head]:
    """Queries and keys of each sequence and head that are not padding, which of them are visible, and the key head."""
    queries, keys = call.score_queries.double().cpu().numpy(), call.score_keys.double().cpu().numpy()
    rows, columns = call.valid_queries.cpu().numpy(), call.valid_keys.cpu().numpy()
    visible = None if call.visible is None else call.visible.expand(len(rows), rows.shape[1], -1).cpu().numpy()
    for b, h in np.ndindex(queries.shape[:2]):
        if rows[b].any():
            seen = None if visible is None else visible[b][np.ix_(rows[b], columns[b])]
            yield queries[b, h][rows[b]], keys[b, h // call.group][columns[b]], seen, h // call.group
