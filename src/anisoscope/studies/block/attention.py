"""What one attention layer does with the vectors it is given: queries, keys, scores and softmax rows, as numbers.

- scores, QKᵀ/√d_k before any bias of position, over all visible pairs, in float64: mean, standard deviation, and the
  standard deviation *within a row*, the only part that softmax can see (a term that is the same for all keys cancels);
- softmax, from the rows of `accumulate.attention.tiles`: largest, median and smallest probability of each row,
  averaged; the extremes over whole sequences (all heads and rows), averaged over sequences; the row entropy over its
  maximum log(keys).

Under a causal mask early rows see few keys, so softmax rows count from the middle of the sequence on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.accumulate.attention.tiles import CallRows, read_rows
from anisoscope.capture.attention.call import AttentionCall, grouped
from anisoscope.studies.block.architectures import check_finite

HISTOGRAM_BINS = 160
_HISTOGRAM_STRIDE = 8  # every eighth query position is enough for a density

Array = NDArray[np.float64]


@dataclass(frozen=True)
class AttentionNumbers:
    """One attention call. `edges` and `counts` are the histogram of the scores, `uniform` the mean of 1/keys."""

    scores: dict[str, float]
    softmax: dict[str, float]
    uniform: float
    by_head: Array  # (heads,) mean score
    edges: Array
    counts: NDArray[np.int64]


class FirstAttention:
    """A sink for `AttentionCapture` that keeps the first call after each `begin`: its numbers, queries and keys.

    `vectors` holds `query` and `key`, each (B, T, heads·d_head), heads side by side.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._numbers: AttentionNumbers | None = None
        self.vectors: dict[str, Tensor] = {}

    @property
    def numbers(self) -> AttentionNumbers:
        assert self._numbers is not None, "no attention layer has run"
        return self._numbers

    def __call__(self, _site: str, call: AttentionCall) -> None:
        if self._numbers is None:
            heads = {"query": call.queries, "key": call.keys}
            self.vectors = {name: part.transpose(1, 2).flatten(2) for name, part in heads.items()}
            self._numbers = attention_numbers(call)


def attention_numbers(call: AttentionCall) -> AttentionNumbers:
    """Summarise one call."""
    rows = read_rows(call)
    first = call.queries.shape[2] // 2 if call.visible is not None else 0
    uniform = (1 / rows.seen[:, first:].double()).mean().item()
    return AttentionNumbers(softmax=_softmax_numbers(rows, first), uniform=uniform, **_score_numbers(call))


def _softmax_numbers(rows: CallRows, first: int) -> dict[str, float]:
    """The probabilities of the rows from `first` on: order statistics, entropy, extremes of sequences."""
    values = {name: part[:, :, first:].double() for name, part in rows.values.items()}
    names = {f"{end}_probability": values[end] for end in ("max", "median", "min")}
    names |= {"entropy_normalised": values["entropy_normalised"]}
    names |= {"sequence_max_probability": values["max"].amax((1, 2))}
    names |= {"sequence_min_probability": values["min"].amin((1, 2))}
    return {name: part.mean().item() for name, part in names.items()}


def _score_numbers(call: AttentionCall) -> dict[str, Any]:
    """Mean and spread over all visible pairs; the spread is that within rows plus that of the rows' means."""
    found = [_sequence_scores(call, place) for place in range(len(call.queries))]
    keys, means, squares = (np.stack(parts) for parts in zip(*(one[:3] for one in found), strict=True))  # (B, heads, T)
    pairs = keys.sum()
    overall, within = (keys * means).sum() / pairs, squares.sum() / pairs
    between = (keys * np.square(means - overall)).sum() / pairs
    scores = {"mean_score": overall, "score_std": np.sqrt(within + between), "score_row_std": np.sqrt(within)}
    some = np.concatenate([one[3] for one in found])
    check_finite(bool(np.isfinite(some).all()))
    counts, edges = np.histogram(some, bins=HISTOGRAM_BINS)
    return {
        "scores": {name: float(number) for name, number in scores.items()},
        "by_head": (keys * means).sum((0, 2)) / keys.sum((0, 2)),
        "edges": edges,
        "counts": counts,
    }


def _sequence_scores(call: AttentionCall, place: int) -> tuple[Array, Array, Array, Array]:
    """Of the rows of one sequence (heads, T): keys, mean score, squares about it; and the scores of some rows."""
    assert call.scaling is not None
    one = slice(place, place + 1)
    scores = grouped(call.score_queries[one].double() * call.scaling, call.score_keys[one].double().mT)[0].numpy()
    mask = None if call.visible is None else call.visible[place if len(call.visible) > 1 else 0].numpy()
    seen = np.broadcast_to(True if mask is None else mask, scores.shape)
    keys = seen.sum(-1)
    means = np.where(seen, scores, 0.0).sum(-1) / keys
    squares = np.where(seen, np.square(scores - means[..., None]), 0.0).sum(-1)
    some = slice(None, None, _HISTOGRAM_STRIDE)
    return keys.astype(float), means, squares, scores[:, some][seen[:, some]]
