"""Estimates from a sample of whole vectors: neighbours, pair cosines, uniformity, and what centring would leave.

The sample is a prefix of the reservoir, at most 2,048 vectors, and n says how many. Intervals are bootstraps over
sequences with distances held fixed. Cost O(m²·d).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.sums import Sample
from anisoscope.geometry import directional, neighbours, pairs
from anisoscope.geometry.missing import ratio
from anisoscope.geometry.nulls.isotropic import equivalent_dimension
from anisoscope.geometry.rows import unit_rows
from anisoscope.inference.bootstrap import bootstrap, sequence_weights
from anisoscope.inference.estimates import Estimate, estimated
from anisoscope.inference.metrics import lookup

SAMPLE = 2048
FEWEST = 32
LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_NEIGHBOURS = 10

Array = NDArray[np.float64]


def neighbourhood_estimates(sample: Sample, *, seed: int = 0) -> list[Estimate]:
    """Everything that needs whole vectors; empty where there are fewer than 32 of them."""
    sample = sample.where(np.arange(len(sample)) < SAMPLE) if len(sample) > SAMPLE else sample
    if len(sample) < FEWEST:
        return []
    x, d = sample.span, sample.x.shape[1]
    weights = sequence_weights(sample.keys, seed=seed)
    found = [*_pair_cosines(x, d, weights), *_removals(x, d, weights), *_dimensions(x, d, weights)]
    return [*found, _bingham(sample, x, d)]


def _pair_cosines(x: Array, d: int, weights: Array | None) -> list[Estimate]:
    """Quantiles of the pair cosines, their sd, the equivalent dimension, and Wang & Isola's uniformity."""
    m = len(x)
    found = pairs.pair_cosines(x)
    units = unit_rows(x)
    gram = units @ units.T
    square = found.mean_square()
    estimates = [
        estimated(lookup(f"cosine_q{round(100 * level):02d}"), float(value), n=m, d=d)
        for level, value in zip(LEVELS, found.quantile(LEVELS), strict=True)
    ]
    estimates.append(estimated(lookup("cosine_sd"), found.sd(), n=m, d=d))
    low, high = bootstrap(lambda w: _pair_mean(np.square(gram), w), weights, square)
    estimates.append(estimated(lookup("cosine_mean_square"), square, low, high, n=m, d=d))
    dimension = equivalent_dimension(square)
    ends = (None if high is None else 1 / high, None if low is None or low <= 0 else 1 / low)
    estimates.append(estimated(lookup("equivalent_dimension"), dimension, *ends, n=m, d=d))
    kernel = np.exp(4.0 * (gram - 1.0))  # exp(−2‖u−v‖²)
    value = float(np.log((kernel.sum() - np.trace(kernel)) / (m * (m - 1))))
    low, high = bootstrap(lambda w: np.log(_pair_mean(kernel, w)), weights, value)
    return [*estimates, estimated(lookup("uniformity"), value, low, high, n=m, d=d)]


def _pair_mean(kernel: Array, weights: Array) -> Array:
    """The weighted mean of a kernel over pairs of different points, for each row of weights (B, m)."""
    total, own = weights.sum(1), np.square(weights).sum(1)
    joint = np.einsum("bi,bi->b", weights @ kernel, weights) - np.square(weights) @ np.diag(kernel)
    return joint / (np.square(total) - own)


def _removals(x: Array, d: int, weights: Array | None) -> list[Estimate]:
    """The average cosine after the usual post-processing: centring, and the top d/100 principal components removed."""
    m = len(x)
    top = max(1, round(d / 100))
    centred = x - x.mean(0)
    removed = {"mean_cosine_centred": (centred, pairs.mean_cosine_centred(x), "")}
    if top < min(m - 1, d):
        directions = pairs.principal_directions(centred, top)
        rest = centred - (centred @ directions) @ directions.T
        note = f"top {top} components removed"
        removed["mean_cosine_without_top"] = (rest, pairs.mean_cosine_without_top(x, top), note)
    found = []
    for name, (rows, value, note) in removed.items():
        norms = np.linalg.norm(rows, axis=1)
        units = rows / np.where(norms > 0, norms, 1.0)[:, None]  # a row that is nothing now weighs nothing
        kept = None if weights is None else weights * (norms > 0)
        low, high = bootstrap(lambda w, u=units: _mean_cosine(u, w), kept, value)
        found.append(estimated(lookup(name), value, low, high, n=m, d=d, note=note))
    return found


def _mean_cosine(units: Array, weights: Array) -> Array:
    total, own = weights.sum(1), np.square(weights).sum(1)
    return (np.square(weights @ units).sum(1) - own) / (np.square(total) - own)


def _dimensions(x: Array, d: int, weights: Array | None) -> list[Estimate]:
    """Intrinsic dimension (TwoNN, maximum likelihood) and hubness, from one neighbour search."""
    m = len(x)
    k = min(_NEIGHBOURS, m - 1)
    distances, indices = neighbours.nearest(x, k)
    repeated = neighbours.duplicates(distances)
    note = f"{repeated} duplicated vectors left out" if repeated else ""
    ratios, inverse = neighbours.twonn_point_terms(distances), neighbours.mle_point_terms(distances, k)

    def twonn_of(w: Array) -> Array:
        return np.array([neighbours.twonn_from_terms(np.repeat(ratios, row.astype(int))) or np.nan for row in w])

    def mle_of(w: Array) -> Array:
        usable = np.isfinite(inverse)
        return ratio(w[:, usable].sum(1), w[:, usable] @ inverse[usable])

    occurrence = np.bincount(indices.ravel(), minlength=m).astype(float)
    estimates = []
    for name, value, statistic in (
        ("twonn", neighbours.twonn(distances), twonn_of),
        ("mle_dimension", neighbours.mle_dimension(distances, k), mle_of),
        ("hubness", neighbours.hubness(indices, m, k=k), lambda w: _skewness(occurrence, w)),
    ):
        low, high = bootstrap(statistic, weights, value)
        estimates.append(estimated(lookup(name), value, low, high, n=m, d=d, note=note))
    return estimates


def _skewness(values: Array, weights: Array) -> Array:
    total = weights.sum(1)
    mean = weights @ values / total
    deviation = values[None] - mean[:, None]
    variance = (weights * deviation**2).sum(1) / total
    return (weights * deviation**3).sum(1) / total / variance**1.5


def _bingham(sample: Sample, x: Array, d: int) -> Estimate:
    test = directional.bingham_test(x, d=d, sequences=sample.keys)
    note = "" if test is None else f"B = {test.statistic:.4g}, mean {test.degrees:.4g} under uniformity"
    p = None if test is None else test.p_value
    return estimated(lookup("bingham_p"), p, n=len(x), d=d, note=note)
