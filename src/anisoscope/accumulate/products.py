"""The sum of products of a block of vectors, Σxxᵀ, or its sketch Σx(xᵀΩ), added to sums in float64.

Products are taken about the block's mean μ, in the precision of the vectors, and moved back to the origin by terms of
rank two in float64: with y = x − μ and r = Σx − bμ,

    Σxxᵀ = Σyyᵀ + rμᵀ + μrᵀ + bμμᵀ = Σyyᵀ + hμᵀ + μhᵀ,   h = r + bμ/2.

Of the symmetric product only one triangle is computed (numpy does that for yᵀy): half the work. The identity holds
about any μ: some threads begin, about the mean of a few rows, while others still sum the rows by bin (`begin`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.threads import NARROW, by_slices, meanwhile, suited_to, threads

Array = NDArray[np.float64]
_ROWS = 256  # where each thread's share begins: at a multiple
_NUMBERS = 2**21  # about their mean at a time
_BINNING = 240  # sums by bin take the time of products of so many dimensions
_SOME = 32  # one row in so many says where a block lies, before its mean is known
_WORTHWHILE = 2048  # rows that are worth beginning with


@dataclass(frozen=True)
class Begun:
    """The products of the first `stop` rows of a block about μ, in other threads."""

    mean: NDArray[np.floating]
    stop: int
    grams: Callable[[], list[NDArray[np.floating]]]


def binning_threads(d: int) -> int | None:
    """How many threads sum by bin while others multiply; none said where there are not enough of them, or of work."""
    number = threads()
    among = max(1, round(number * _BINNING / (_BINNING + d)))
    return among if among < number and _BINNING <= d <= NARROW else None


def begin(x: NDArray[np.floating], without: NDArray[np.int64]) -> Begun | None:
    """Begin with what other threads will have done when this one has summed the rows by bin; None: not worthwhile."""
    d, number = x.shape[1], threads()
    among = binning_threads(d)
    some = np.setdiff1d(np.arange(0, len(x), _SOME), without, assume_unique=True)
    if among is None or len(x) < _WORTHWHILE or len(some) < len(x) // (2 * _SOME):
        return None
    share = min(1.0, (number - among) * (_BINNING + d) / (number * d))
    stop, mean = int(share * len(x)) // _ROWS * _ROWS, x[some].mean(0)
    work = partial(_gram, x, mean, without)
    return Begun(mean, stop, meanwhile(work, stop, multiple=_ROWS, among=number - among))


def add_products(
    sums: dict[str, Any],
    part: str,
    x: NDArray[np.floating],
    total: Array,
    *,
    without: NDArray[np.int64] | None = None,
    omega: Array | None = None,
    begun: Begun | None = None,
) -> None:
    """Add a block with Σx = `total`, some of its rows (sorted) left out: those become zero, nothing is gathered."""
    without = np.zeros(0, dtype=np.int64) if without is None else without
    n = len(x) - len(without)
    if not n:
        return
    mean = (total / n).astype(x.dtype) if begun is None else begun.mean
    shift = mean.astype(float)
    half = total - 0.5 * n * shift
    left, right = np.stack([half, shift], 1), np.stack([shift, half])
    if omega is None:
        second = sums[f"{part}.second"]
        for gram in _grams(x, mean, without, begun):
            second += gram
        with np.errstate(all="ignore"):
            second += left @ right
        sums[f"{part}.single"] += n * (x.dtype == np.float32)
        return
    sketch, square, omega_here = sums[f"{part}.sketch"], sums[f"{part}.square"], omega.astype(x.dtype)
    for y in _centred(x, mean, without, slice(0, len(x))):
        sketch += y.T @ (y @ omega_here)
        square += np.square(y).sum(0, dtype=float)
    sketch += left @ (right @ omega)
    square += 2 * half * shift


def _centred(
    x: NDArray[np.floating], mean: NDArray[np.floating], without: NDArray[np.int64], rows: slice
) -> Iterator[NDArray[np.floating]]:
    """x − μ of some rows, some at a time and in the same memory."""
    size = max(1, min(rows.stop - rows.start, _NUMBERS // x.shape[1]))
    room = np.empty((size, x.shape[1]), x.dtype)
    for start in range(rows.start, rows.stop, size):
        stop = min(start + size, rows.stop)
        y = np.subtract(x[start:stop], mean, out=room[: stop - start])
        begin, end = np.searchsorted(without, [start, stop])
        y[without[begin:end] - start] = 0.0
        yield y


def _grams(
    x: NDArray[np.floating], mean: NDArray[np.floating], without: NDArray[np.int64], begun: Begun | None
) -> Iterator[NDArray[np.floating]]:
    """Σyyᵀ of y = x − μ in the precision of x; of a few hundred dimensions in parts, one per thread."""
    start, among = 0 if begun is None else begun.stop, 1 if x.shape[1] > NARROW else None
    if start < len(x):
        rest = by_slices(
            partial(_gram, x[start:], mean, without[without >= start] - start),
            len(x) - start,
            multiple=_ROWS,
            among=among,
        )
        yield from rest
    if begun is not None:
        yield from begun.grams()


def _gram(
    x: NDArray[np.floating], mean: NDArray[np.floating], without: NDArray[np.int64], rows: slice
) -> NDArray[np.floating]:
    with suited_to(x.shape[1]), np.errstate(all="ignore"):  # what does not fit float64 is missing when it is read
        first, *others = (y.T @ y for y in _centred(x, mean, without, rows))
        for other in others:
            first += other
    return first
