"""A histogram of attention scores whose bins never change, so that histograms add.

Scores span from hundredths (untrained) to hundreds (T5, which does not scale), so the bins are those of a float: each
octave [2^e, 2^(e+1)) of |score| is cut into 16 equal parts, on both sides of zero, from 2^−10 to 2^12; one bin holds
everything nearer to zero, two hold what is beyond. A bin is at most 6 % wide. The cell of a score is its sign, its
exponent and the first four bits of its mantissa, which are the upper 13 bits of its float32: one shift a score.

>>> counts = fold_cells(count_cells(torch.tensor([[[[0.0, 1.0, 1.02, -3.0, float("nan")]]]])))  # NaN does not count
>>> edges = score_edges()
>>> [(edges[k].item(), edges[k + 1].item(), counts[0, k].item()) for k in counts[0].nonzero().flatten()]
[(-3.125, -3.0, 1), (-0.0009765625, 0.0009765625, 1), (1.0, 1.0625, 2)]
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.accumulate.threads import by_slices

_MANTISSA = 4
_LOWEST, _HIGHEST = -10, 12  # octaves, as powers of two
_SHIFT = 23 - _MANTISSA
CELLS = 2 ** (32 - _SHIFT)
_ONE_SIDE = (_HIGHEST - _LOWEST) * 2**_MANTISSA
BINS = 2 * _ONE_SIDE + 3


@cache
def score_edges() -> NDArray[np.float64]:
    """The BINS + 1 edges, from −∞ to ∞; a bin holds its edge that is nearer to zero."""
    octaves = 2.0 ** np.arange(_LOWEST, _HIGHEST)
    positive = (octaves[:, None] * (1 + np.arange(2**_MANTISSA) / 2**_MANTISSA)).ravel()
    positive = np.append(positive, [2.0**_HIGHEST, np.inf])
    return np.concatenate([-positive[::-1], positive])


def count_cells(scores: Tensor, into: Tensor | None = None) -> Tensor:
    """How many scores (b, heads, q, k) of each head fall in each cell, (heads, cells), added to what is given.

    NaN has a cell of its own.
    """
    heads = scores.shape[1]
    counts = torch.zeros(heads, CELLS, dtype=torch.int64) if into is None else into
    bits, totals = scores.float().cpu().numpy().view(np.uint32), counts.numpy()

    def count(some: slice) -> None:
        room = np.empty((len(bits), *bits.shape[2:]), np.int64)
        for head in range(some.start, some.stop):
            np.right_shift(bits[:, head], _SHIFT, out=room, casting="unsafe")
            totals[head] += np.bincount(room.ravel(), minlength=CELLS)

    by_slices(count, heads)
    return counts


def fold_cells(cells: Tensor) -> Tensor:
    """Cells (heads, cells) into bins (heads, BINS), without the cells of NaN."""
    bins = torch.zeros(len(cells), BINS + 1, dtype=torch.int64)
    return bins.index_add_(1, _bin_of_cell(), cells)[:, :BINS]


@cache
def _bin_of_cell() -> Tensor:
    """The bin of each cell; BINS, which is none, for NaN."""
    cell = np.arange(CELLS, dtype=np.uint32)
    with np.errstate(invalid="ignore"):  # some cells are signalling NaN
        least = (cell << _SHIFT).view(np.float32).astype(np.float64)  # in magnitude
    rank = np.searchsorted(score_edges()[_ONE_SIDE + 2 :], np.abs(least), side="right")  # 0: about zero
    signed = np.where(np.signbit(least), _ONE_SIDE + 1 - rank, _ONE_SIDE + 1 + rank)
    return torch.from_numpy(np.where(np.isnan(least), BINS, np.clip(signed, 0, BINS - 1)))
