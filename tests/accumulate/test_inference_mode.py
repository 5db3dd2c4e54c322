"""Sums that a capture makes in inference mode are ordinary sums."""

from __future__ import annotations

import numpy as np
import torch

from anisoscope.accumulate.attention.heads import Heads
from anisoscope.accumulate.attention.rows import Rows
from anisoscope.accumulate.moments import Moments
from anisoscope.capture.attention.call import AttentionCall

KEYS = np.array([11, 22], dtype=np.uint64)


def call() -> AttentionCall:
    """Two sequences of five positions, two heads that share one key head."""
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(2, heads, 5, 4, generator=generator) for heads in (2, 1))
    valid = torch.ones(2, 5, dtype=torch.bool)
    return AttentionCall(
        queries=queries,
        keys=keys,
        kind="self",
        valid_queries=valid,
        valid_keys=valid,
        visible=None,
        scaling=0.5,
        score_queries=queries,
        score_keys=keys,
    )


def test_moments_made_in_inference_mode_can_be_added_to_after_it() -> None:
    with torch.inference_mode():
        moments = Moments(3)
        moments.update(torch.eye(3), sequences=np.zeros(3, dtype=np.uint64))
    other = Moments(3)
    other.update(torch.eye(3), sequences=np.ones(3, dtype=np.uint64))
    moments.merge(other)
    moments.update(torch.eye(3), sequences=np.zeros(3, dtype=np.uint64))
    assert moments.sums().n == 9


def test_heads_and_rows_made_in_inference_mode_can_be_added_to_after_it() -> None:
    with torch.inference_mode():
        heads, rows = Heads.like(call()), Rows.like(call())
        heads.update(call(), KEYS)
        rows.update(call(), KEYS)
    other_heads, other_rows = Heads.like(call()), Rows.like(call())
    other_heads.update(call(), KEYS + np.uint64(2))
    other_rows.update(call(), KEYS + np.uint64(2))
    heads.merge(other_heads)
    rows.merge(other_rows)
    heads.update(call(), KEYS + np.uint64(4))
    rows.update(call(), KEYS + np.uint64(4))
    assert int(heads.queries.n.sum()) == int(heads.keys.n.sum()) == int(rows.sums["rows"].sum()) == 30
    torch.testing.assert_close(heads.queries.second, 3 * other_heads.queries.second)
    torch.testing.assert_close(rows.sums["entropy"].sum(0), 3 * other_rows.sums["entropy"].sum(0))
