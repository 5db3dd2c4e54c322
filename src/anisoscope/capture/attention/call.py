"""One attention layer at work on one batch: its queries and keys, and its rows in tiles.

`AttentionCall.chunks()` makes scores, softmax and the layer's output in one sweep over **tiles** of a few query rows,
and shows each tile on the way. A tile is gone when the next one comes, so that no attention matrix is ever whole:
16 sequences × 12 heads × 512² stay within some 10 MB. Tiles are sized for the processor's cache, which pays for most of
what is computed on them.

- content: `chunk.content` is q·k·scaling alone. Position biases (T5 passes its own; BEiT and Swin put theirs into the
  mask) enter the softmax and are given apart, as `call.position_bias`.
- visibility: a key is visible to a row unless the mask puts it below −50, where softmax in float32 sees nothing (Swin
  masks with −100, the others with the least float).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from anisoscope.errors import ModelError

UNSEEN = -50.0  # an additive mask below this hides a key: exp(−50) ≈ 2e−22
QUERY_CHUNK = 64
_TILE = 2**19  # scores in a tile, at most: 2 MB in float32

Kind = Literal["self", "cross"]
Weigh = Callable[[Tensor, Tensor | None], Tensor]  # scores (b, heads, q, K) and additive mask to weights ≥ 0


@dataclass(frozen=True)
class RowChunk:
    """Some rows of one call: a slice of the batch, a slice of the queries, all heads, the first K keys.

    No row of the tile sees a key beyond K, which saves half of a causal layer.
    """

    batch: slice
    rows: slice
    content: Tensor  # (b, heads, q, K) q·k·scaling, without bias or mask
    logits: Tensor  # (b, heads, q, K) what is exponentiated: content + bias + mask, less the maximum of the row
    probabilities: Tensor  # (b, heads, q, K)
    greatest: Tensor  # (b, heads, q) the greatest probability of each row
    visible: Tensor | None  # (b | 1, 1, q | 1, K)
    total: Tensor | None = None  # (b, heads, q) the sum of each row, where it is not 1 (no softmax)


@dataclass
class AttentionCall:
    """One attention layer at work on one batch. Rows of the batch are sequences, or their windows (`windowed`)."""

    queries: Tensor  # (B, heads, Tq, d_head)
    keys: Tensor  # (B, key heads, Tk, d_head); query head h reads key head h // group
    kind: Kind
    valid_queries: Tensor  # (B, Tq)
    valid_keys: Tensor  # (B, Tk)
    visible: Tensor | None  # (B | 1, Tq | 1, Tk); None: every row sees every key
    scaling: float | None  # None: the scores of this model are not q·k·scaling, there are no rows
    score_queries: Tensor  # what is scored: `queries`, unless those are before rotation or the model transforms them
    score_keys: Tensor
    mask: Tensor | None = None  # additive (B | 1, heads | 1, Tq | 1, Tk), as the model gave it
    bias: Tensor | None = None
    softcap: float | None = None
    weigh: Weigh | None = None
    values: Tensor | None = None
    windowed: bool = False
    start: int = 0
    query_chunk: int = QUERY_CHUNK
    _done: set[int] = field(default_factory=set)

    @property
    def group(self) -> int:
        """How many query heads read one key head."""
        return self.queries.shape[1] // self.keys.shape[1]

    @property
    def position_bias(self) -> Tensor | None:
        """What is added to the content scores besides the mask, broadcastable to (B, heads, Tq, Tk)."""
        bias = self.bias
        if bias is None and self.mask is not None:
            bias = torch.where(self.mask > UNSEEN, self.mask, 0.0)
        return bias if bias is not None and bool(bias.any()) else None

    @cached_property
    def _tiles(self) -> list[tuple[slice, slice, slice]]:
        batch, heads, queries, _ = self.score_queries.shape
        rows = min(self.query_chunk, queries)
        sequences = max(1, min(_TILE // (heads * rows * self.score_keys.shape[2]), self._share))
        corners = ((b, q) for b in range(0, batch, sequences) for q in range(0, queries, rows))
        places = [(slice(b, b + sequences), slice(q, min(q + rows, queries))) for b, q in corners]
        return [(batch, rows, slice(0, self._reach(batch, rows))) for batch, rows in places]

    @property
    def _share(self) -> int:
        """How many sequences leave every thread some: blocks are shared out among the threads of a CPU."""
        alone = self.score_queries.device.type != "cpu"
        return len(self.queries) if alone else -(-len(self.queries) // torch.get_num_threads())

    def _reach(self, batch: slice, rows: slice) -> int:
        """How many keys, from the first on, hold all that the rows of a tile see."""
        keys = self.score_keys.shape[2]
        if self.visible is None:
            return keys
        seen = _part(self.visible.unsqueeze(1), batch, rows, slice(None))
        if not bool(seen.any(-1).all()):  # a row of padding: the library spreads its attention over all keys
            return keys
        last = int(seen.any(2).any(0).any(0).nonzero().max())
        return max(last + 1, min(rows.stop, keys))  # its own position stays within the tile

    @cached_property
    def _context(self) -> Tensor:
        assert self.values is not None
        batch, heads, queries, _ = self.score_queries.shape
        return self.values.new_empty(batch, queries, heads, self.values.shape[-1])

    def blocks(self) -> list[slice]:
        """The sequences of the batch whose tiles follow one another; several threads may walk through theirs."""
        if self.values is not None:
            _ = self._context  # made before threads write to it
        return [slice(*ends) for ends in dict.fromkeys((batch.start, batch.stop) for batch, _, _ in self._tiles)]

    def chunks(self, block: slice | None = None) -> Iterator[RowChunk]:
        """Scores and probabilities, tile by tile, of all or of one of the `blocks`. Use each before asking for more."""
        return self._walk([tile for tile, (batch, _, _) in enumerate(self._tiles) if block is None or batch == block])

    def context(self) -> Tensor:
        """The output of the layer, (B, Tq, heads, d_value): tiles that were not asked for are computed now."""
        for _ in self._walk([tile for tile in range(len(self._tiles)) if tile not in self._done]):
            pass
        return self._context

    def _walk(self, tiles: list[int]) -> Iterator[RowChunk]:
        """The chunks of some tiles. Keys and values of a block are laid out for its products once."""
        if self.scaling is None:
            raise ModelError("the scores of this model cannot be rebuilt", do="read only its queries and keys")
        for batch, several in groupby(tiles, lambda tile: self._tiles[tile][0]):
            keys = self.score_keys[batch].mT.contiguous()  # (b, key heads, d, Tk)
            values = None if self.values is None else self.values[batch].contiguous()
            for tile in several:
                yield self._attend(tile, self.scaling, keys, values)

    def _attend(self, tile: int, scaling: float, block_keys: Tensor, block_values: Tensor | None) -> RowChunk:
        batch, rows, keys = self._tiles[tile]
        content = grouped(self.score_queries[batch, :, rows] * scaling, block_keys[..., keys])
        content = content.float() if content.dtype in (torch.float16, torch.bfloat16) else content
        scores = content if self.softcap is None else self.softcap * torch.tanh(content / self.softcap)
        bias, mask, visible = (
            None if term is None else _part(term, batch, rows, keys)
            for term in (self.bias, self.mask, None if self.visible is None else self.visible.unsqueeze(1))
        )
        scores = scores if bias is None else scores + bias
        logits, probabilities, greatest = self._weights(scores, mask)
        total = None if self.weigh is None else probabilities.sum(-1)
        chunk = RowChunk(batch, rows, content, logits, probabilities, greatest, visible, total)
        if block_values is not None and tile not in self._done:
            output = grouped(probabilities.to(block_values.dtype), block_values[:, :, keys])
            self._context[batch, rows] = output.transpose(1, 2)
            self._done.add(tile)
        return chunk

    def _weights(self, scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, probabilities and the greatest of them: softmax, unless the model weighs its keys otherwise."""
        if self.weigh is not None:
            probabilities = self.weigh(scores, mask)
            greatest = probabilities.amax(-1)
            tiny = torch.finfo(probabilities.dtype).tiny
            logits = probabilities.clamp(min=tiny).log() - greatest.clamp(min=tiny).log().unsqueeze(-1)
            return logits, probabilities, greatest
        logits = scores if mask is None else scores + mask
        logits = logits - logits.amax(-1, keepdim=True)
        probabilities = logits.softmax(-1)  # fused: many times faster than exp() where keys are masked
        return logits, probabilities, probabilities.amax(-1)


def grouped(left: Tensor, right: Tensor) -> Tensor:
    """left (b, heads, q, m) @ right (b, key heads, m, n), heads reading key heads in groups; nothing is repeated."""
    if left.shape[1] == right.shape[1]:
        return left @ right
    folded = left.unflatten(1, (right.shape[1], -1))  # (b, key heads, group, q, m)
    return (folded.flatten(2, 3) @ right).unflatten(2, folded.shape[2:4]).flatten(1, 2)


def _part(term: Tensor, batch: slice, rows: slice, keys: slice) -> Tensor:
    """The tile of a (B | 1, heads | 1, Tq | 1, Tk) tensor."""
    term = term[..., keys] if term.shape[0] == 1 else term[batch, ..., keys]
    return term if term.shape[2] == 1 else term[:, :, rows]


# -- masks -------------------------------------------------------------------------------------------------------------


def additive_mask(mask: Tensor | None, keys: int, dtype: torch.dtype) -> Tensor | None:
    """The mask as finite numbers to add, for as many keys as there are."""
    if mask is None:
        return None
    least = torch.finfo(dtype).min
    mask = mask[..., :keys]
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, least)
    return mask.clamp(min=least)


def visibility(mask: Tensor | None) -> Tensor | None:
    """Which keys each row sees, (B | 1, Tq | 1, Tk): one row if all see the same, None if all see everything."""
    if mask is None:
        return None
    visible = mask.amax(1) > UNSEEN
    if bool(visible.all()):
        return None
    return visible[:, :1] if bool((visible == visible[:, :1]).all()) else visible
