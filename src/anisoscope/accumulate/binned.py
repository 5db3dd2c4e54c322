"""Sums over the rows of each bin (a sequence or a jackknife group), in float64, by blocks that stay in the cache.

The steps on a block are many and short: each thread takes blocks of its own, with sums of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope.accumulate.threads import by_slices

BLOCK = 512  # rows in float64 at a time: they stay in the cache
GRAM_BLOCK = 8192  # a multiple of BLOCK
_LARGE = 2**22  # numbers in the sums of all bins: above, one thread does it all, for each would need its own


@dataclass(frozen=True)
class Binned:
    """What the rows x of each bin sum to, with u = x/‖x‖; odd bins hold first positions."""

    x: torch.Tensor  # (bins, d): Σx
    unit: torch.Tensor  # (bins, d): Σu
    unit2: torch.Tensor  # (2, d): Σu∘u over the other positions, over first ones
    blocks: torch.Tensor  # (blocks, 2, d): Σx of every `GRAM_BLOCK` rows, of other positions and of first ones

    def add(self, other: Binned) -> None:
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine += theirs


def zeros(*shape: int, device: torch.device, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    with torch.inference_mode(False):  # a capture may make them in inference mode; they are added to after it
        return torch.zeros(*shape, dtype=dtype, device=device)


def binned(
    x: torch.Tensor, norms: torch.Tensor, bins: NDArray[np.int64], count: int, first: NDArray[np.bool_], *, gram: bool
) -> tuple[Binned, torch.Tensor]:
    """The sums of rows x (n, d) by bin, and (Σ1, Σ‖x‖, Σ‖x‖², ΣΣ_k x_k⁴) of each bin, (4, count).

    Σx of blocks is left at zero where no Gram matrix needs it, but for first positions.
    """
    where, fourth = torch.from_numpy(bins).to(x.device), zeros(len(x), device=x.device)

    def work(rows: slice) -> Binned:
        return _of_rows(x, norms, where, count, first, fourth, rows, gram=gram)

    large = count * x.shape[1] > _LARGE
    found, *others = by_slices(work, len(x), multiple=len(x) if large else BLOCK, device=x.device)
    for other in others:
        found.add(other)
    totals, square = zeros(4, count, device=x.device), norms * norms
    totals.index_add_(1, where, torch.stack([torch.ones_like(norms), norms, square, fourth * square * square]))
    return found, totals


def _of_rows(
    x: torch.Tensor,
    norms: torch.Tensor,
    where: torch.Tensor,
    count: int,
    first: NDArray[np.bool_],
    fourth: torch.Tensor,
    rows: slice,
    *,
    gram: bool,
) -> Binned:
    """The sums of some rows; their Σ_k u_k⁴ is written to `fourth`."""
    d, device = x.shape[1], x.device
    sum_x, sum_unit, squares = (zeros(n, d, device=device) for n in (count, count, 2))
    blocks = zeros(-(-len(x) // GRAM_BLOCK), 2, d, device=device)
    room = zeros(2, min(BLOCK, len(x)), d, device=device)  # the same memory for every block
    for start in range(rows.start, rows.stop, BLOCK):
        some = slice(start, min(start + BLOCK, rows.stop))
        block, units = room[:, : some.stop - start]  # (b, d) each
        block.copy_(x[some])
        sum_x.index_add_(0, where[some], block)
        torch.div(block, norms[some, None], out=units)
        sum_unit.index_add_(0, where[some], units)
        total, apart = blocks[start // GRAM_BLOCK], np.flatnonzero(first[some])
        if gram:
            total[0] += block.sum(0)
        if len(apart):
            at = torch.from_numpy(apart).to(device)
            firsts, first_units = block[at].sum(0), units[at]
            total += torch.stack([-firsts, firsts])
            squares[1] += first_units.square_().sum(0)
            fourth[start + at] = _squares(first_units)
            units[at] = 0.0
        squares[0] += units.square_().sum(0)
        fourth[some] += _squares(units)
    return Binned(sum_x, sum_unit, squares, blocks)


def _squares(x: torch.Tensor) -> torch.Tensor:
    """Σ_k x_k² of each row: as a norm, which is six times faster than a sum of products."""
    return torch.linalg.vector_norm(x, dim=1).square_()
