"""Estimates of where a cloud points: everything that follows from the sums of vectors, unit vectors and norms.

All are exact over all pairs; intervals are delete-a-group jackknives over sequences. What each metric computes, and of
which sums, is declared in `metrics`.
"""

from __future__ import annotations

from collections.abc import Callable

from anisoscope.accumulate.sums import Array, Sums
from anisoscope.geometry import cosine, directional
from anisoscope.inference.estimates import Estimate, estimated
from anisoscope.inference.jackknife import in_parts, jackknife_of
from anisoscope.inference.metrics import METRICS, Metric, of_cloud

TOP_DIMENSIONS = 5
_ROUNDING = 1e-12


def direction_estimates(sums: Sums) -> list[Estimate]:
    """Cosines, norms, drift, their nulls and the Rayleigh test, from the sums alone."""
    known: dict[int, tuple[Array, Array]] = {}  # several metrics read the same sums, d numbers of each group

    def parts(groups: Array) -> tuple[Array, Array]:
        if id(groups) not in known:
            known[id(groups)] = in_parts(groups)
        return known[id(groups)]

    found = [direction_estimate(metric, sums, parts=parts) for metric in of_cloud("direction")]
    return found + _shares(sums) + _tests(sums) + _counts(sums)


def direction_estimate(
    metric: Metric, sums: Sums, *, parts: Callable[[Array], tuple[Array, Array]] = in_parts
) -> Estimate:
    """One metric that is a function of group sums, which `parts` sums up."""
    assert metric.of is not None
    value, low, high = jackknife_of(metric.of, *metric.groups(sums), sizes=sums.group_n, parts=parts)
    note = "" if value is None or low is not None else f"no interval: {sums.sequences} sequences are too few"
    return estimated(metric, value, low, high, n=sums.n, d=sums.d, note=note)


def _shares(sums: Sums) -> list[Estimate]:
    """The dimensions that carry the cosine: `at` is the dimension, the value its share of the average cosine."""
    contributions = cosine.cosine_share(sums.sum_unit, sums.sum_unit2, sums.n)
    if contributions is None:
        return []
    return [
        estimated(
            METRICS["cosine_share"],
            share.share,
            n=sums.n,
            d=sums.d,
            at=float(share.dimension),
            note=f"dimension {share.dimension} contributes {share.contribution:+.4f}",
        )
        for share in cosine.top_shares(contributions, k=min(TOP_DIMENSIONS, sums.d))
    ]


def _tests(sums: Sums) -> list[Estimate]:
    effective = directional.effective_sample_size(sums.n, sums.energy, sums.pairs)
    test = directional.rayleigh_test(sums.sum_unit, sums.n, n_effective=effective)
    average = cosine.mean_cosine(sums.sum_unit, sums.n)
    kappa = None
    if average is not None and average < 1 - _ROUNDING:  # beyond, κ is infinite or made of rounding
        kappa = directional.vmf_kappa(max(average, 0.0) ** 0.5, sums.d)
    note = "" if test is None else f"T = {test.statistic:.4g}, mean {test.degrees:.4g} under uniformity"
    independent = "independent directions, if the cloud were uniform"
    told = {"rayleigh_p": (None if test is None else test.p_value, note)}
    told |= {"effective_n": (effective, independent), "vmf_kappa": (kappa, "")}
    return [estimated(METRICS[name], value, n=sums.n, d=sums.d, note=note) for name, (value, note) in told.items()]


def _counts(sums: Sums) -> list[Estimate]:
    without_direction = "left out: no direction" if sums.zero else ""
    not_finite = "left out: NaN or infinite" if sums.nonfinite else ""
    return [
        Estimate("dimension", float(sums.d), n=sums.n),
        Estimate("sequences", float(sums.sequences), n=sums.n),
        Estimate("zero_vectors", float(sums.zero), n=sums.n, note=without_direction),
        Estimate("nonfinite_vectors", float(sums.nonfinite), n=sums.n, note=not_finite),
    ]
