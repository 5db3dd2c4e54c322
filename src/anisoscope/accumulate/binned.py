"""Sums over the rows of each bin (a sequence or a jackknife group), in float64, by blocks that stay in the cache.

A block of rows becomes z (b, d) in float64 and y = z∘z once; the rest are products of those with few rows, which read
them from the cache:

    ‖z‖² = y·1      (Σx, Σu) of a stretch of one bin = (1, 1/‖z‖)·z      Σu∘u = (1/‖z‖²)·y      ΣΣ_k z_k⁴ = y·y

Each thread takes blocks of its own, with sums of its own. Rows whose bins alternate are sorted by bin first, where
stretches are short; a block then has several, which one product with ones and zeros tells apart. float64 vectors beyond
norms of 1e±70 are divided by a power of two each, which keeps fourth powers in range and is exact. Nothing is rounded
to less than float64: of n rows the sums are right to about n·1e-16 of the sum of their sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.threads import by_slices

Array = NDArray[np.float64]
GRAM_BLOCK = 8192  # rows whose Σx is kept apart, for the mean about which a Gram matrix is taken
_NUMBERS = 2**16  # in a block: two of them in float64 stay in the cache
_SHORT = 2**13  # numbers of a stretch, below which several make a block
_SEVERAL = 64  # rows of such a block
_LARGE = 2**22  # numbers in the sums of all bins: above, one thread does it all, for each would need its own
_SAFE = (1e-140, 1e140)  # squared norms whose squares are right


@dataclass(frozen=True)
class Binned:
    """What the rows x of each bin sum to, with u = x/‖x‖; odd bins hold first positions."""

    sums: Array  # (bins, 2, d): Σx and Σu
    unit2: Array  # (2, d): Σu∘u over the other positions, over first ones
    blocks: Array  # (blocks, 2, d): Σx of every `GRAM_BLOCK` rows, of other positions and of first ones
    fourth: Array  # (bins,): ΣΣ_k x_k⁴

    @classmethod
    def empty(cls, n: int, count: int, d: int) -> Binned:
        shapes = ((count, 2, d), (2, d), (-(-n // GRAM_BLOCK), 2, d), (count,))
        return cls(*(np.zeros(shape) for shape in shapes))

    def add(self, other: Binned) -> None:
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine += theirs


def binned(
    x: NDArray[np.floating], bins: NDArray[np.int64], count: int, *, gram: bool, among: int | None = None
) -> tuple[Binned, Array, Array]:
    """The sums of rows x (n, d) by bin; (Σ1, Σ‖x‖, Σ‖x‖², ΣΣ_k x_k⁴) of each bin, (4, count); and the norms, (n,).

    Where a norm is zero or not finite, sums are not finite either. Σx of blocks is left at zero without `gram`.
    """
    rows = _Rows(x, bins, count, gram=gram)
    edges = rows.edges()
    among = 1 if count * x.shape[1] > _LARGE else among
    found, *others = by_slices(lambda some: rows.sums(edges[some.start : some.stop + 1]), len(edges) - 1, among=among)
    for other in others:
        found.add(other)
    norms = rows.norms
    if rows.order is not None:
        norms = np.empty_like(norms)
        norms[rows.order] = rows.norms
    return found, totals_of(bins, count, norms, found.fourth), norms


def totals_of(bins: NDArray[np.int64], count: int, norms: Array, fourth: Array) -> Array:
    """(Σ1, Σ‖x‖, Σ‖x‖², ΣΣ_k x_k⁴) of each bin, (4, count)."""
    with np.errstate(all="ignore"):
        each = (None, norms, np.square(norms))
        return np.stack([*(np.bincount(bins, one, minlength=count) for one in each), fourth]).astype(float)


class _Rows:
    """Rows in the order of their bins, or as they came; their norms are filled in by the way."""

    def __init__(self, x: NDArray[np.floating], bins: NDArray[np.int64], count: int, *, gram: bool) -> None:
        self.x, self.count, self.gram = x, count, gram
        self.short = self._stretches(bins) * _SHORT > x.size
        self.order = self._sorted(bins) if self.short else None
        self.bins = bins if self.order is None else bins[self.order]
        self.short = self.short and self._stretches(self.bins) * _SHORT > x.size
        self.norms = np.empty(len(x))

    @staticmethod
    def _stretches(bins: NDArray[np.int64]) -> int:
        return 1 + int(np.count_nonzero(bins[1:] != bins[:-1]))

    def _sorted(self, bins: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The rows of every `GRAM_BLOCK` by bin, unless they are in that order."""
        place = np.arange(len(bins)) // GRAM_BLOCK * self.count + bins
        return None if bool(np.all(place[1:] >= place[:-1])) else np.argsort(place, kind="stable")

    def edges(self) -> list[int]:
        """Where blocks begin and end: one stretch each, where stretches are long."""
        row, most = np.arange(len(self.x)), max(1, min(_NUMBERS // self.x.shape[1], GRAM_BLOCK))
        if self.short:
            size = min(_SEVERAL, most)
            starts = np.flatnonzero((row % GRAM_BLOCK % size) == 0)
            return [*starts.tolist(), len(row)]
        stretch = np.concatenate([[0], np.cumsum(self.bins[1:] != self.bins[:-1])])  # of each row
        begins = np.flatnonzero(np.diff(stretch, prepend=-1))
        length = np.diff(begins, append=len(row))
        pieces = -(-length // most)  # of each stretch, of the same size
        piece = (row - begins[stretch]) * pieces[stretch] // length[stretch]
        parts = (row // GRAM_BLOCK, stretch, piece)
        starts = np.flatnonzero(np.any([part[1:] != part[:-1] for part in parts], 0)) + 1
        return [0, *starts.tolist(), len(row)]

    def sums(self, edges: list[int]) -> Binned:
        """The sums of the blocks between these edges."""
        d, most = self.x.shape[1], max(1, max(np.diff(edges), default=1))
        found = Binned.empty(len(self.x), self.count, d)
        held, ones, weights = np.empty((2, most, d)), np.ones(d), np.ones((2, most))
        picked = np.empty((0 if self.order is None else most, d), self.x.dtype)
        add = self._add_several if self.short else self._add_stretch
        with np.errstate(all="ignore"):
            for start, stop in pairwise(edges):
                size = stop - start
                z, y, pair = held[0, :size], held[1, :size], weights[:, :size]
                if self.order is None:
                    np.copyto(z, self.x[start:stop])
                else:  # all numbers are in range; this mode writes them where they belong at once
                    np.copyto(z, self.x.take(self.order[start:stop], 0, out=picked[:size], mode="clip"))
                scale = self._square(z, y, ones, norms := self.norms[start:stop])
                np.sqrt(norms, out=norms)  # of z, which is x over `scale`
                np.reciprocal(norms, out=pair[1])
                add(found, start, pair, scale, z, y)
                if scale is not None:
                    norms *= scale
        return found

    def _square(self, z: Array, y: Array, ones: Array, out: Array) -> Array | None:
        """y = z∘z and its sums by row; z divided by the powers of two that come back, where squares would not fit."""
        np.multiply(z, z, out=y)
        np.dot(y, ones, out=out)
        if self.x.dtype != np.float64 or bool(np.all((out > _SAFE[0]) & (out < _SAFE[1]))):
            return None
        largest = np.maximum(z.max(1), -z.min(1))
        exponent = np.frexp(np.where(np.isfinite(largest), largest, 1.0))[1].clip(-1000, 1000)
        z *= np.ldexp(1.0, -exponent)[:, None]
        np.multiply(z, z, out=y)
        np.dot(y, ones, out=out)
        return np.ldexp(1.0, exponent)

    def _add_stretch(self, found: Binned, start: int, pair: Array, scale: Array | None, z: Array, y: Array) -> None:
        """Add a block of one bin."""
        bin_of, pair = self.bins[start], pair if scale is None else np.stack([scale, pair[1]])
        plain, unit = pair[0] @ z, pair[1] @ z  # one product with both takes twice as long
        found.sums[bin_of, 0] += plain
        found.sums[bin_of, 1] += unit
        found.unit2[bin_of % 2] += np.square(pair[1]) @ y
        found.fourth[bin_of] += np.vdot(y, y) if scale is None else np.square(scale) ** 2 @ np.square(y).sum(1)
        if self.gram:
            found.blocks[start // GRAM_BLOCK, bin_of % 2] += plain

    def _add_several(self, found: Binned, start: int, pair: Array, scale: Array | None, z: Array, y: Array) -> None:
        """Add a block of several bins, in order."""
        bins, inverse = np.unique(self.bins[start : start + len(z)], return_inverse=True)
        belongs = (inverse == np.arange(len(bins))[:, None]).astype(float)  # (bins, rows)
        plain = pair[0] if scale is None else scale
        sums = np.concatenate([belongs * plain, belongs * pair[1]]) @ z
        found.sums[bins] += sums.reshape(2, len(bins), -1).swapaxes(0, 1)
        first = (bins % 2)[inverse]
        found.unit2[:] += np.stack([1 - first, first]) * np.square(pair[1]) @ y
        found.fourth[bins] += belongs @ (plain**4 * np.square(y).sum(1))
        if self.gram:
            found.blocks[start // GRAM_BLOCK] += np.stack([1 - first, first]) * plain @ z
