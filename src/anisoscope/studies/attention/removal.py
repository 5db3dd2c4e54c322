"""What the mean key and the mean query of a layer do to its attention, by taking them away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope.capture.attention.call import AttentionCall
from anisoscope.capture.attention.capture import AttentionCapture
from anisoscope.capture.inputs import model_inputs
from anisoscope.geometry.queries_keys import removal_effect

if TYPE_CHECKING:
    from anisoscope.models.batches.plan import Batch
    from anisoscope.models.open import OpenModel

METRICS = ("mean_key_removal", "mean_query_removal")
Head = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_] | None, int]


def removal_effects(model: OpenModel, batch: Batch) -> list[list[Any]]:
    """[site, metric, value]: the greatest change of a probability on a batch, over the heads of each layer.

    The means are those of a sequence, of the vectors that are scored. Taking the key's away changes nothing but
    rounding; if it did, the rows would not be softmax(q·k).
    """
    found: dict[str, list[tuple[float, float]]] = {}

    def sink(name: str, call: AttentionCall) -> None:
        if call.scaling is not None:
            effects = (removal_effect(q, k, scaling=call.scaling, visible=seen) for q, k, seen, _ in heads_of(call))
            found.setdefault(name, []).extend(effects)

    show_attention(model, batch, sink)
    return [
        [site, metric, max(values)]
        for site, effects in found.items()
        for metric, values in zip(METRICS, zip(*effects, strict=True), strict=False)
    ]


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
