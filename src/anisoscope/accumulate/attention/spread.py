"""What the scores of a row vary by: sums from which salience and content follow when the mean query is known.

With C_i the covariance of the keys that row i sees, in units of score (keys times scaling),
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

Cost: O(T · d²) a head where keys are shared; a few passes over each tile, and one product, where they are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


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
    @property
    def total(self) -> Tensor | None: ...  # (b, heads, q) the sum of each row, where it is not 1


@dataclass(frozen=True)
class Block:
    """Some sequences of a call, as they are scored."""

    queries: Tensor  # (b, heads, Tq, d)
    keys: Tensor  # (b, key heads, Tk, d)
    seen: Tensor  # (b, Tq) how many keys each row sees
    counted: Tensor  # (b, Tq) the rows that count
    seen_keys: Tensor  # (b, Tk) the keys that any row sees


class _Spread:
    """Keys about the mean of their sequence, in units of score, and what that mean adds to each row's scores."""

    def __init__(self, block: Block, scaling: float) -> None:
        self.seen, self.counted = block.seen, block.counted
        self.group = block.queries.shape[1] // block.keys.shape[1]
        self.queries, keys = _precise(block.queries), _precise(block.keys)
        self.query = _sum(self.queries, block.counted).double()  # (b, heads, d)
        self.many = block.seen_keys.sum(1).clamp(min=1).view(-1, 1, 1, 1)
        mean = _sum(keys, block.seen_keys).unsqueeze(2) / self.many * scaling  # (b, key heads, 1, d)
        self.keys = (keys * scaling - mean).masked_fill_(~block.seen_keys[:, None, :, None], 0.0)
        self.offset = self._by_key_head(self.queries, mean.mT).squeeze(-1)  # (b, heads, Tq)

    def _by_key_head(self, left: Tensor, right: Tensor) -> Tensor:
        """left (b, heads, m, n) @ right (b, key heads, n, l), each head with the key head that it reads."""
        if self.group == 1:
            return left @ right
        folded = left.unflatten(1, (-1, self.group))
        return (folded.flatten(2, 3) @ right).unflatten(2, folded.shape[2:4]).flatten(1, 2)


class SharedSpread(_Spread):
    """All rows of a sequence see the same keys: one covariance for all of them."""

    def __init__(self, block: Block, scaling: float) -> None:
        super().__init__(block, scaling)
        self.covariance = self.keys.mT @ self.keys / self.many  # (b, key heads, d, d)
        turned = self._by_key_head(self.queries, self.covariance)
        self.within = torch.einsum("bhqd,bhqd->bhq", turned, self.queries)

    def take(self, chunk: Chunk) -> dict[str, Tensor]:
        """`score`, `score_square` and `within` of the rows of a tile, (b, heads, q)."""
        score, within = self.offset[:, :, chunk.rows], self.within[:, :, chunk.rows]
        return {"score": score, "score_square": within + score.square(), "within": within}

    def sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """`query`, `spread` and `spread_query` of each sequence."""
        exact, rows = self.covariance.double(), self.counted.sum(1).view(-1, 1, 1, 1)
        return self.query, exact * rows, self._by_key_head(self.query.unsqueeze(2), exact).squeeze(2)


class RowSpread(_Spread):
    """Each row sees keys of its own."""

    def __init__(self, block: Block, scaling: float) -> None:
        super().__init__(block, scaling)
        batch, key_heads, keys, d = self.keys.shape
        self.columns = self.keys.new_zeros(batch, key_heads * self.group, keys)  # Σ_i a_ij c_ij
        self.weights = self.keys.new_zeros(batch, keys)  # Σ_i a_ij
        self.means = self.query.new_zeros(batch, key_heads, d, d)  # Σ_i μ_i μ_iᵀ
        self.pulls = torch.zeros_like(self.query)  # Σ_i (q_i·μ_i) μ_i

    def take(self, chunk: Chunk) -> dict[str, Tensor]:
        """`score`, `score_square` and `within` of the rows of a tile, (b, heads, q)."""
        assert chunk.visible is not None
        offset = self.offset[:, :, chunk.rows]
        share = self.counted[:, chunk.rows] / self.seen[:, chunk.rows].clamp(min=1).to(offset.dtype)  # (b, q)
        a = chunk.visible * share[:, None, :, None]  # (b, 1, q, K)
        reach = slice(0, a.shape[-1])
        centred = chunk.content - offset.unsqueeze(-1)  # c_ij
        weighted = centred * a
        pull = weighted.sum(-1)  # (b, heads, q) q_i·μ_i
        within = torch.einsum("bhqk,bhqk->bhq", weighted, centred) - pull.square()
        keys = self.keys[:, :, reach]
        flat = a.squeeze(1) @ keys.transpose(1, 2).flatten(2)  # (b, q, key heads · d): all heads in one product
        mean = flat.unflatten(-1, (keys.shape[1], -1)).transpose(1, 2)  # (b, key heads, q, d) μ_i
        self.columns[..., reach] += weighted.sum(2)
        self.weights[:, reach] += a.sum((1, 2))
        self.means += (mean.mT @ mean).double()
        self.pulls += self._by_key_head(pull.unsqueeze(2), mean).squeeze(2).double()
        score = pull + offset
        return {"score": score, "score_square": within + score.square(), "within": within}

    def sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """`query`, `spread` and `spread_query` of each sequence."""
        weighted = self.keys * self.weights[:, None, :, None]
        spread = (weighted.mT @ self.keys).double() - self.means
        pulls = self._by_key_head(self.columns.unsqueeze(2), self.keys).squeeze(2).double() - self.pulls
        return self.query, spread, pulls


def _precise(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _sum(x: Tensor, kept: Tensor) -> Tensor:
    """Sum of x (b, heads, T, d) over the positions that are kept (b, T): (b, heads, d)."""
    return (kept.to(x.dtype)[:, None, None] @ x).squeeze(2)
