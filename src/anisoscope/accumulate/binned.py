"""Sums over the rows of each bin (a sequence or a jackknife group), in float64, by blocks that stay in the cache.

A block of rows becomes z (b, d) in float64 and y = z∘z once; the rest are products of those with few rows, which read
them from the cache:

    ‖z‖² = y·1      (Σx, Σu) of a stretch of one bin = (1, 1/‖z‖)·z      Σu∘u = (1/‖z‖²)·y      ΣΣ_k z_k⁴ = ‖y‖²

Each thread takes blocks of its own, with sums of its own. Rows whose bins alternate are sorted by bin first, where that
makes stretches long; short ones are added row by row. float64 vectors are divided by a power of two each, which keeps
fourth powers in range and is exact. Nothing is rounded to less than float64: of n rows the sums are right to about
n·1e-16 of the sum of their sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope.accumulate.threads import by_slices

GRAM_BLOCK = 8192  # rows whose Σx is kept apart, for the mean about which a Gram matrix is taken
_NUMBERS = {"cpu": 2**18}  # in a block: two of them in float64 stay in the cache
_ELSEWHERE = 2**22
_SHORT = 2**13  # numbers of a stretch, below which rows are added one by one
_LARGE = 2**22  # numbers in the sums of all bins: above, one thread does it all, for each would need its own


@dataclass(frozen=True)
class Binned:
    """What the rows x of each bin sum to, with u = x/‖x‖; odd bins hold first positions."""

    sums: torch.Tensor  # (bins, 2, d): Σx and Σu
    unit2: torch.Tensor  # (2, d): Σu∘u over the other positions, over first ones
    blocks: torch.Tensor  # (blocks, 2, d): Σx of every `GRAM_BLOCK` rows, of other positions and of first ones

    def add(self, other: Binned) -> None:
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine += theirs


def zeros(*shape: int, device: torch.device, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    with torch.inference_mode(False):  # a capture may make them in inference mode; they are added to after it
        return torch.zeros(*shape, dtype=dtype, device=device)


def binned(
    x: torch.Tensor, bins: NDArray[np.int64], count: int, *, gram: bool
) -> tuple[Binned, torch.Tensor, torch.Tensor]:
    """The sums of rows x (n, d) by bin; (Σ1, Σ‖x‖, Σ‖x‖², ΣΣ_k x_k⁴) of each bin, (4, count); and the norms, (n,).

    Where a norm is zero or not finite, sums are not finite either. Σx of blocks is left at zero without `gram`.
    """
    rows = _Rows(x, bins, _order(bins, count, x.shape[1]), gram=gram)
    edges = rows.edges()
    alone = count * x.shape[1] > _LARGE
    found, *others = by_slices(
        lambda some: rows.sums(edges[some.start : some.stop + 1], count),
        len(edges) - 1,
        multiple=len(edges) if alone else 1,
        device=x.device,
    )
    for other in others:
        found.add(other)
    norms, totals = rows.norms, zeros(4, count, device=x.device)
    each = torch.stack([torch.ones_like(norms), norms, norms.square(), rows.fourth.square()])
    totals.index_add_(1, rows.where, each)
    if rows.order is not None:
        norms = torch.empty_like(norms).index_copy_(0, rows.order, norms)
    return found, totals, norms


def _order(bins: NDArray[np.int64], count: int, d: int) -> NDArray[np.int64] | None:
    """The rows of every `GRAM_BLOCK` by bin, where short stretches become long by that."""
    stretches = 1 + np.count_nonzero(bins[1:] != bins[:-1])
    if stretches * _SHORT <= bins.size * d or count * _SHORT > bins.size * d:
        return None
    return np.argsort(np.arange(len(bins)) // GRAM_BLOCK * count + bins, kind="stable")


class _Rows:
    """Rows in the order of their bins, or as they came; their norms and Σ_k x_k⁴ are filled in by the way."""

    def __init__(
        self, x: torch.Tensor, bins: NDArray[np.int64], order: NDArray[np.int64] | None, *, gram: bool
    ) -> None:
        self.x, self.device, self.gram = x, x.device, gram
        self.bins = bins if order is None else bins[order]
        self.order = None if order is None else self._tensor(order)
        self.where = self._tensor(self.bins)
        changes = self.bins[1:] != self.bins[:-1]
        self.stretch = np.concatenate([[0], np.cumsum(changes)])  # of each row
        self.norms, self.fourth = (self._empty(len(x)) for _ in range(2))

    def _tensor(self, values: NDArray) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)

    def _empty(self, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device=self.device)

    def edges(self) -> list[int]:
        """Where blocks begin and end: one stretch each, where stretches are long."""
        d, row = self.x.shape[1], np.arange(len(self.x))
        block = max(1, min(_NUMBERS.get(self.device.type, _ELSEWHERE) // d, GRAM_BLOCK))
        if (self.stretch[-1] + 1) * _SHORT <= self.x.numel():
            begins = np.flatnonzero(np.diff(self.stretch, prepend=-1))
            length = np.diff(begins, append=len(row))
            pieces = -(-length // block)  # of each stretch, of the same size
            place = row - begins[self.stretch]
            parts = [row // GRAM_BLOCK, self.stretch, place * pieces[self.stretch] // length[self.stretch]]
        else:
            parts = [row // GRAM_BLOCK, row % GRAM_BLOCK // block]
        begins = np.flatnonzero(np.any([part[1:] != part[:-1] for part in parts], 0)) + 1
        return [0, *begins.tolist(), len(row)]

    def sums(self, edges: list[int], count: int) -> Binned:
        """The sums of the blocks between these edges."""
        d, sizes = self.x.shape[1], np.diff(edges).tolist()
        shapes = ((count, 2, d), (2, d), (-(-len(self.x) // GRAM_BLOCK), 2, d))
        found = Binned(*(zeros(*shape, device=self.device) for shape in shapes))
        room = _Room(self.x, max(sizes), picks=self.order is not None)
        all_rows = slice(edges[0], edges[-1])
        columns = (self.norms, self.fourth, self.x if self.order is None else self.order)
        for start, norms, fourth, rows in zip(edges, *(one[all_rows].split(sizes) for one in columns), strict=False):
            z, y, pair, root, inverse = room.of(len(rows))
            scale = self._fill(z, rows, room)
            torch.mul(z, z, out=y)
            torch.mv(y, room.ones, out=norms)
            torch.reciprocal(norms, out=inverse)
            torch.sqrt(inverse, out=root)
            torch.sqrt(norms, out=norms)
            torch.linalg.vector_norm(y, dim=1, out=fourth)
            if scale is not None:
                pair[0] = scale
                norms *= scale
                fourth *= scale.square()
            self._add(found, start, pair, inverse, z, y)
        return found

    def _fill(self, z: torch.Tensor, rows: torch.Tensor, room: _Room) -> torch.Tensor | None:
        """Write rows, or those of these numbers, into z; float64 ones divided by the powers of two that come back."""
        x = rows if self.order is None else torch.index_select(self.x, 0, rows, out=room.picked[: len(z)])
        z.copy_(x)
        if x.dtype != torch.float64:
            return None
        largest = torch.maximum(z.amax(1), -z.amin(1))
        exponent = torch.where(largest.isfinite(), largest, 1.0).frexp().exponent.clamp_(-1000, 1000)
        z.ldexp_(-exponent[:, None])
        return torch.ldexp(torch.ones_like(largest), exponent)

    def _add(
        self, found: Binned, start: int, pair: torch.Tensor, inverse: torch.Tensor, z: torch.Tensor, y: torch.Tensor
    ) -> None:
        """Add the products of a block with (1, 1/‖z‖) and with 1/‖z‖²; row by row where it has several stretches."""
        if self.stretch.item(start) == self.stretch.item(start + len(z) - 1):
            bin_of = self.bins.item(start)
            part = slice(bin_of % 2, bin_of % 2 + 1)
            found.sums[bin_of].addmm_(pair, z)
            found.unit2[part].addmm_(inverse[None], y)
            if self.gram:
                found.blocks[start // GRAM_BLOCK, part].addmm_(pair[:1], z)
            return
        where = self.where[start : start + len(z)]
        first = where % 2
        found.sums.index_add_(0, where, pair.T[:, :, None] * z[:, None])
        parts = torch.stack([1 - first, first])  # (2, b)
        found.unit2.addmm_(parts * inverse, y)
        if self.gram:
            found.blocks[start // GRAM_BLOCK].addmm_(parts * pair[0], z)


class _Room:
    """The same memory for every block of a thread: z and y (b, d), and the weights of their rows."""

    def __init__(self, x: torch.Tensor, most: int, *, picks: bool) -> None:
        d, made = x.shape[1], {"dtype": torch.float64, "device": x.device}
        self.blocks, self.weights = torch.empty(2, most, d, **made), torch.ones(3, most, **made)
        self.picked = torch.empty(most if picks else 0, d, dtype=x.dtype, device=x.device)
        self.ones = torch.ones(d, **made)
        self._known: dict[int, tuple[torch.Tensor, ...]] = {}

    def of(self, size: int) -> tuple[torch.Tensor, ...]:
        """z, y, the weights 1 and 1/‖z‖ of sums (2, b), the second of them, and 1/‖z‖²."""
        if size not in self._known:
            weights = self.weights[:, :size]
            self._known[size] = *self.blocks[:, :size], weights[:2], weights[1], weights[2]
        return self._known[size]
