"""Queries and keys of one attention layer, per head: every statistic that is a sum over positions.

Each side is a cloud per head. For its vectors x with unit vectors u, per jackknife group (a hash of the sequence key):

    n, Σx, Σu, Σ‖x‖, Σ‖x‖²,   and over everything the second moment Σxxᵀ (d_head × d_head),

so that cos(Q̄, K̄), drift shares and mean cosines have intervals, and the SVD of any union of steps, queries and keys is
exact (`geometry.queries_keys`). A seeded sample of positions is kept whole, all heads together, to draw clouds from:
the same positions for queries and keys, and the same whatever the order or the number of processes.

Precision: sums are float64; the second moment is a float32 Gram matrix about the mean of each block of sequences plus
float64 rank-one terms, Σxxᵀ = Σyyᵀ + rμᵀ + μrᵀ + nμμᵀ with y = x − μ and r = Σy (see `moments`).
Memory O(heads · d_head · (32 + d_head)); time O(n · heads · d_head²), some 2 % of a BERT layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.accumulate.keys import GROUPS, Keys, group_of
from anisoscope.accumulate.reservoir import Reservoir, under
from anisoscope.errors import InputError, StoreError

SAMPLE = 256
_BLOCK = 2**18  # numbers in float64 at a time: they stay in the cache
_SUMS = ("n", "total", "unit", "norm", "norm2", "second")


class Positions(Protocol):
    """Which positions of an attention call count (`capture.attention.call.AttentionCall`)."""

    @property
    def valid_queries(self) -> Tensor: ...  # (B, Tq)
    @property
    def valid_keys(self) -> Tensor: ...  # (B, Tk)
    @property
    def start(self) -> int: ...  # position of the first query


class QueriesAndKeys(Positions, Protocol):
    """What `Heads` reads of it."""

    @property
    def queries(self) -> Tensor: ...  # (B, heads, Tq, d_head)
    @property
    def keys(self) -> Tensor: ...  # (B, key heads, Tk, d_head)


def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """An empty sum. A capture may make it in inference mode; it is added to after that."""
    with torch.inference_mode(False):
        return torch.zeros(*shape, dtype=dtype)


def by_row(sequences: Keys, rows: int) -> tuple[Keys, NDArray[np.int64]]:
    """The sequence of each row of an attention batch, and which of its windows the row is.

    Windowed attention (Swin) has several rows to a sequence, one after the other.

    >>> [column.tolist() for column in by_row(np.array([7, 9], dtype=np.uint64), 4)]
    [[7, 7, 9, 9], [0, 1, 0, 1]]
    """
    windows, rest = divmod(rows, max(len(sequences), 1))
    if rest or not windows:
        raise InputError("attention rows do not divide among the sequences", got=f"{rows} rows, {len(sequences)} keys")
    return np.repeat(sequences, windows), np.tile(np.arange(windows), len(sequences))


class HeadCloud:
    """One side of a layer: a cloud of vectors per head. Fields are float64 tensors, first axis g = jackknife group."""

    def __init__(self, heads: int, d: int, *, groups: int = GROUPS, sample: int = SAMPLE, seed: int = 0) -> None:
        self.heads, self.d, self.groups = heads, d, groups
        self.n = zeros(groups, dtype=torch.int64)
        self.total = zeros(groups, heads, d)
        self.unit = zeros(groups, heads, d)
        self.norm = zeros(groups, heads)
        self.norm2 = zeros(groups, heads)
        self.second = zeros(heads, d, d)
        self.sample = Reservoir(heads * d, capacity=sample, seed=seed)

    def update(self, x: Tensor, valid: Tensor, sequences: Keys, positions: NDArray[np.int64]) -> None:
        """Add the valid vectors of x (B, heads, T, d); `positions` (B, T) are unique within a sequence."""
        x = x.detach() if x.dtype == torch.float64 else x.detach().float()
        if x.shape[1] != self.heads or x.shape[3] != self.d:
            raise InputError("other heads than before", got=tuple(x.shape), expected=f"{self.heads} heads of {self.d}")
        groups = torch.from_numpy(group_of(sequences, groups=self.groups))
        self.n.index_add_(0, groups, valid.sum(1).cpu())
        for block in cached_blocks(x):
            self._add(x[block].contiguous(), valid[block], groups[block])
        chosen = valid.cpu().numpy()
        flat = x.transpose(1, 2).flatten(2)  # (B, T, heads · d)
        flat = flat.flatten(0, 1) if chosen.all() else flat[valid]
        self.sample.offer(flat, sequences[np.nonzero(chosen)[0]], positions[chosen])

    def _add(self, x: Tensor, valid: Tensor, groups: Tensor) -> None:
        n = int(valid.sum())
        hidden = None if n == valid.numel() else ~valid[:, None, :, None]  # (b, 1, t, 1)
        exact = _without(x.double(), hidden)
        norm = torch.linalg.vector_norm(exact, dim=-1)  # (b, heads, t)
        sums = {
            "total": exact.sum(2),
            "unit": torch.einsum("bht,bhtd->bhd", torch.where(norm > 0, 1 / norm, 0.0), exact),
            "norm": norm.sum(2),
            "norm2": norm.square().sum(2),
        }
        for name, by_sequence in sums.items():
            getattr(self, name).index_add_(0, groups, by_sequence.cpu())
        total = sums["total"].sum(0)  # (heads, d)
        mean = (total / max(n, 1)).to(x.dtype)
        y = _without(x - mean[:, None], hidden)
        gram = (y.mT @ y).double().sum(0)
        mean = mean.double()
        outer = torch.einsum("hd,he->hde", total - n * mean, mean)
        self.second += (gram + outer + outer.mT + n * torch.einsum("hd,he->hde", mean, mean)).cpu()

    def merge(self, other: HeadCloud) -> None:
        if (self.heads, self.d, self.groups) != (other.heads, other.d, other.groups):
            raise StoreError(
                "cannot add the sums of other heads",
                got=f"{other.heads} heads of {other.d} in {other.groups} groups",
                expected=f"{self.heads} heads of {self.d} in {self.groups} groups",
            )
        for name in _SUMS:
            getattr(self, name).add_(getattr(other, name))
        self.sample.merge(other.sample)

    def points(self) -> NDArray[np.float32]:
        """The sampled vectors, (heads, m, d)."""
        return self.sample.sample().x.reshape(-1, self.heads, self.d).swapaxes(0, 1)

    def state(self) -> dict[str, NDArray]:
        kept = {name: getattr(self, name).numpy() for name in _SUMS}
        return kept | {f"sample.{name}": tensor for name, tensor in self.sample.state().items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        groups, heads, d = state["total"].shape
        cloud = cls(heads, d, groups=groups, sample=1)
        for name in _SUMS:
            getattr(cloud, name).copy_(torch.as_tensor(state[name]))
        cloud.sample = Reservoir.from_state(dict(under("sample.", state)))
        return cloud


class Heads:
    """Queries and keys of one attention layer. Query head h reads key head h // group."""

    def __init__(
        self, *, query_heads: int, key_heads: int, d: int, groups: int = GROUPS, sample: int = SAMPLE, seed: int = 0
    ) -> None:
        self.queries = HeadCloud(query_heads, d, groups=groups, sample=sample, seed=seed)
        self.keys = HeadCloud(key_heads, d, groups=groups, sample=sample, seed=seed)

    @classmethod
    def like(cls, call: QueriesAndKeys, *, sample: int = SAMPLE, seed: int = 0) -> Self:
        """Empty sums for calls of this shape."""
        _, heads, _, d = call.queries.shape
        return cls(query_heads=heads, key_heads=call.keys.shape[1], d=d, sample=sample, seed=seed)

    @property
    def group(self) -> int:
        return self.queries.heads // self.keys.heads

    def update(self, call: QueriesAndKeys, sequences: Keys, starts: NDArray[np.int64] | None = None) -> None:
        """Add one call. `sequences` (B,): the key of each sequence; `starts` (B,): where in it the window starts."""
        starts = np.zeros(len(sequences), dtype=np.int64) if starts is None else np.asarray(starts, dtype=np.int64)
        sides = ((self.queries, call.queries, call.valid_queries), (self.keys, call.keys, call.valid_keys))
        for cloud, x, valid in sides:
            keys, window = by_row(sequences, len(x))
            first = np.repeat(starts, len(x) // len(starts)) + window * x.shape[2] + call.start
            cloud.update(x, valid, keys, first[:, None] + np.arange(x.shape[2]))

    def merge(self, other: Heads) -> None:
        self.queries.merge(other.queries)
        self.keys.merge(other.keys)

    def state(self) -> dict[str, NDArray]:
        sides = (("query", self.queries), ("key", self.keys))
        return {f"{side}.{name}": tensor for side, cloud in sides for name, tensor in cloud.state().items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        heads = cls(query_heads=1, key_heads=1, d=1, sample=1)
        heads.queries = HeadCloud.from_state(dict(under("query.", state)))
        heads.keys = HeadCloud.from_state(dict(under("key.", state)))
        return heads


def _without(x: Tensor, hidden: Tensor | None) -> Tensor:
    return x if hidden is None else x.masked_fill(hidden, 0.0)


def cached_blocks(x: Tensor) -> Iterator[slice]:
    """Slices of sequences that fit the cache."""
    size = max(1, _BLOCK // max(x[0].numel(), 1))
    return (slice(first, first + size) for first in range(0, len(x), size))
