"""The sum of products of a block of vectors, Σxxᵀ, or its sketch Σx(xᵀΩ), added to sums in float64.

Products are taken about the block's mean μ, in the precision of the vectors, and moved back to the origin by terms of
rank two in float64: with y = x − μ and r = Σx − bμ,

    Σxxᵀ = Σyyᵀ + rμᵀ + μrᵀ + bμμᵀ = Σyyᵀ + hμᵀ + μhᵀ,   h = r + bμ/2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope.accumulate.threads import by_slices

_PANEL = 128
NARROW = 1024  # dimensions above which a product keeps all threads busy
_ROWS = 1024  # about their mean at a time: they stay in the cache


def add_products(
    sums: Mapping[str, torch.Tensor],
    part: str,
    x: torch.Tensor,
    total: torch.Tensor,
    *,
    without: NDArray[np.int64] | None = None,
    omega: torch.Tensor | None = None,
) -> None:
    """Add a block with Σx = `total`, some of its rows (sorted) left out: those become zero, nothing is gathered."""
    without = np.zeros(0, dtype=np.int64) if without is None else without
    n = len(x) - len(without)
    if not n:
        return
    mean = (total / n).to(x.dtype)
    shift = mean.double()
    half = total - 0.5 * n * shift
    left, right = torch.stack([half, shift], 1), torch.stack([shift, half])
    if omega is None:
        second = sums[f"{part}.second"]
        for gram in _grams(x, mean, without):
            second += gram
        second.addmm_(left, right)
        sums[f"{part}.single"].add_(n * (x.dtype == torch.float32))
        return
    sketch, square, omega32 = sums[f"{part}.sketch"], sums[f"{part}.square"], omega.to(x.dtype)
    for y in _centred(x, mean, without, slice(0, len(x))):
        sketch += y.T @ (y @ omega32)
        square += y.square().sum(0, dtype=torch.float64)
    sketch.addmm_(left, right @ omega)
    square += 2 * half * shift


def _centred(x: torch.Tensor, mean: torch.Tensor, without: NDArray[np.int64], rows: slice) -> Iterator[torch.Tensor]:
    """x − μ of some rows, a few at a time and in the same memory."""
    room = torch.empty(min(_ROWS, rows.stop - rows.start), x.shape[1], dtype=x.dtype, device=x.device)
    for start in range(rows.start, rows.stop, _ROWS):
        stop = min(start + _ROWS, rows.stop)
        y = torch.sub(x[start:stop], mean, out=room[: stop - start])
        begin, end = np.searchsorted(without, [start, stop])
        if end > begin:
            y[torch.from_numpy(without[begin:end] - start).to(x.device)] = 0.0
        yield y


def _grams(x: torch.Tensor, mean: torch.Tensor, without: NDArray[np.int64]) -> list[torch.Tensor]:
    """Σyyᵀ of y = x − μ in the precision of x; of a few hundred dimensions in parts, one per thread."""

    def work(rows: slice) -> torch.Tensor:
        gram = torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype, device=x.device)
        for y in _centred(x, mean, without, rows):
            for start in range(0, len(gram), _PANEL):  # of one triangle: what is symmetric is computed once
                stop = min(start + _PANEL, len(gram))
                gram[start:stop, :stop].addmm_(y[:, start:stop].T, y[:, :stop])
        for start in range(0, len(gram), _PANEL):
            stop = min(start + _PANEL, len(gram))
            gram[:start, start:stop] = gram[start:stop, :start].T
        return gram

    if x.shape[1] > NARROW:
        return [work(slice(0, len(x)))]
    return by_slices(work, len(x), multiple=_ROWS, device=x.device)
