"""The sum of products of a block of vectors, Σxxᵀ, or its sketch Σx(xᵀΩ), added to sums in float64.

Products are taken about the block's mean μ, in the precision of the vectors, and moved back to the origin by terms of
rank two in float64: with y = x − μ and r = Σx − bμ,

    Σxxᵀ = Σyyᵀ + rμᵀ + μrᵀ + bμμᵀ = Σyyᵀ + hμᵀ + μhᵀ,   h = r + bμ/2.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from anisoscope.accumulate.threads import by_slices

_PANEL = 128
NARROW = 1024  # dimensions above which a product keeps all threads busy
_ROWS = 1024  # in a slice at least


def add_products(
    sums: Mapping[str, torch.Tensor],
    part: str,
    x: torch.Tensor,
    total: torch.Tensor,
    *,
    without: torch.Tensor | None = None,
    omega: torch.Tensor | None = None,
) -> None:
    """Add a block with Σx = `total`, some of its rows left out: those become zero, nothing is gathered."""
    n = len(x) - (0 if without is None else len(without))
    if not n:
        return
    mean = (total / n).to(x.dtype)
    shift, y = mean.double(), torch.empty_like(x)
    by_slices(lambda rows: torch.sub(x[rows], mean, out=y[rows]), len(x), multiple=_ROWS, device=x.device)
    if without is not None and len(without):
        y[without] = 0.0
    half = total - 0.5 * n * shift
    left, right = torch.stack([half, shift], 1), torch.stack([shift, half])
    if omega is None:
        second = sums[f"{part}.second"]
        second += _gram(y)
        second.addmm_(left, right)
        sums[f"{part}.single"].add_(n * (x.dtype == torch.float32))
        return
    sketch, square = sums[f"{part}.sketch"], sums[f"{part}.square"]
    sketch += (y.T @ (y @ omega.to(y.dtype))).double()
    sketch.addmm_(left, right @ omega)
    square += y.square().sum(0, dtype=torch.float64) + 2 * half * shift


def _gram(y: torch.Tensor) -> torch.Tensor:
    """yᵀy in float64; of a few hundred dimensions the sum of those of slices of rows, one per thread."""
    if y.shape[1] > NARROW:
        return _panels(y).double()
    slices = by_slices(lambda rows: _panels(y[rows]), len(y), multiple=_ROWS, device=y.device)
    return sum((one.double() for one in slices[1:]), slices[0].double())


def _panels(y: torch.Tensor) -> torch.Tensor:
    """yᵀy, by panels of one triangle: what is symmetric is computed once."""
    d = y.shape[1]
    gram = torch.empty(d, d, dtype=y.dtype, device=y.device)
    for start in range(0, d, _PANEL):
        stop = min(start + _PANEL, d)
        panel = y[:, start:stop].T @ y[:, :stop]
        gram[start:stop, :stop] = panel
        gram[:start, start:stop] = panel[:, :start].T
    return gram
