"""The tiles of an attention call, put together."""

from __future__ import annotations

from torch import Tensor

from anisoscope.capture.attention.call import AttentionCall


def probabilities(call: AttentionCall) -> Tensor:
    """(B, heads, Tq, Tk)."""
    batch, heads, queries, _ = call.score_queries.shape
    whole = call.score_queries.new_zeros(batch, heads, queries, call.score_keys.shape[2])
    for chunk in call.chunks():
        whole[chunk.batch, :, chunk.rows, : chunk.probabilities.shape[-1]] = chunk.probabilities
    return whole
