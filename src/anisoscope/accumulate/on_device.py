"""The sums of a block that lies on an accelerator, made there: what `binned` and `products` do with arrays, in torch.

Only sums leave the device, but for the d×d products, which stay on it. An accelerator has no cache to stay in, and its
calls are what costs: blocks are large.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.accumulate.binned import GRAM_BLOCK, Array, Binned, totals_of

_NUMBERS = 2**22  # in float64 at a time


def binned(x: Tensor, bins: NDArray[np.int64], count: int, *, gram: bool) -> tuple[Binned, Array, Array]:
    """As `binned.binned`."""
    found = [torch.from_numpy(one).to(x.device) for one in vars(Binned.empty(len(x), count, x.shape[1])).values()]
    sums, unit2, blocks, fourth = found
    where, norms = torch.from_numpy(bins).to(x.device), torch.empty(len(x), dtype=torch.float64, device=x.device)
    size = min(GRAM_BLOCK, 1 << max(0, (_NUMBERS // x.shape[1]).bit_length() - 1))  # a power of two divides the other
    for rows in (slice(start, start + size) for start in range(0, len(x), size)):
        z, scale = _scaled(x[rows].double())
        bin_of, y, norm = where[rows], z.square(), torch.linalg.vector_norm(z, dim=1)
        parts = torch.stack([1 - bin_of % 2, bin_of % 2]).double()  # (2, b)
        sums.index_add_(0, bin_of, torch.stack([scale, 1 / norm], 1)[:, :, None] * z[:, None])
        unit2.addmm_(parts / norm.square(), y)
        fourth.index_add_(0, bin_of, scale**4 * y.square().sum(1))
        norms[rows] = norm * scale
        if gram:
            blocks[rows.start // GRAM_BLOCK].addmm_(parts * scale, z)
    lengths = norms.cpu().numpy()
    host = Binned(*(one.cpu().numpy() for one in found))
    return host, totals_of(bins, count, lengths, host.fourth), lengths


def _scaled(z: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of float64 divided by a power of two each, which come back: fourth powers stay in range."""
    largest = z.abs().amax(1)
    exponent = torch.where(largest.isfinite(), largest, 1.0).frexp().exponent.clamp(-1000, 1000)
    return z.ldexp(-exponent[:, None]), torch.ldexp(torch.ones_like(largest), exponent)


def add_products(
    sums: dict[str, Any],
    part: str,
    x: Tensor,
    total: Array,
    *,
    without: NDArray[np.int64] | None = None,
    omega: Array | None = None,
) -> None:
    """As `products.add_products`; the long sums are tensors of this device."""
    n = len(x) - (0 if without is None else len(without))
    if not n:
        return
    whole = torch.from_numpy(total).to(x.device)
    mean = (whole / n).to(x.dtype)
    shift, y = mean.double(), x - mean
    if without is not None:
        y[torch.from_numpy(without).to(x.device)] = 0.0
    half = whole - 0.5 * n * shift
    left, right = torch.stack([half, shift], 1), torch.stack([shift, half])
    if omega is None:
        sums[f"{part}.second"].add_(y.mT @ y).addmm_(left, right)
        sums[f"{part}.single"] += n * (x.dtype == torch.float32)
        return
    axes = torch.from_numpy(omega.copy()).to(x.device)
    sums[f"{part}.sketch"].add_(y.mT @ (y @ axes.to(x.dtype))).addmm_(left, right @ axes)
    sums[f"{part}.square"].add_(y.square().sum(0, dtype=torch.float64) + 2 * half * shift)
