"""Estimates of where a cloud points: everything that follows from the sums of vectors, unit vectors and norms.

All are exact over all pairs; intervals are delete-a-group jackknives over sequences.
"""

from __future__ import annotations

from anisoscope.accumulate.sums import Sums
from anisoscope.geometry import cosine, directional, drift
from anisoscope.geometry.nulls import isotropic as null
from anisoscope.inference.estimates import Estimate
from anisoscope.inference.jackknife import jackknife_of

TOP_DIMENSIONS = 5
_ROUNDING = 1e-12


def direction_estimates(sums: Sums) -> list[Estimate]:
    """Cosines, norms, drift, their nulls and the Rayleigh test, from the sums alone."""
    n, unit, x = sums.group_n, sums.group_unit, sums.group_x
    norm, norm2, energy, pairs = sums.group_norm, sums.group_norm2, sums.group_energy, sums.group_pairs
    metrics = {
        "mean_cosine": (cosine.mean_cosine, (unit, n)),
        "mean_cosine_inter": (cosine.mean_cosine_inter, (unit, n, energy, pairs)),
        "mean_cosine_intra": (cosine.mean_cosine_intra, (energy, n, pairs)),
        "resultant": (cosine.resultant, (unit, n)),
        "mean_norm": (drift.mean_norm, (norm, n)),
        "norm_cv": (drift.norm_cv, (norm, norm2, n)),
        "drift_norm": (drift.drift_norm, (x, n)),
        "drift_ratio": (drift.drift_ratio, (x, norm2, n)),
    }
    found = []
    for name, (metric, groups) in metrics.items():
        value, low, high = jackknife_of(metric, *groups, sizes=n)
        expected = null.direction_null(name, sums.n, sums.d)
        note = "" if value is None or low is not None else f"no interval: {sums.sequences} sequences are too few"
        found.append(Estimate(name, value, low, high, expected.value if expected else None, sums.n, note))
    return found + _shares(sums) + _tests(sums) + _counts(sums)


def _shares(sums: Sums) -> list[Estimate]:
    """The dimensions that carry the cosine: `at` is the dimension, the value its share of the average cosine."""
    contributions = cosine.cosine_share(sums.sum_unit, sums.sum_unit2, sums.n)
    if contributions is None:
        return []
    return [
        Estimate(
            "cosine_share", share.share, n=sums.n, null=1 / sums.d, at=float(share.dimension),
            note=f"dimension {share.dimension} contributes {share.contribution:+.4f}",
        )
        for share in cosine.top_shares(contributions, k=min(TOP_DIMENSIONS, sums.d))
    ]  # fmt: skip


def _tests(sums: Sums) -> list[Estimate]:
    effective = directional.effective_sample_size(sums.n, sums.energy, sums.pairs)
    test = directional.rayleigh_test(sums.sum_unit, sums.n, n_effective=effective)
    average = cosine.mean_cosine(sums.sum_unit, sums.n)
    kappa = None
    if average is not None and average < 1 - _ROUNDING:  # beyond, κ is infinite or made of rounding
        kappa = directional.vmf_kappa(max(average, 0.0) ** 0.5, sums.d)
    note = "" if test is None else f"T = {test.statistic:.4g}, mean {test.degrees:.4g} under uniformity"
    return [
        Estimate("rayleigh_p", None if test is None else test.p_value, null=0.5, n=sums.n, note=note),
        Estimate("effective_n", effective, n=sums.n, note="independent directions, if the cloud were uniform"),
        Estimate("vmf_kappa", kappa, null=0.0, n=sums.n),
    ]


def _counts(sums: Sums) -> list[Estimate]:
    without_direction = "left out: no direction" if sums.zero else ""
    not_finite = "left out: NaN or infinite" if sums.nonfinite else ""
    return [
        Estimate("dimension", float(sums.d), n=sums.n),
        Estimate("sequences", float(sums.sequences), n=sums.n),
        Estimate("zero_vectors", float(sums.zero), n=sums.n, note=without_direction),
        Estimate("nonfinite_vectors", float(sums.nonfinite), n=sums.n, note=not_finite),
    ]
