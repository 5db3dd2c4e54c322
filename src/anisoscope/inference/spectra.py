"""Estimates of the shape of a cloud: its covariance spectrum, with intervals and nulls.

The eigenvalues come from the exact second moment where it was kept, else from the reservoir (d above 4,096), and the
note says which. Their interval needs leave-one-group-out spectra; group covariances would cost 32·d² memory, so they
are taken to first order: with eigenvectors v_k, dλ_k = v_kᵀ dC v_k, and the change of C without a group is read from
the reservoir's vectors projected on v_k. Where every vector is a sequence of its own, the standard error is that of n
vectors (the reservoir's, times √(m/n)); else the reservoir's own is kept, which is the wider.
Cost: one d×d eigendecomposition and one (m, d)·(d, d) product a spectrum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.keys import GROUPS, group_of
from anisoscope.accumulate.reservoir import Sample
from anisoscope.accumulate.sums import Sums
from anisoscope.geometry import outliers, spectrum
from anisoscope.geometry.nulls import isotropic as null
from anisoscope.inference.estimates import Estimate
from anisoscope.inference.jackknife import jackknife

Array = NDArray[np.float64]
ENOUGH = 10  # vectors per dimension below which spectral values are mostly bias
_METRICS: dict[str, Callable[[Array], Any]] = {
    "isoscore": spectrum.isoscore,
    "participation_ratio": spectrum.participation_ratio,
    "effective_rank": spectrum.effective_rank,
    "stable_rank": spectrum.stable_rank,
    "pc1_share": spectrum.pc1_share,
    "condition_number": spectrum.condition_number,
    "power_law_alpha": spectrum.power_law_alpha,
    "explained_k": spectrum.explained_k,
}


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues (descending), the same without each jackknife group, and what they rest on."""

    values: Array  # (d,)
    left_out: Array  # (g, d)
    sizes: Array  # (g,) vectors of the reservoir in each group
    n: int
    shrink: float  # from the reservoir's standard error to that of the n vectors
    note: str

    def interval(self, metric: Callable[[Array], Any], value: float | None) -> tuple[float | None, float | None]:
        if value is None or not len(self.sizes):
            return None, None
        left = np.asarray(metric(self.left_out), float)
        if not np.isfinite(left[self.sizes > 0]).all():
            return None, None
        low, high = jackknife(left, value, self.sizes)
        return (
            (None, None) if low is None else (value - (value - low) * self.shrink, value + (high - value) * self.shrink)
        )


def spectral_estimates(sums: Sums, sample: Sample) -> list[Estimate]:
    """The spectral metrics of a cloud; empty where it has fewer than two vectors or one dimension."""
    if sums.n < 2 or len(sample) < 2 or sums.d < 2:
        return []
    centred, raw = cloud_spectrum(sums, sample, centred=True), cloud_spectrum(sums, sample, centred=False)
    note = "; ".join(filter(None, (few_vectors(centred.n, sums.d), centred.note)))
    found = []
    for name, metric in _METRICS.items():
        found.append(_estimate(name, metric, centred, sums.d, note))

    def unbiased(values: Array) -> Any:
        return spectrum.participation_ratio_unbiased(values.sum(-1), np.square(values).sum(-1), centred.n)

    found.append(_estimate("participation_ratio_unbiased", unbiased, centred, sums.d, centred.note))
    found.append(_estimate("rankme", lambda values: spectrum.rankme(values, n=raw.n), raw, sums.d, note))
    return found + _outliers(sums, sample)


def few_vectors(n: int, d: int) -> str:
    """The loud note where n is too small for a spectrum."""
    return f"TOO FEW VECTORS: n = {n} < {ENOUGH}·d = {ENOUGH * d}, mostly bias" if n < ENOUGH * d else ""


def _estimate(name: str, metric: Callable[[Array], Any], found: Spectrum, d: int, note: str) -> Estimate:
    value = metric(found.values)
    low, high = found.interval(metric, value)
    return Estimate(name, value, low, high, null.spectral_null(name, found.n, d).value, found.n, note)


def cloud_spectrum(sums: Sums, sample: Sample, *, centred: bool) -> Spectrum:
    """The spectrum of the covariance, or of the raw second moment (`centred=False`)."""
    x = sample.x.astype(float)
    mean = sums.sum_x / sums.n if centred else np.zeros(sums.d)
    if sums.second is None:
        values, squares = _spectrum_of_rows(x - x.mean(0) if centred else x, degrees=len(x) - centred)
        n, note = len(x), f"spectrum from a sample of {len(x)} vectors"
    else:
        matrix = spectrum.covariance(sums.second, sums.sum_x, sums.n) if centred else sums.second / sums.n
        values, vectors = np.linalg.eigh(matrix)
        values, vectors = np.clip(values[::-1], 0, None), vectors[:, ::-1]
        squares, n, note = np.square((x - mean) @ vectors), sums.n, ""
    groups = group_of(sample.keys, groups=GROUPS)
    sizes = np.bincount(groups, minlength=GROUPS).astype(float)
    totals = np.eye(GROUPS)[:, groups] @ squares  # (g, r)
    without = (totals.sum(0) - totals) / np.maximum(sizes.sum() - sizes, 1)[:, None] - totals.sum(0) / sizes.sum()
    independent = sums.sequences == sums.n and sums.second is not None
    shrink = min(1.0, (len(x) / sums.n) ** 0.5) if independent else 1.0
    left_out = np.clip(values + without, 0, None)
    absent = sums.d - len(values)  # directions that a sample smaller than d cannot have: no variance there
    return Spectrum(np.pad(values, (0, absent)), np.pad(left_out, ((0, 0), (0, absent))), sizes, n, shrink, note)


def _spectrum_of_rows(x: Array, *, degrees: int) -> tuple[Array, Array]:
    """Eigenvalues of xᵀx/degrees by the smaller Gram matrix, and each row's squared projections (m, r)."""
    values, vectors = np.linalg.eigh(x @ x.T)
    values, vectors = np.clip(values[::-1], 0, None), vectors[:, ::-1]
    kept = values > values[0] * 1e-12 if values[0] > 0 else values >= 0
    return values[kept] / max(degrees, 1), np.square(vectors[:, kept]) * values[kept]


def _outliers(sums: Sums, sample: Sample) -> list[Estimate]:
    if sums.second is None:
        variances, n = sample.x.astype(float).var(0), len(sample)
    else:
        variances, n = np.diag(spectrum.covariance(sums.second, sums.sum_x, sums.n)), sums.n
    outlying, carrying = outliers.outlier_dimensions(variances), outliers.mean_dimensions(sums.sum_x / sums.n)
    return [
        Estimate("outlier_dimensions", float(len(outlying)), null=0.0, n=n, note=_listed(outlying)),
        Estimate("mean_dimensions", float(len(carrying)), n=sums.n, note=_listed(carrying)),
    ]


def _listed(dimensions: list[int]) -> str:
    return ", ".join(map(str, dimensions[:8])) + (" …" if len(dimensions) > 8 else "")
