"""Estimates of what stands out of a cloud: its largest entry, where it is, and how norms grow from block to block.

A maximum grows with the number of vectors and has no interval: compare it at equal data. The note names the dimension
and the position (within its sequence) of the largest entries. The median entry is that of sampled vectors. Source: Sun
et al., "Massive Activations in Large Language Models", COLM 2024, which calls an entry massive above 100 and above
1,000 times the median.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anisoscope.accumulate.sums import Sample, Sums
from anisoscope.geometry.missing import Values, ratio
from anisoscope.geometry.nulls.extremes import expected_maximum
from anisoscope.geometry.rows import middle_pair
from anisoscope.inference.estimates import Estimate, estimated
from anisoscope.inference.jackknife import jackknife_of
from anisoscope.inference.metrics import METRICS
from anisoscope.inference.thresholds import THRESHOLDS

if TYPE_CHECKING:
    from anisoscope.accumulate.maxima import Extremes

NAMED = 5  # dimensions in a note
SAMPLED = 256  # vectors for the median entry: with 768 dimensions it is right to about 1 %


def extreme_estimates(
    extremes: Extremes | None, sample: Sample, sums: Sums, entered: Sums | None = None
) -> list[Estimate]:
    """Largest entries, where they were kept, and the growth of the norm, where the block's input is known."""
    found = [] if extremes is None or not sums.n else _activations(extremes, sample, sums)
    if entered is not None and len(entered.group_n) == len(sums.group_n):
        groups = (sums.group_norm, sums.group_n, entered.group_norm, entered.group_n)
        value, low, high = jackknife_of(_growth, *groups, sizes=sums.group_n)
        found.append(estimated(METRICS["norm_growth"], value, low, high, n=sums.n, d=sums.d))
    return found


def _activations(extremes: Extremes, sample: Sample, sums: Sums) -> list[Estimate]:
    largest, where = extremes.arrays["greatest"], extremes.arrays["where"]
    at = int(largest.argmax())
    top = float(largest[at])
    median = _median_entry(sample.x[:SAMPLED]) if len(sample) else None
    place = f"dimension {at} of the vector at position {where[at, 1]} of its sequence"
    rms = (sums.sum_norm2 / (sums.n * sums.d)) ** 0.5
    times = expected_maximum(sums.n * sums.d, absolute=True)
    null = None if times is None or not np.isfinite(rms) else times * rms
    bar = np.inf if median is None else max(THRESHOLDS.massive_value, THRESHOLDS.massive_ratio * median)
    above = np.flatnonzero(largest > bar)
    massive = above[np.argsort(-largest[above], kind="stable")].tolist()
    named = ", ".join(f"dimension {k} (position {where[k, 1]})" for k in massive[:NAMED])
    named += " …" * (len(massive) > NAMED)
    told = {"massive_activation_ratio": (ratio(top, median or 0.0), place)}
    told |= {"massive_dimensions": (float(len(massive)), named)}
    return [
        Estimate("massive_activation", top, null=null, n=sums.n, note=place),
        *(estimated(METRICS[name], value, n=sums.n, d=sums.d, note=note) for name, (value, note) in told.items()),
    ]


def _median_entry(x: NDArray[np.float32]) -> float:
    """The median of |x| over all entries."""
    entries = np.abs(x).reshape(1, -1)
    lower, upper = middle_pair(entries, entries.size // 2) if entries.size > 1 else (entries[0], entries[0])
    return float(upper[0] if entries.size % 2 else np.mean([lower[0], upper[0]], dtype=x.dtype))


def _growth(norm: ArrayLike, n: ArrayLike, norm_before: ArrayLike, n_before: ArrayLike) -> Values:
    return ratio(np.asarray(norm) * n_before, np.asarray(norm_before) * n)


def enters(site: str) -> str:
    """The site that a block reads, by its name; empty for anything but a block.

    >>> enters("decoder.block.3"), enters("block.0"), enters("stage.1.block.2"), enters("final_norm")
    ('decoder.block.2', 'embeddings', 'stage.1.block.1', '')
    """
    block = re.fullmatch(r"(.*)block\.(\d+)", site)
    if block is None:
        return ""
    stack, number = block[1], int(block[2])
    return f"{stack}block.{number - 1}" if number else f"{'' if stack.startswith('stage.') else stack}embeddings"
