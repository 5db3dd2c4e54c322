"""What the rows of one attention call say: one number per row and statistic, made tile by tile.

The per-row statistics are those of `rows`; this file is where they are computed.

**Salience and content.** With C_i the covariance of the keys that row i sees, in units of score (keys times scaling),
var_j(q_i·k_j) = q_iᵀC_iq_i. How much of it the mean query Q̄ explains is known only when Q̄ is, at the end; but it is a
function of sums that need no Q̄ (`geometry.queries_keys.split_variance`):

    within = Σ q_iᵀC_iq_i,    spread = Σ C_i,    spread_query = Σ C_iq_i,    query = Σ q_i.

C_i does not change when a vector is taken from all keys, so keys are centred by the mean of their sequence first,
k' = k − k̄, and nothing is lost to drift. Where all rows of a sequence see the same keys, C_i = C is one matrix and the
sums are Σqᵀ C q, n·C and C Σq. Where they do not (causal, sliding window), with a_ij = 1/m_i for visible pairs and 0
elsewhere, μ_i = Σ_j a_ij k'_j the mean that row i sees, and c_ij = q_i·k'_j,

    within_i = Σ_j a_ij c_ij² − (q_i·μ_i)²
    spread = Σ_j (Σ_i a_ij) k'_jk'_jᵀ − Σ_i μ_iμ_iᵀ
    spread_query = Σ_j (Σ_i a_ij c_ij) k'_j − Σ_i (q_i·μ_i) μ_i,

exact as well, at the price of a few passes over each tile.

Time: some 7 ns a score in all, most of it the median and the histogram; a tile is in the cache when it comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from anisoscope.accumulate.score_bins import count_cells


class Chunk(Protocol):
    """What `Rows` reads of a tile (`capture.attention_call.RowChunk`)."""

    @property
    def batch(self) -> slice: ...
    @property
    def rows(self) -> slice: ...
    @property
    def content(self) -> Tensor: ...  # (b, heads, q, K): no row of the tile sees a key beyond K
    @property
    def logits(self) -> Tensor: ...  # (b, heads, q, K), the greatest of each row is 0
    @property
    def probabilities(self) -> Tensor: ...  # (b, heads, q, K)
    @property
    def greatest(self) -> Tensor: ...  # (b, heads, q)
    @property
    def visible(self) -> Tensor | None: ...  # (b | 1, 1, q | 1, K)


class Scored(Protocol):
    """What `Rows` reads of an attention call (`capture.attention_call.AttentionCall`)."""

    @property
    def score_queries(self) -> Tensor: ...  # (B, heads, Tq, d_head)
    @property
    def score_keys(self) -> Tensor: ...  # (B, key heads, Tk, d_head)
    @property
    def valid_queries(self) -> Tensor: ...  # (B, Tq)
    @property
    def visible(self) -> Tensor | None: ...  # (B | 1, Tq | 1, Tk)
    @property
    def scaling(self) -> float | None: ...
    @property
    def kind(self) -> str: ...
    def chunks(self) -> Iterable[Chunk]: ...


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
    """Walk the tiles of a call once."""
    seen = _seen(call)
    counted = call.valid_queries & (seen > 1)
    spread = (_SharedSpread if call.visible is None or call.visible.shape[1] == 1 else _RowSpread)(call, seen, counted)
    first = _seen_keys(call).int().argmax(1)  # (B,)
    own = call.kind == "self" and call.score_queries.shape[2] == call.score_keys.shape[2]
    values: dict[str, Tensor] = {}
    cells: Tensor | int = 0
    for chunk in call.chunks():
        here = (chunk.batch, slice(None), chunk.rows)
        tile = _tile_statistics(chunk, seen[chunk.batch, chunk.rows], first[chunk.batch], own=own)
        tile |= spread.take(chunk)
        for name, value in tile.items():
            if name not in values:
                values[name] = value.new_empty(call.score_queries.shape[:3])
            values[name][here] = value
        cells = cells + _count(chunk, counted[chunk.batch, chunk.rows])
    assert isinstance(cells, Tensor)
    return CallRows(seen, counted, values | spread.values(), cells, spread.query, *spread.sums())


def _seen(call: Scored) -> Tensor:
    """How many keys each row sees, (B, Tq)."""
    shape = call.valid_queries.shape
    if call.visible is None:
        return torch.full(shape, call.score_keys.shape[2], device=call.valid_queries.device)
    return call.visible.sum(-1).expand(shape)


def _tile_statistics(chunk: Chunk, seen: Tensor, first: Tensor, *, own: bool) -> dict[str, Tensor]:
    """Statistics (b, heads, q) of the probabilities of a tile."""
    p, visible = chunk.probabilities, chunk.visible
    many = seen.unsqueeze(1)  # (b, 1, q)
    entropy = -chunk.greatest.log() - torch.linalg.vecdot(p, chunk.logits)  # −log p = log Z − logit, Z = 1/greatest
    of_first = first.view(-1, 1, 1, 1).expand(*p.shape[:3], 1)
    tile = {
        "entropy": entropy,
        "entropy_normalised": entropy / many.clamp(min=2).to(p.dtype).log(),
        "max": chunk.greatest,
        "median": _median(p, visible, many),
        "min": (p if visible is None else p.masked_fill(~visible, torch.inf)).amin(-1),
        "sink": p.gather(-1, of_first).squeeze(-1),
    }
    return tile | ({"self": p[..., chunk.rows].diagonal(dim1=-2, dim2=-1)} if own else {})


def _median(p: Tensor, visible: Tensor | None, seen: Tensor) -> Tensor:
    """The median of the visible entries of each row (b, heads, q).

    Invisible entries become −∞ and ∞ in equal numbers (one more ∞ if they are odd), which leaves the median in the
    middle of the whole row, at the places keys // 2 − 1 and keys // 2: one selection finds both.
    """
    keys = p.shape[-1]
    if keys == 1:
        return p[..., 0]
    if visible is not None:
        hidden = (~visible).int()
        low = hidden.cumsum(-1) <= hidden.sum(-1, keepdim=True) // 2
        p = torch.where(visible, p, torch.where(low, -torch.inf, torch.inf).to(p.dtype))
    lower, upper = _middle(p, keys // 2)
    one = lower if keys % 2 == 0 else upper
    return torch.where(seen % 2 == 0, (lower + upper) / 2, one)


def _middle(x: Tensor, place: int) -> tuple[Tensor, Tensor]:
    """The entries at `place` − 1 and `place` of each row, were it sorted. On a CPU numpy is eight times faster."""
    if x.device.type != "cpu":
        ordered = x.sort(-1).values
        return ordered[..., place - 1], ordered[..., place]
    parted = np.partition(x.numpy(), place, axis=-1)
    return torch.from_numpy(parted[..., :place].max(-1)), torch.from_numpy(parted[..., place])


def _count(chunk: Chunk, counted: Tensor) -> Tensor:
    """Histogram cells of the content scores of counted rows, visible keys."""
    kept = counted[:, None, :, None]  # (b, 1, q, 1)
    kept = kept if chunk.visible is None else kept & chunk.visible
    content = chunk.content if bool(kept.all()) else chunk.content.masked_fill(~kept, torch.nan)
    return count_cells(content)


# -- what the scores of a row vary by ----------------------------------------------------------------------------------


class _Spread:
    """Keys about the mean of their sequence, in units of score, and what that mean adds to each row's scores."""

    def __init__(self, call: Scored, seen: Tensor, counted: Tensor) -> None:
        assert call.scaling is not None
        self.seen, self.counted = seen, counted
        self.group = call.score_queries.shape[1] // call.score_keys.shape[1]
        self.queries, keys = _precise(call.score_queries), _precise(call.score_keys)
        self.query = (self.queries * counted[:, None, :, None]).sum(2, dtype=torch.float64)  # (B, heads, d)
        seen_keys = _seen_keys(call)[:, None, :, None]
        self.many = seen_keys.sum(2, keepdim=True).clamp(min=1)  # (B, 1, 1, 1)
        mean = (keys * seen_keys).sum(2, keepdim=True) / self.many * call.scaling  # (B, key heads, 1, d)
        self.keys = (keys * call.scaling - mean) * seen_keys
        self.offset = self._by_key_head(self.queries, mean.transpose(-1, -2)).squeeze(-1)  # (B, heads, Tq)

    def _by_key_head(self, left: Tensor, right: Tensor) -> Tensor:
        """left (b, heads, m, n) @ right (b, key heads, n, l)."""
        folded = left.unflatten(1, (-1, self.group))
        return (folded.flatten(2, 3) @ right).unflatten(2, folded.shape[2:4]).flatten(1, 2)


class _SharedSpread(_Spread):
    """All rows of a sequence see the same keys: one covariance for all of them."""

    def take(self, _: Chunk) -> dict[str, Tensor]:
        return {}

    def values(self) -> dict[str, Tensor]:
        within = torch.linalg.vecdot(self._by_key_head(self.queries, self.covariance), self.queries)
        return {"score": self.offset, "score_square": within + self.offset.square(), "within": within}

    def sums(self) -> tuple[Tensor, Tensor]:
        exact, rows = self.covariance.double(), self.counted.sum(1).view(-1, 1, 1, 1)
        return exact * rows, self._by_key_head(self.query.unsqueeze(2), exact).squeeze(2)

    @cached_property
    def covariance(self) -> Tensor:
        return self.keys.transpose(-1, -2) @ self.keys / self.many  # (B, key heads, d, d)


class _RowSpread(_Spread):
    """Each row sees keys of its own."""

    def __init__(self, call: Scored, seen: Tensor, counted: Tensor) -> None:
        super().__init__(call, seen, counted)
        batch, key_heads, keys, d = self.keys.shape
        self.columns = self.keys.new_zeros(batch, key_heads * self.group, keys)  # Σ_i a_ij c_ij
        self.weights = self.keys.new_zeros(batch, keys)  # Σ_i a_ij
        self.means = self.query.new_zeros(batch, key_heads, d, d)  # Σ_i μ_i μ_iᵀ
        self.pulls = torch.zeros_like(self.query)  # Σ_i (q_i·μ_i) μ_i

    def take(self, chunk: Chunk) -> dict[str, Tensor]:
        assert chunk.visible is not None
        batch, rows = chunk.batch, chunk.rows
        share = self.counted[batch, rows] / self.seen[batch, rows].clamp(min=1).to(chunk.content.dtype)  # (b, q)
        a = chunk.visible * share[:, None, :, None]  # (b, 1, q, K)
        reach = slice(0, a.shape[-1])
        centred = chunk.content - self.offset[batch, :, rows, None]
        weighted = centred * a
        score = weighted.sum(-1)  # (b, heads, q) q_i·μ_i
        within = torch.linalg.vecdot(weighted, centred) - score.square()
        keys = self.keys[batch, :, reach]
        flat = a.squeeze(1) @ keys.transpose(1, 2).flatten(2)  # (b, q, key heads · d): all heads in one product
        mean = flat.unflatten(-1, (keys.shape[1], -1)).transpose(1, 2)  # (b, key heads, q, d) μ_i
        self.columns[batch, :, reach] += weighted.sum(2)
        self.weights[batch, reach] += a.sum((1, 2))
        self.means[batch] += (mean.transpose(-1, -2) @ mean).double()
        self.pulls[batch] += self._by_key_head(score.unsqueeze(2), mean).squeeze(2).double()
        score = score + self.offset[batch, :, rows]
        return {"score": score, "score_square": within + score.square(), "within": within}

    def values(self) -> dict[str, Tensor]:
        return {}

    def sums(self) -> tuple[Tensor, Tensor]:
        weighted = self.keys * self.weights[:, None, :, None]
        spread = (weighted.transpose(-1, -2) @ self.keys).double() - self.means
        pulls = self._by_key_head(self.columns.unsqueeze(2), self.keys).squeeze(2).double() - self.pulls
        return spread, pulls


def _seen_keys(call: Scored) -> Tensor:
    """Which keys any row sees, (B, Tk)."""
    batch, _, keys, _ = call.score_keys.shape
    if call.visible is None:
        return torch.ones(batch, keys, dtype=torch.bool, device=call.score_keys.device)
    return call.visible.any(1).expand(batch, keys)


def _precise(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
