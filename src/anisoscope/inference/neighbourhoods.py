"""Estimates from a sample of whole vectors: neighbours, pair cosines, uniformity, and what centring would leave.

The sample is a prefix of the reservoir, at most 2,048 vectors, and n says how many. Intervals are bootstraps over
sequences with distances held fixed. Cost O(m²·d).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.sums import Sample
from anisoscope.geometry import directional, neighbours, pairs
from anisoscope.geometry.missing import ratio
from anisoscope.geometry.nulls.isotropic import equivalent_dimension
from anisoscope.geometry.rows import CACHED, row_blocks
from anisoscope.inference.bootstrap import Draws, bootstrap, sequence_draws
from anisoscope.inference.estimates import Estimate, estimated, left_out
from anisoscope.inference.metrics import lookup

SAMPLE = 2048
FEWEST = 32
LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_NEIGHBOURS = 10

Array = NDArray[np.float64]


def neighbourhood_estimates(sample: Sample) -> list[Estimate]:
    """Everything that needs whole vectors; empty where there are fewer than 32 of them."""
    sample = sample.where(np.arange(len(sample)) < SAMPLE) if len(sample) > SAMPLE else sample
    if len(sample) < FEWEST:
        return []
    x, d = sample.span, sample.x.shape[1]
    draws = sequence_draws(sample.keys)
    products = pairs.centred_products(x)  # the one product of all pairs: distances first, then cosines in its place
    dimensions = _dimensions(x, d, draws, products)
    removals = _removals(x, d, draws)
    gram = pairs.cosines(x, products=products)
    return [*_pair_cosines(gram, d, draws), *removals, *dimensions, _bingham(sample, x, d, gram)]


def _pair_cosines(gram: Array, d: int, draws: Draws | None) -> list[Estimate]:
    """Quantiles of the pair cosines (m, m), their sd, the equivalent dimension, and Wang & Isola's uniformity."""
    m, found = len(gram), pairs.above_diagonal(gram)
    found.sort()
    square = float(found @ found) / len(found)
    estimates = [
        estimated(lookup(f"cosine_q{round(100 * level):02d}"), float(value), n=m, d=d)
        for level, value in zip(LEVELS, pairs.sorted_quantiles(found, LEVELS), strict=True)
    ]
    estimates.append(estimated(lookup("cosine_sd"), float(found.std()), n=m, d=d))
    low, high = bootstrap(lambda draws: _pair_mean(gram, np.square, draws), draws, square)
    estimates.append(estimated(lookup("cosine_mean_square"), square, low, high, n=m, d=d))
    dimension = equivalent_dimension(square)
    ends = (None if high is None else 1 / high, None if low is None or low <= 0 else 1 / low)
    estimates.append(estimated(lookup("equivalent_dimension"), dimension, *ends, n=m, d=d))
    value = float(np.log(_nearness(found).mean()))
    low, high = bootstrap(lambda draws: np.log(_pair_mean(gram, _nearness, draws)), draws, value)
    return [*estimates, estimated(lookup("uniformity"), value, low, high, n=m, d=d)]


def _nearness(cosines: Array) -> Array:
    """exp(−2‖u−v‖²) of unit vectors of these cosines."""
    found = cosines - 1.0
    found *= 4.0
    return np.exp(found, out=found)


def _pair_mean(gram: Array, kernel: Callable[[Array], Array], draws: Draws) -> Array:
    """The weighted mean of a kernel over pairs of different points, for each draw."""
    total, own = draws.totals()
    return draws.pair_sums(gram, kernel) / (np.square(total) - own)


def _removals(x: Array, d: int, draws: Draws | None) -> list[Estimate]:
    """The average cosine after the usual post-processing: centring, and the top d/100 principal components removed."""
    m, top, centred = len(x), max(1, round(d / 100)), x - x.mean(axis=0)
    removed = {"mean_cosine_centred": (pairs.without_top(x, 0, centred=centred), "")}
    if top < min(m - 1, d):
        units = pairs.without_top(x, top, centred=centred)
        removed["mean_cosine_without_top"] = units, f"top {top} components removed"
    found = []
    for name, (units, note) in removed.items():
        left = np.asarray(units.any(1))  # a row that is nothing now weighs nothing
        value = pairs.mean_cosine_of(units)
        low, high = bootstrap(lambda draws, u=units, left=left: _mean_cosine(u, left, draws), draws, value)
        found.append(estimated(lookup(name), value, low, high, n=m, d=d, note=note))
    return found


def _mean_cosine(units: Array, left: NDArray[np.bool_], draws: Draws) -> Array:
    total, own = draws.totals(left.astype(float))
    return (np.square(draws.sums(units)).sum(1) - own) / (np.square(total) - own)


def _dimensions(x: Array, d: int, draws: Draws | None, products: Array) -> list[Estimate]:
    """Intrinsic dimension (TwoNN, maximum likelihood) and hubness, from one neighbour search."""
    m = len(x)
    k = min(_NEIGHBOURS, m - 1)
    distances, indices = neighbours.nearest(x, k, products=products)
    repeated = neighbours.duplicates(distances)
    note = left_out(repeated, "duplicated vectors") if repeated else ""
    ratios, inverse = neighbours.twonn_point_terms(distances), neighbours.mle_point_terms(distances, k)
    order, usable = np.argsort(ratios), np.isfinite(inverse)

    def twonn_of(draws: Draws) -> Array:
        often, of = draws.counts.astype(np.int64), draws.of[order]
        blocks = (often[block][:, of] for block in row_blocks(len(often), m, numbers=CACHED))
        return np.concatenate([neighbours.twonn_weighted(ratios[order], block) for block in blocks])

    def mle_of(draws: Draws) -> Array:
        return ratio(draws.totals(usable.astype(float))[0], draws.sums(np.where(usable, inverse, 0.0)))

    occurrence = np.bincount(indices.ravel(), minlength=m).astype(float)
    estimates = []
    for name, value, statistic in (
        ("twonn", neighbours.twonn(distances), twonn_of),
        ("mle_dimension", neighbours.mle_dimension(distances, k), mle_of),
        ("hubness", neighbours.hubness(indices, m, k=k), lambda draws: _skewness(occurrence, draws)),
    ):
        low, high = bootstrap(statistic, draws, value)
        estimates.append(estimated(lookup(name), value, low, high, n=m, d=d, note=note))
    return estimates


def _skewness(values: Array, draws: Draws) -> Array:
    moments = draws.sums(np.stack([values, values**2, values**3], 1)) / draws.totals()[0][:, None]
    mean, second, third = moments.T
    return (third - 3 * mean * second + 2 * mean**3) / (second - mean**2) ** 1.5


def _bingham(sample: Sample, x: Array, d: int, gram: Array) -> Estimate:
    test = directional.bingham_test(x, d=d, sequences=sample.keys, cosines=gram)
    note = "" if test is None else f"B = {test.statistic:.4g}, mean {test.degrees:.4g} under uniformity"
    p = None if test is None else test.p_value
    return estimated(lookup("bingham_p"), p, n=len(x), d=d, note=note)
