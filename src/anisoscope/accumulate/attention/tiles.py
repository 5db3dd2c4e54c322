"""What the rows of one attention call say: one number per row and statistic, made tile by tile.

The statistics are those that `rows` sums; `spread` adds what the scores of a row vary by. A tile is in the processor's
cache when it comes, so everything that is wanted of it is computed at once: some 9 ns a score in all, most of it the
median and the histogram.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from anisoscope.accumulate.attention.peaks import ScoredPairs
from anisoscope.accumulate.attention.score_bins import CELLS, count_cells
from anisoscope.accumulate.attention.spread import Block, Chunk, RowSpread, SharedSpread
from anisoscope.accumulate.threads import by_slices, shared_out
from anisoscope.geometry.rows import middle_pair

COLLAPSED = 0.1  # a row with less than this share of the entropy of uniform attention has collapsed
ONE_KEY = 0.99  # a row with a probability above this is on one key


class Scored(ScoredPairs, Protocol):
    """What `Rows` reads of an attention call (`capture.attention.call.AttentionCall`)."""

    @property
    def kind(self) -> str: ...
    def blocks(self) -> list[slice]: ...
    def chunks(self, block: slice | None = None) -> Iterable[Chunk]: ...


@dataclass(frozen=True)
class CallRows:
    """The rows of one call. `values[name]` is (B, heads, Tq); rows that are not `counted` hold anything."""

    seen: Tensor  # (B, Tq) how many keys each row sees
    counted: Tensor  # (B, Tq) valid rows that see more than one key
    values: dict[str, Tensor]
    cells: Tensor  # (heads, cells) histogram of the content scores of counted rows
    query: Tensor  # (B, heads, d_head) Σ q_i
    spread: Tensor  # (B, key heads, d_head, d_head) Σ C_i
    spread_query: Tensor  # (B, heads, d_head) Σ C_i q_i


def read_rows(call: Scored) -> CallRows:
    """Walk the tiles of a call once: some sequences, all their rows, the next sequences."""
    scaling = call.scaling
    assert scaling is not None
    batch, heads, queries, _ = call.score_queries.shape
    keys = call.score_keys.shape[2]
    seen_keys = _seen_keys(call)
    seen = call.visible.sum(-1).expand(batch, queries) if call.visible is not None else _full(call, batch, queries)
    counted = call.valid_queries & (seen > 1)
    first = seen_keys.int().argmax(1)  # (B,)
    own = call.kind == "self" and queries == keys
    spread_of = SharedSpread if call.visible is None or call.visible.shape[1] == 1 else RowSpread
    values: dict[str, Tensor] = {}

    def work(some: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The sums of one block of sequences; what its rows say is put into `values`."""
        scored, read = (x[some].contiguous() for x in (call.score_queries, call.score_keys))
        block = Block(scored, read, seen[some], counted[some], seen_keys[some])
        spread, cells = spread_of(block, scaling), torch.zeros(heads, CELLS, dtype=torch.int64)
        for chunk in call.chunks(some):
            tile = _tile_statistics(chunk, seen[some, chunk.rows], first[some], own=own) | spread.take(chunk)
            _count(chunk, counted[some, chunk.rows], cells)
            for name, value in tile.items():
                if name not in values:
                    values.setdefault(name, value.new_empty(batch, heads, queries))
                values[name][some, :, chunk.rows] = value
        return cells, *spread.sums()

    blocks = call.blocks()
    if len(blocks) < torch.get_num_threads():  # too few to give each thread its own: all work on each
        found = [work(block) for block in blocks]
    else:
        with shared_out():
            parts = by_slices(
                lambda some: [work(block) for block in blocks[some]],
                len(blocks),
                among=None if seen.device.type == "cpu" else 1,
            )
        found = [one for part in parts for one in part]
    cells, *sums = zip(*found, strict=True)
    query, spreads, pulls = (torch.cat(parts) for parts in sums)
    return CallRows(seen, counted, values, torch.stack(cells).sum(0), query, spreads, pulls)


def _full(call: Scored, batch: int, queries: int) -> Tensor:
    return torch.full((batch, queries), call.score_keys.shape[2], device=call.score_keys.device)


def _seen_keys(call: Scored) -> Tensor:
    """Which keys any row sees, (B, Tk)."""
    batch, _, keys, _ = call.score_keys.shape
    if call.visible is None:
        return torch.ones(batch, keys, dtype=torch.bool, device=call.score_keys.device)
    return call.visible.any(1).expand(batch, keys)


def _tile_statistics(chunk: Chunk, seen: Tensor, first: Tensor, *, own: bool) -> dict[str, Tensor]:
    """Statistics (b, heads, q) of the probabilities of a tile."""
    p, visible = chunk.probabilities, chunk.visible
    below = None if visible is None else _at(~visible, -torch.inf, p)
    many = seen.unsqueeze(1)  # (b, 1, q)
    mean_logit = torch.einsum("bhqk,bhqk->bhq", p, chunk.logits)
    tiny = torch.finfo(p.dtype).tiny
    if chunk.total is None:
        entropy = -chunk.greatest.log() - mean_logit  # log p = log greatest + logit
    else:  # of the row divided by its sum; a row may be all but empty
        total = chunk.total.clamp(min=tiny)
        entropy = (total / chunk.greatest.clamp(min=tiny)).log() - mean_logit / total
    of_first = first.view(-1, 1, 1, 1).expand(*p.shape[:3], 1)
    normalised = entropy / many.clamp(min=2).to(p.dtype).log()
    share = chunk.greatest if chunk.total is None else chunk.greatest / chunk.total.clamp(min=tiny)
    tile = {
        "entropy": entropy,
        "entropy_normalised": normalised,
        "collapsed": _whether(normalised < COLLAPSED, normalised),
        "one_key": _whether(share > ONE_KEY, share),
        "peak": (chunk.content if below is None else chunk.content + below).amax(-1),
        "max": chunk.greatest,
        "median": _median(p, visible, many),
        "min": (p if below is None else p - below).amin(-1),
        "sink": p.gather(-1, of_first).squeeze(-1),
    }
    return tile | ({"self": p[..., chunk.rows].diagonal(dim1=-2, dim2=-1)} if own else {})


def _at(places: Tensor, value: float, like: Tensor) -> Tensor:
    """0, and the value at these places: to be added to whole tiles, in less than half the time of filling them."""
    return torch.zeros(places.shape, dtype=like.dtype, device=like.device).masked_fill_(places, value)


def _whether(holds: Tensor, of: Tensor) -> Tensor:
    """1 or 0; NaN where the number that was judged is NaN."""
    return torch.where(of.isnan(), of, holds.to(of.dtype))


def _median(p: Tensor, visible: Tensor | None, seen: Tensor) -> Tensor:
    """The median of the visible entries of each row (b, heads, q), none of which is negative.

    Invisible entries become −∞ and ∞ in equal numbers (one more ∞ if they are odd), which leaves the median in the
    middle of the whole row, at the places keys // 2 − 1 and keys // 2: one selection finds both.
    """
    keys = p.shape[-1]
    if keys == 1:
        return p[..., 0]
    if visible is not None:
        hidden = (~visible).int()
        low = hidden.cumsum(-1) <= hidden.sum(-1, keepdim=True) // 2
        p = p + _at(~visible, torch.inf, p).masked_fill_(~visible & low, -torch.inf)
    lower, upper = _middle(p, keys // 2)
    one = lower if keys % 2 == 0 else upper
    return torch.where(seen % 2 == 0, (lower + upper) / 2, one)


def _middle(x: Tensor, place: int) -> tuple[Tensor, Tensor]:
    """The entries at `place` − 1 and `place` of each row, were it sorted. On a CPU numpy is eight times faster."""
    if x.device.type != "cpu":
        ordered = x.sort(-1).values
        return ordered[..., place - 1], ordered[..., place]
    rows = x.numpy().reshape(-1, x.shape[-1])
    found = np.empty((2, len(rows)), rows.dtype)

    def select(some: slice) -> None:
        found[:, some] = middle_pair(rows[some].copy(), place)

    by_slices(select, len(rows))
    lower, upper = torch.from_numpy(found.reshape(2, *x.shape[:-1]))
    return lower, upper


def _count(chunk: Chunk, counted: Tensor, cells: Tensor) -> None:
    """Add the histogram cells of the content scores of counted rows, visible keys."""
    kept = counted[:, None, :, None]  # (b, 1, q, 1)
    kept = kept if chunk.visible is None else kept & chunk.visible
    content = chunk.content if bool(kept.all()) else chunk.content + _at(~kept, torch.nan, chunk.content)
    count_cells(content, cells)
