"""Running maxima: the greatest logit of every head, the largest activation of every dimension, and where they were.

A maximum merges like a sum: that of two sets is the greater of their maxima, so chunks, shards and processes combine in
any order. Equal maxima are told apart by where they were (the smallest sequence key, then the positions), and those
that are equal but for rounding by their scores in float64: the same one is found however the data is cut into batches.

`Peaks` holds, for each head, the greatest score q·k·scaling over the visible pairs of rows that count, with q and k
themselves: the mean query and the mean key are known only at the end, and only then can the score be split at them
(`geometry.queries_keys.split_logit`). Scores are those of content alone, before position bias, soft cap and mask, in
float64 of the vectors as the model made them.

`Extremes` holds the largest |x| of each dimension of a cloud. Where it was is looked up only in the dimensions whose
maximum rises, and only in the blocks of rows that hold it, so that most rows cost no more than their greatest entries.

Memory O(heads · d_head) and O(d), constant in the corpus; time one pass over scores, two over activations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.accumulate.attention.heads import Positions, by_row, zeros
from anisoscope.accumulate.keys import Keys
from anisoscope.accumulate.threads import by_slices
from anisoscope.errors import StoreError

_BLOCK = 128  # rows that are looked through at a time: they stay in the cache
_WIDE = 65_536  # dimensions of flattened maps, of which there are few
_COLUMNS = 2**14  # of those at a time
_AT_ONCE = 2**22  # numbers of keys in float64 (32 MB), however many rows tie: a first token scores alike everywhere
ROUNDING = 1e-5  # scores of a row that differ by less may change places with the shape of a batch


class _Running:
    """Tensors by name: `greatest` (m,) with the `where` (m, 3) of each and what goes with it, and plain sums."""

    follows: tuple[str, ...] = ()  # tensors whose rows belong to a maximum

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def take(self, found: Mapping[str, Tensor]) -> None:
        """Take over each maximum that is greater, or equal and earlier."""
        mine, theirs = self.tensors["greatest"], found["greatest"]
        tied = theirs == mine
        better = (theirs > mine) | (
            tied & _earlier(found["where"], self.tensors["where"]) if bool(tied.any()) else False
        )
        for name in ("greatest", "where", *self.follows):
            self.tensors[name][better] = found[name][better]

    def merge(self, other: _Running) -> None:
        shapes = [{name: tuple(t.shape) for name, t in one.tensors.items()} for one in (self, other)]
        if shapes[0] != shapes[1]:
            raise StoreError("cannot join the maxima of other shapes", got=shapes[1], expected=shapes[0])
        self.take(other.tensors)
        for name in self.tensors.keys() - {"greatest", "where", *self.follows}:
            self.tensors[name] += other.tensors[name]

    def state(self) -> dict[str, Tensor]:
        return dict(self.tensors)

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        made = cls.__new__(cls)
        made.tensors = {name: tensor.clone() for name, tensor in state.items()}
        return made


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


class Peaks(_Running):
    """The greatest logit of each head, with its query and its key (times scaling), and the means to split it at."""

    follows = ("query", "key")

    def __init__(self, *, query_heads: int, key_heads: int, d: int) -> None:
        heads, keys = (query_heads, d), (key_heads, d)
        nowhere = zeros(query_heads, 3, dtype=torch.int64).fill_(torch.iinfo(torch.int64).max)
        super().__init__(
            {"greatest": zeros(query_heads).fill_(-torch.inf), "where": nowhere, "query": zeros(*heads)}
            | {"key": zeros(*heads), "sum_query": zeros(*heads), "sum_key": zeros(*keys)}
            | {"square_query": zeros(query_heads), "square_key": zeros(key_heads)}
            | {"counts": zeros(3, dtype=torch.int64)}  # queries, keys, visible pairs
        )

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
        best = torch.from_numpy(order[np.unique(owner[order], return_index=True)[1]])  # (heads,)
        found = {name: x.cpu()[best] for name, x in {"greatest": greatest, "query": q, "key": k}.items()}
        self.take(found | {"where": torch.from_numpy(where)[best]})

    def _add_means(self, call: ScoredPairs, valid: Tensor, seen: Tensor, scaling: float) -> None:
        sides = (("query", call.score_queries, valid, 1.0), ("key", call.score_keys, call.valid_keys, scaling))
        for side, x, kept, scale in sides:
            for some, those in zip(x, kept, strict=True):  # one sequence stays in the cache
                exact = some.contiguous().double()  # (heads, T, d)
                exact = exact if bool(those.all()) else exact.masked_fill_(~those[:, None], 0.0)
                flat = exact.flatten(1).unsqueeze(1)
                self.tensors[f"sum_{side}"] += exact.sum(1).cpu() * scale
                self.tensors[f"square_{side}"] += (flat @ flat.mT).flatten().cpu() * scale**2
        pairs = seen.masked_fill(~valid, 0).sum()
        self.tensors["counts"] += torch.stack([valid.sum(), call.valid_keys.sum(), pairs]).cpu()


class Extremes(_Running):
    """The largest |x| of each dimension, and where it was (sequence, position)."""

    def __init__(self, d: int) -> None:
        nowhere = zeros(d, 3, dtype=torch.int64).fill_(torch.iinfo(torch.int64).max)
        super().__init__({"greatest": zeros(d).fill_(-torch.inf), "where": nowhere})

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        return super().from_state({name: state[name] for name in ("greatest", "where")})

    def update(self, x: Tensor, sequences: Keys, positions: NDArray[np.int64]) -> None:
        """Add finite vectors x (n, d) of the given sequences and positions."""
        if not len(x):
            return
        if x.shape[1] > _WIDE:
            top, row = _tops(x, np.lexsort((positions, sequences.view(np.int64))))
            risen = torch.nonzero(top.cpu() >= self.tensors["greatest"])[:, 0]
            self._take_at(risen, top.cpu()[risen].double(), _places(row[risen], sequences, positions))
            return
        peaks = _peaks(x)
        top = peaks.amax(0)
        rising = torch.nonzero(top.cpu() >= self.tensors["greatest"])[:, 0].to(x.device)
        blocks, column = torch.nonzero(peaks[:, rising] == top[rising], as_tuple=True)  # most have one block
        if not len(blocks):
            return
        numbers, counts = torch.unique_consecutive(blocks, return_counts=True)
        columns = rising[column]
        parts = zip(numbers.tolist(), columns.split(counts.tolist()), strict=True)
        row = np.concatenate([_rows_of(x, some, top[some], number, sequences, positions) for number, some in parts])
        where = _places(row, sequences, positions).numpy()
        owner = columns.cpu().numpy()
        if len(owner) > len(rising):  # the same in several blocks: the earliest
            order = np.lexsort((where[:, 1], where[:, 0], owner))
            owner, first = np.unique(owner[order], return_index=True)
            where = where[order[first]]
        self._take_at(torch.from_numpy(owner), top.cpu().double()[owner], torch.from_numpy(where))

    def _take_at(self, columns: Tensor, greatest: Tensor, where: Tensor) -> None:
        """Take over maxima of some dimensions."""
        some = Extremes.from_state({name: tensor[columns] for name, tensor in self.tensors.items()})
        some.take({"greatest": greatest, "where": where})
        for name, tensor in some.tensors.items():
            self.tensors[name][columns] = tensor


def _places(row: NDArray[np.int64], sequences: Keys, positions: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.stack([sequences.view(np.int64), positions, np.zeros_like(positions)], 1)[row])


def _tops(x: Tensor, order: NDArray[np.int64]) -> tuple[Tensor, NDArray[np.int64]]:
    """The largest |x| of each dimension and the row that holds it, of several the first in this order.

    For few rows of many dimensions: each row meets the maxima of those before it, by blocks that stay in the cache.
    """
    top = torch.full((x.shape[1],), -1.0, dtype=x.dtype, device=x.device)
    row = torch.zeros(x.shape[1], dtype=torch.int64, device=x.device)
    room = torch.empty(_COLUMNS, dtype=x.dtype, device=x.device)
    for some, best, holder in zip(x.split(_COLUMNS, 1), *(one.split(_COLUMNS) for one in (top, row)), strict=True):
        size = room[: len(best)]
        for number in order.tolist():
            torch.abs(some[number], out=size)
            holder.masked_fill_(size > best, number)
            torch.maximum(best, size, out=best)
    return top, row.cpu().numpy()


def _rows_of(
    x: Tensor, columns: Tensor, top: Tensor, block: int, sequences: Keys, positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The row of a block that holds the largest |x| of each of some dimensions; of several the earliest."""
    start, rows = block * _BLOCK, slice(block * _BLOCK, (block + 1) * _BLOCK)
    some = x[rows].abs() if len(columns) == x.shape[1] else x[rows].index_select(1, columns).abs_()
    marked = some == top
    if int(marked.count_nonzero()) == len(columns):
        return start + marked.byte().argmax(0).cpu().numpy()
    order = np.lexsort((positions[rows], sequences[rows].view(np.int64)))
    return start + order[marked[torch.from_numpy(order).to(x.device)].byte().argmax(0).cpu().numpy()]


def _peaks(x: Tensor) -> Tensor:
    """The largest |x| of each dimension in each block of rows, (blocks, d)."""
    peaks = torch.empty(-(-len(x) // _BLOCK), x.shape[1], dtype=x.dtype, device=x.device)

    def look(some: slice) -> None:
        room = torch.empty(min(_BLOCK, len(x)), x.shape[1], dtype=x.dtype, device=x.device)
        for number, rows in enumerate(x[some.start * _BLOCK : some.stop * _BLOCK].split(_BLOCK), some.start):
            torch.amax(torch.abs(rows, out=room[: len(rows)]), 0, out=peaks[number])

    by_slices(look, len(peaks), device=x.device)
    return peaks


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


def _earlier(a: Tensor, b: Tensor) -> Tensor:
    """Whether each row of integers a (m, k) comes before that of b in lexical order."""
    differs = a != b
    first = differs.int().argmax(1, keepdim=True)
    return (a.gather(1, first) < b.gather(1, first)).squeeze(1)
