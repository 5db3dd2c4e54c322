"""What one attention layer does with the vectors it is given: queries, keys, scores and softmax rows, as numbers.

Over the pairs that the mask lets through:

- scores, QKᵀ/√d_k before any bias of position: mean, standard deviation, and the standard deviation *within a row*, the
  only part that softmax can see (a term that is the same for all keys cancels);
- softmax: largest, median and smallest probability of each row, averaged; the extremes over whole sequences (all heads
  and rows), averaged over sequences; the row entropy over its maximum log(keys).

Under a causal mask early rows see few keys, so softmax rows count from the middle of the sequence on. Everything is
gathered tile by tile while the model runs (`capture.attention`).

Cost: a sort of the probabilities, about a tenth of the block at BERT-base sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.capture.attention.call import AttentionCall, RowChunk

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


@dataclass
class _Gathered:
    """Rows of all tiles, each array (b, heads, q) or (b,)."""

    keys: list[Array] = field(default_factory=list)
    mean: list[Array] = field(default_factory=list)
    within: list[Array] = field(default_factory=list)
    extremes: list[tuple[slice, Array, Array]] = field(default_factory=list)
    rows: dict[str, list[Array]] = field(default_factory=dict)
    uniform: list[Array] = field(default_factory=list)
    sample: list[Array] = field(default_factory=list)


def attention_numbers(call: AttentionCall) -> AttentionNumbers:
    """Summarise one call, walking its tiles once."""
    found = _Gathered()
    batch, length = call.queries.shape[0], call.queries.shape[2]
    first_row = length // 2 if call.visible is not None else 0
    for chunk in call.chunks():
        _gather_scores(chunk, found)
        if chunk.rows.start + chunk.content.shape[2] > first_row:
            _gather_rows(chunk, max(first_row - chunk.rows.start, 0), found)
    edges, counts = _histogram(found.sample)
    scores, by_head = _score_numbers(found)
    softmax = {name: float(np.mean(np.concatenate(values))) for name, values in found.rows.items()}
    largest, smallest = np.zeros(batch), np.ones(batch)
    for rows, high, low in found.extremes:
        largest[rows], smallest[rows] = np.maximum(largest[rows], high), np.minimum(smallest[rows], low)
    softmax |= {"sequence_max_probability": float(largest.mean()), "sequence_min_probability": float(smallest.mean())}
    uniform = float(np.concatenate(found.uniform).mean())
    return AttentionNumbers(scores, softmax, uniform, by_head, edges, counts)


def _gather_scores(chunk: RowChunk, found: _Gathered) -> None:
    """Mean of each row, spread within it, how many keys it sees; and scores of some rows for the histogram."""
    content = chunk.content
    if chunk.visible is None:
        keys = torch.tensor(float(content.shape[-1]))
        mean = content.mean(-1, keepdim=True)
        within = (content - mean).square_().sum(-1)
    else:
        weight = chunk.visible.to(content.dtype)
        keys = weight.sum(-1)  # (b | 1, 1, q)
        mean = (content * weight).sum(-1, keepdim=True) / keys[..., None]
        within = ((content - mean).square_() * weight).sum(-1)
    found.keys.append(keys.expand(content.shape[:3]).double().numpy())
    found.mean.append(mean[..., 0].double().numpy())
    found.within.append(within.double().numpy())
    some = slice(-chunk.rows.start % _HISTOGRAM_STRIDE, None, _HISTOGRAM_STRIDE)
    kept = content[:, :, some]
    if chunk.visible is not None:
        kept = kept[chunk.visible.expand(content.shape)[:, :, some]]
    found.sample.append(kept.flatten().numpy())


def _gather_rows(chunk: RowChunk, start: int, found: _Gathered) -> None:
    """The softmax rows of a tile from row `start` on: order statistics, entropy, extremes."""
    rows = chunk.probabilities[:, :, start:]
    b, heads, q, width = rows.shape
    if chunk.visible is None:
        keys = np.full((b, 1, q), width)
    else:
        keys = chunk.visible.expand(b, 1, chunk.content.shape[2], width)[:, :, start:].sum(-1).numpy()
    ordered = np.sort(rows.numpy(), axis=-1)  # hidden keys have probability 0 and come first
    first = np.broadcast_to(width - keys, (b, heads, q))
    smallest, lower, upper = (
        np.take_along_axis(ordered, place[..., None], -1)[..., 0].astype(float)
        for place in (first, first + (keys - 1) // 2, first + keys // 2)
    )
    largest = ordered[..., -1].astype(float)
    entropy = torch.special.entr(rows).sum(-1).double().numpy() / np.log(keys)
    numbers = {"max_probability": largest, "median_probability": (lower + upper) / 2, "min_probability": smallest}
    for name, values in (numbers | {"relative_entropy": entropy}).items():
        found.rows.setdefault(name, []).append(values.ravel())
    found.extremes.append((chunk.batch, largest.max((1, 2)), smallest.min((1, 2))))
    found.uniform.append((1 / np.broadcast_to(keys, (b, heads, q))).ravel())


def _score_numbers(found: _Gathered) -> tuple[dict[str, float], Array]:
    """Mean and spread over all visible pairs; the spread is that within rows plus that of the rows' means."""
    keys, means = (_heads_first(parts) for parts in (found.keys, found.mean))  # (heads, rows)
    pairs = keys.sum()
    overall = (keys * means).sum() / pairs
    within = _heads_first(found.within).sum() / pairs
    between = (keys * np.square(means - overall)).sum() / pairs
    numbers = {
        "mean_score": float(overall),
        "score_std": float(np.sqrt(within + between)),
        "score_row_std": float(np.sqrt(within)),
    }
    return numbers, (keys * means).sum(1) / keys.sum(1)


def _heads_first(tiles: list[Array]) -> Array:
    return np.concatenate([tile.swapaxes(0, 1).reshape(tile.shape[1], -1) for tile in tiles], axis=1)


def _histogram(sample: list[Array]) -> tuple[Array, NDArray[np.int64]]:
    counts, edges = np.histogram(np.concatenate(sample), bins=HISTOGRAM_BINS)
    return edges.astype(np.float64), counts.astype(np.int64)
