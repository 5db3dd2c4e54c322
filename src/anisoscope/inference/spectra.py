"""Estimates of the shape of a cloud: its covariance spectrum, with intervals and nulls.

The eigenvalues come from the exact second moment where it was kept, else from the reservoir (d above 4,096), and the
note says which. Their interval needs leave-one-group-out spectra; group covariances would cost 32·d² memory, so they
are taken to first order: with eigenvectors v_k, dλ_k = v_kᵀ dC v_k, and the change of C without a group is read from
the reservoir's vectors projected on v_k. Where every vector is a sequence of its own, the standard error is that of n
vectors (the reservoir's, times √(m/n)); else the reservoir's own is kept, which is the wider.
Cost: one d×d eigendecomposition and one (m, d)·(d, d) product a spectrum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.keys import GROUPS, group_of
from anisoscope.accumulate.sums import Sample, Sums
from anisoscope.geometry import outliers, spectrum
from anisoscope.geometry.rows import row_blocks
from anisoscope.inference.estimates import Estimate, estimated
from anisoscope.inference.jackknife import jackknife
from anisoscope.inference.metrics import METRICS, Metric, of_cloud
from anisoscope.inference.thresholds import THRESHOLDS

Array = NDArray[np.float64]
SPECTRA = ("covariance", "second moment")
ENOUGH = THRESHOLDS.vectors_per_dimension  # below, spectral values are mostly bias


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues (descending), the same without each jackknife group, and what they rest on."""

    values: Array  # (r,); the d − r further ones are zero
    left_out: Array  # (g, r)
    sizes: Array  # (g,) vectors of the reservoir in each group
    n: int
    shrink: float  # from the reservoir's standard error to that of the n vectors
    note: str
    d: int

    def value(self, metric: Metric) -> float | None:
        return self._of(metric, self.values)

    def without_each(self, metric: Metric) -> Array:
        """The metric without each jackknife group, (g,)."""
        return np.asarray(self._of(metric, self.left_out), float)

    def _of(self, metric: Metric, values: Array) -> Any:
        assert metric.of is not None
        return spectrum.of_leading(metric.of, values, self.n, self.d)

    def interval(self, metric: Metric, value: float | None) -> tuple[float | None, float | None]:
        if value is None or not len(self.sizes):
            return None, None
        return shrunk_jackknife(self.without_each(metric), value, self.sizes, self.shrink)


def shrunk_jackknife(left: Array, value: float, sizes: Array, shrink: float) -> tuple[float | None, float | None]:
    """The jackknife interval, drawn in towards the value by `shrink`; missing where a leave-one-out value is."""
    if not np.isfinite(left[sizes > 0]).all():
        return None, None
    low, high = jackknife(left, value, sizes)
    return (None, None) if low is None else (value - (value - low) * shrink, value + (high - value) * shrink)


def spectral_estimates(sums: Sums, sample: Sample) -> list[Estimate]:
    """The spectral metrics of a cloud; empty where it has fewer than two vectors or one dimension."""
    if sums.n < 2 or len(sample) < 2 or sums.d < 2:
        return []
    spectra = {name: cloud_spectrum(sums, sample, centred=name == "covariance") for name in SPECTRA}
    found = [spectral_estimate(metric, spectra[metric.reads[0]], sums.d) for metric in of_cloud("spectrum")]
    return found + _outliers(sums, sample)


def few_vectors(n: int, d: int) -> str:
    """The loud note where n is too small for a spectrum."""
    return f"TOO FEW VECTORS: n = {n} < {ENOUGH}·d = {ENOUGH * d}, mostly bias" if n < ENOUGH * d else ""


def spectral_estimate(metric: Metric, found: Spectrum, d: int) -> Estimate:
    """One metric of a spectrum, with its interval and null."""
    value = found.value(metric)
    low, high = found.interval(metric, value)
    few = "" if metric.name == "participation_ratio_unbiased" else few_vectors(found.n, d)  # it corrects for few
    return estimated(metric, value, low, high, n=found.n, d=d, note="; ".join(filter(None, (few, found.note))))


def cloud_spectrum(sums: Sums, sample: Sample, *, centred: bool) -> Spectrum:
    """The spectrum of the covariance, or of the raw second moment (`centred=False`)."""
    if sums.second is None:
        x = sample.span
        values, squares = _spectrum_of_rows(x - x.mean(0) if centred else x, degrees=len(x) - centred)
        n, note = len(x), f"spectrum from a sample of {len(x)} vectors"
    else:
        matrix = spectrum.covariance(sums.second, sums.sum_x, sums.n) if centred else sums.second / sums.n
        values, vectors = np.linalg.eigh(matrix)
        values, vectors = np.clip(values[::-1], 0, None), vectors[:, ::-1]
        x = sample.x - (sums.sum_x / sums.n if centred else 0.0)
        squares, n, note = np.square(x @ vectors), sums.n, ""
    groups = group_of(sample.keys, groups=GROUPS)
    sizes = np.bincount(groups, minlength=GROUPS).astype(float)
    totals = np.eye(GROUPS)[:, groups] @ squares  # (g, r)
    without = (totals.sum(0) - totals) / np.maximum(sizes.sum() - sizes, 1)[:, None] - totals.sum(0) / sizes.sum()
    independent = sums.sequences == sums.n and sums.second is not None
    shrink = min(1.0, (len(x) / sums.n) ** 0.5) if independent else 1.0
    left_out = np.clip(values + without, 0, None)
    absent = max(0, min(sums.d, len(x)) - len(values))  # a sample has no variance elsewhere
    padded = np.pad(values, (0, absent)), np.pad(left_out, ((0, 0), (0, absent)))
    return Spectrum(*padded, sizes, n, shrink, note, sums.d)


def _spectrum_of_rows(x: Array, *, degrees: int) -> tuple[Array, Array]:
    """Eigenvalues of xᵀx/degrees by the smaller Gram matrix, and each row's squared projections (m, r)."""
    values, vectors = np.linalg.eigh(x @ x.T)
    values, vectors = np.clip(values[::-1], 0, None), vectors[:, ::-1]
    kept = values > values[0] * 1e-12 if values[0] > 0 else values >= 0
    return values[kept] / max(degrees, 1), np.square(vectors[:, kept]) * values[kept]


def _outliers(sums: Sums, sample: Sample) -> list[Estimate]:
    if sums.second is None:
        variances, n = _variances(sample.x), len(sample)
    else:
        variances, n = np.diag(spectrum.covariance(sums.second, sums.sum_x, sums.n)), sums.n
    outlying, carrying = outliers.outlier_dimensions(variances), outliers.mean_dimensions(sums.sum_x / sums.n)
    return [
        estimated(METRICS["outlier_dimensions"], float(len(outlying)), n=n, d=sums.d, note=_listed(outlying)),
        estimated(METRICS["mean_dimensions"], float(len(carrying)), n=sums.n, d=sums.d, note=_listed(carrying)),
    ]


def _variances(x: NDArray[np.float32]) -> Array:
    """The variance of each column, without a float64 copy of all of them."""
    blocks = row_blocks(x.shape[1], len(x))
    return np.concatenate([x[:, block].astype(float).var(0) for block in blocks])


def _listed(dimensions: list[int]) -> str:
    return ", ".join(map(str, dimensions[:8])) + (" …" if len(dimensions) > 8 else "")
