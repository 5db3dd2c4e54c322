"""The greatest logit of every head, with its query and its key, and where it was.

`Peaks` holds, for each head, the greatest score q·k·scaling over the visible pairs of rows that count, with q and k
themselves: the mean query and the mean key are known only at the end, and only then can the score be split at them
(`geometry.queries_keys.split_logit`). Scores are those of content alone, before position bias, soft cap and mask, in
float64 of the vectors as the model made them. Scores that are equal but for rounding are told apart in float64, equal
ones by where they were: the same one is found however the data is cut into batches.

Memory O(heads · d_head), constant in the corpus; time one pass over scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.accumulate.attention.heads import Positions, by_row, cached_blocks
from anisoscope.accumulate.keys import Keys
from anisoscope.accumulate.maxima import Running

_AT_ONCE = 2**22  # numbers of keys in float64 (32 MB), however many rows tie: a first token scores alike everywhere
ROUNDING = 1e-5  # scores of a row that differ by less may change places with the shape of a batch


class ScoredPairs(Positions, Protocol):
    """What `Peaks` reads of an attention call."""

    @property
    def score_queries(self) -> Tensor: ...  # (B, heads, Tq, d_head)
    @property
    def score_keys(self) -> Tensor: ...  # (B, key heads, Tk, d_head)
    @property
    def visible(self) -> Tensor | None: ...  # (B | 1, Tq | 1, Tk)
    @property
    def scaling(self) -> float | None: ...


class Peaks(Running):
    """The greatest logit of each head, with its query and its key (times scaling), and the means to split it at."""

    follows = ("query", "key")

    def __init__(self, *, query_heads: int, key_heads: int, d: int) -> None:
        heads, keys = (query_heads, d), (key_heads, d)
        shapes = {"query": heads, "key": heads, "sum_query": heads, "sum_key": keys}
        shapes |= {"square_query": heads[:1], "square_key": keys[:1]}
        sums = {name: np.zeros(shape) for name, shape in shapes.items()}
        super().__init__(query_heads, {**sums, "counts": np.zeros(3, np.int64)})  # queries, keys, visible pairs

    def update(
        self, call: ScoredPairs, peaks: Tensor, seen: Tensor, sequences: Keys, starts: NDArray[np.int64]
    ) -> None:
        """Add one call: `peaks` (B, heads, Tq) is the greatest visible score of each row, `seen` (B, Tq) its keys."""
        valid = call.valid_queries & (seen > 0)
        if not bool(valid.any()):
            return
        assert call.scaling is not None
        self._add_means(call, valid, seen, call.scaling)
        masked = (
            peaks.nan_to_num(nan=-torch.inf).masked_fill(~valid[:, None], -torch.inf).transpose(0, 1).flatten(1)
        )  # (heads, B · Tq)
        names, window = by_row(sequences, len(valid))
        begins = np.repeat(starts, len(valid) // len(starts)) + call.start
        first_query = begins + window * valid.shape[1]
        first = (first_query[:, None] + np.arange(valid.shape[1])).ravel()
        heads, place = _candidates(masked, lambda: np.lexsort((first, np.repeat(names.view(np.int64), valid.shape[1]))))
        row, query = place // peaks.shape[2], place % peaks.shape[2]
        length, d = call.score_keys.shape[2:]
        some = torch.stack([row, heads, query]).split(max(1, _AT_ONCE // (length * d)), dim=1)
        parts = [_exact(call, *part) for part in some]
        greatest, key, q, k = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
        rows, at_query, at_key, owner = (index.cpu().numpy() for index in (row, query, key, heads))
        first_key = begins[rows] + window[rows] * length
        where = np.stack([names[rows].view(np.int64), first_query[rows] + at_query, first_key + at_key], 1)
        order = np.lexsort((where[:, 1], where[:, 0], -greatest.cpu().numpy(), owner))
        best = order[np.unique(owner[order], return_index=True)[1]]  # (heads,)
        found = {name: x.cpu().numpy()[best] for name, x in {"greatest": greatest, "query": q, "key": k}.items()}
        self.take({**found, "where": where[best]})

    def _add_means(self, call: ScoredPairs, valid: Tensor, seen: Tensor, scaling: float) -> None:
        sides = (("query", call.score_queries, valid, 1.0), ("key", call.score_keys, call.valid_keys, scaling))
        for side, x, kept, scale in sides:
            for block in cached_blocks(x):
                exact, those = x[block].contiguous().double(), kept[block]  # (b, heads, T, d)
                exact = exact if bool(those.all()) else exact.masked_fill(~those[:, None, :, None], 0.0)
                flat = exact.flatten(2).unsqueeze(2)
                self.arrays[f"sum_{side}"] += exact.sum(2).sum(0).cpu().numpy() * scale
                self.arrays[f"square_{side}"] += (flat @ flat.mT).flatten(1).sum(0).cpu().numpy() * scale**2
        pairs = seen.masked_fill(~valid, 0).sum()
        self.arrays["counts"] += torch.stack([valid.sum(), call.valid_keys.sum(), pairs]).cpu().numpy()


def _candidates(peaks: Tensor, order: Callable[[], NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
    """Head and place of the greatest of each row of peaks (heads, n), and of all that rounding may have put below it.

    Of more than 64 per head the first are kept, in the order (n,) that is asked for only then.
    """
    top = peaks.amax(1, keepdim=True)
    near = peaks >= top - ROUNDING * top.abs()
    if int(near.sum(1).max()) > 64:
        places = torch.from_numpy(order()).to(peaks.device)
        kept = near[:, places]
        near = torch.zeros_like(near).scatter_(1, places.expand_as(near), kept & (kept.cumsum(1) <= 64))
    heads, place = near.nonzero(as_tuple=True)
    return heads, place


def _exact(call: ScoredPairs, row: Tensor, head: Tensor, query: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The greatest visible score of each of these rows in float64, the place of its key, the query and the key (c, d).

    Keys are times scaling; of equal ones the first is taken.
    """
    assert call.scaling is not None
    group = call.score_queries.shape[1] // call.score_keys.shape[1]
    q = call.score_queries[row, head, query].double()
    keys = call.score_keys[row, head // group].double() * call.scaling  # (c, Tk, d)
    scores = torch.einsum("cd,ckd->ck", q, keys)
    if call.visible is not None:
        shown = call.visible.expand(len(call.valid_queries), call.valid_queries.shape[1], -1)[row, query]
        scores = scores.masked_fill(~shown, -torch.inf)
    greatest, key = scores.max(1)
    return greatest, key, q, keys[torch.arange(len(key)), key]
