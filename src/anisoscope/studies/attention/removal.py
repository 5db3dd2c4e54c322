"""What the mean key and the mean query of a layer do to its attention, by taking them away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from anisoscope.capture.attention.call import AttentionCall
from anisoscope.capture.attention.capture import AttentionCapture
from anisoscope.capture.inputs import model_inputs
from anisoscope.geometry.queries_keys import RemovalEffect, removal_effect

if TYPE_CHECKING:
    from anisoscope.models.batches.plan import Batch
    from anisoscope.models.open import OpenModel


def removal_effects(model: OpenModel, batch: Batch) -> dict[str, RemovalEffect]:
    """What the mean key and the mean query of each layer do to its attention on a batch: the greatest over its heads.

    The means are those of a sequence, of the vectors that are scored. Taking the key's away changes nothing but
    rounding; if it did, the rows would not be softmax(q·k).
    """
    found: dict[str, list[RemovalEffect]] = {}

    def sink(name: str, call: AttentionCall) -> None:
        if call.scaling is not None:
            found.setdefault(name, []).extend(_removals(call))

    with torch.inference_mode(), AttentionCapture(model.module, sink):
        model.module(**model_inputs(model.module, batch.inputs))
    return {
        name: RemovalEffect(max(effect.key for effect in effects), max(effect.query for effect in effects))
        for name, effects in found.items()
    }


def _removals(call: AttentionCall) -> list[RemovalEffect]:
    assert call.scaling is not None
    effects: list[RemovalEffect] = []
    queries, keys = call.score_queries.double().cpu().numpy(), call.score_keys.double().cpu().numpy()
    rows, columns = call.valid_queries.cpu().numpy(), call.valid_keys.cpu().numpy()
    for b, h in np.ndindex(queries.shape[:2]):
        visible = None
        if call.visible is not None:
            whole = call.visible.expand(len(rows), rows.shape[1], -1)[b].cpu().numpy()
            visible = whole[np.ix_(rows[b], columns[b])]
        if rows[b].any():
            q, k = queries[b, h][rows[b]], keys[b, h // call.group][columns[b]]
            effects.append(removal_effect(q, k, scaling=call.scaling, visible=visible))
    return effects
