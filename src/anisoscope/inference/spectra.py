"""Estimates of the shape of a cloud: its covariance spectrum, with intervals and nulls.

The eigenvalues come from the exact second moment where it was kept, else from its sketch (d above 4,096), else from the
reservoir (d above 65,536, or sums of earlier versions), and the note says which. Their interval needs leave-one-group-
out spectra; group covariances would cost 32·d² memory, so they are taken to first order: with eigenvectors v_k,
dλ_k = v_kᵀ dC v_k, and the change of C without a group is read from the reservoir's vectors projected on v_k. Where
every vector is a sequence of its own, the standard error is that of n vectors (the reservoir's, times √(m/n)); else the
reservoir's own is kept, which is the wider.
Cost: one d×d eigendecomposition and one (m, d)·(d, d) product per spectrum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.keys import GROUPS, Keys, group_of
from anisoscope.accumulate.sketch import Sketched
from anisoscope.accumulate.sums import Sample, Sums, sketched, variances
from anisoscope.geometry import outliers, spectrum
from anisoscope.geometry.rows import CACHED, row_blocks
from anisoscope.inference.estimates import Estimate, estimated
from anisoscope.inference.jackknife import jackknife
from anisoscope.inference.metrics import METRICS, Metric, of_cloud
from anisoscope.inference.thresholds import THRESHOLDS

Array = NDArray[np.float64]
SPECTRA = ("covariance", "second moment")
SMALLEST = ("condition_number", "power_law_alpha")  # read small eigenvalues, which a sketch does not resolve
ENTROPY = ("effective_rank", "rankme", 0.01)  # read all: missing where more of the variance lies beyond the axes
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
    missing: tuple[str, ...] = ()  # metrics that these eigenvalues cannot give

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
    if sums.n < 2 or (sums.second is None and len(sample) < 2) or sums.d < 2:
        return []
    spectra = {name: cloud_spectrum(sums, sample, centred=name == "covariance") for name in SPECTRA}
    found = [spectral_estimate(metric, spectra[metric.reads[0]], sums.d) for metric in of_cloud("spectrum")]
    return found + _outliers(sums, sample)


def sampled_spectrum(sample: Sample, names: Sequence[str]) -> list[Estimate]:
    """Spectral metrics of a small sample alone, without intervals: O(min(m, d)²·max(m, d))."""
    m, d = sample.x.shape
    if m < 2 or d < 2:
        return []
    x = sample.x.astype(float)
    found = {name: spectrum.eigenvalues_from_rows(x, centred=name == "covariance") for name in SPECTRA}
    metrics = [METRICS[name] for name in names]
    note = f"spectrum from a sample of {m} vectors"
    return [
        estimated(metric, metric.of(found[metric.reads[0]], m), n=m, d=d, note=note)
        for metric in metrics
        if metric.of is not None
    ]


def few_vectors(n: int, d: int) -> str:
    """The warning where n is too small for a spectrum."""
    few = f"too few vectors: n = {n} < {ENOUGH}·d = {ENOUGH * d}, so spectral values are biased by n"
    return few if n < ENOUGH * d else ""


def spectral_estimate(metric: Metric, found: Spectrum, d: int) -> Estimate:
    """One metric of a spectrum, with its interval and null."""
    value = None if metric.name in found.missing else found.value(metric)
    low, high = found.interval(metric, value)
    null = int((found.values == 0).sum())
    lost = f"no variance beyond rounding in {null} of {d} directions" if value is None and null else ""
    few = "" if metric.name == "participation_ratio_unbiased" else few_vectors(found.n, d)  # it corrects for few
    return estimated(metric, value, low, high, n=found.n, d=d, note="; ".join(filter(None, (few, lost, found.note))))


def cloud_spectrum(sums: Sums, sample: Sample, *, centred: bool) -> Spectrum:
    """The spectrum of the covariance, or of the raw second moment (`centred=False`)."""
    missing: tuple[str, ...] = ()
    if sums.second is None and sums.sketch is not None and len(sample) < sums.n:  # else the sample is all there is
        x = sample.x.astype(float) - (sums.sum_x / sums.n if centred else 0.0)
        found = sketched(sums, centred=centred)
        values, squares = found.spectrum(), _projected(x, found)
        order = np.argsort(-values, kind="stable")
        values, squares = values[order], squares[:, order]
        n, note, missing = sums.n, _sketch_note(found), _not_known(found)
    elif sums.second is None:
        x = sample.span
        values, squares = _spectrum_of_rows(x - x.mean(0) if centred else x, degrees=len(x) - centred)
        n, note = len(x), f"spectrum from a sample of {len(x)} vectors"
    else:
        matrix = spectrum.covariance(sums.second, sums.sum_x, sums.n) if centred else sums.second / sums.n
        values, vectors = np.linalg.eigh(matrix)
        values, vectors = values[::-1], vectors[:, ::-1]
        values = np.where(values > _rounding(sums, matrix, values, vectors), values, 0.0)
        x = (sample.x - (sums.sum_x / sums.n if centred else 0.0)).astype(np.float32)  # enough for an interval
        squares, n, note = np.square(x @ vectors.astype(np.float32), dtype=np.float64), sums.n, ""
    if not len(x):  # float32 cannot hold the vectors: no interval
        return Spectrum(values, np.empty((0, sums.d)), np.empty(0), n, 1.0, note, sums.d, missing)
    without, sizes = changes_without_each(squares, sample.keys)
    shrink = reservoir_shrink(sums, len(x))
    left_out = np.clip(values + without, 0, None)
    absent = max(0, min(sums.d, len(x)) - len(values))  # a sample has no variance elsewhere
    padded = np.pad(values, (0, absent)), np.pad(left_out, ((0, 0), (0, absent)))
    return Spectrum(*padded, sizes, n, shrink, note, sums.d, missing)


def changes_without_each(rows: Array, keys: Keys) -> tuple[Array, Array]:
    """How the mean of rows (m, r) changes without each jackknife group of their sequences, (g, r); the sizes (g,)."""
    groups = group_of(keys, groups=GROUPS)
    sizes = np.bincount(groups, minlength=GROUPS).astype(float)
    totals = np.eye(GROUPS)[:, groups] @ rows
    mean = totals.sum(0) / sizes.sum()
    return (totals.sum(0) - totals) / np.maximum(sizes.sum() - sizes, 1)[:, None] - mean, sizes


def reservoir_shrink(sums: Sums, m: int) -> float:
    """What takes the standard error of a reservoir of m to that of all vectors, where each is its own sequence."""
    known = sums.second is not None or sums.sketch is not None
    independent = sums.sequences == sums.n and known
    return min(1.0, (m / sums.n) ** 0.5) if independent else 1.0


def _rounding(sums: Sums, matrix: Array, values: Array, vectors: Array) -> Array:
    """What rounding alone may make of eigenvalues (d,): a smaller one is not variance.

    Products are rounded relative to the two dimensions that they join, so along v the error is about Σ_i v_i²·C_ii,
    times the unit of the sums; the move from the origin costs that of Σ_i v_i²·E x_i² in float64, the decomposition
    that of the largest eigenvalue. The factors hold for any n and d (twice what was seen).
    """
    assert sums.second is not None
    along = np.square(vectors).T
    factor = 16 + 2 * min(sums.n, 8192) ** 0.5 + 2 * sums.d**0.5
    unit = 2.0**-24 if sums.single else 2.0**-53
    raw = along @ np.diag(sums.second) / sums.n + values[0]
    return factor * unit * (along @ np.diag(matrix)) + (factor + sums.d) * 2.0**-52 * raw


def _projected(x: Array, found: Sketched) -> Array:
    """Each row's squared projections on the axes of a sketch; what is left of its norm is spread over the rest."""
    squares = np.square(x @ found.axes)
    rest = np.maximum(np.square(x).sum(1) - squares.sum(1), 0.0)
    beyond = len(found.axes) - found.axes.shape[1]
    return np.concatenate([squares, np.repeat(rest[:, None] / max(beyond, 1), beyond, axis=1)], axis=1)


def _not_known(found: Sketched) -> tuple[str, ...]:
    """The metrics that the eigenvalues of a sketch cannot give."""
    *names, share = ENTROPY
    return SMALLEST if found.rest <= share * found.trace else (*SMALLEST, *map(str, names))


def _sketch_note(found: Sketched) -> str:
    """How far eigenvalues may be off, as a share of the variance."""
    error = found.error / found.trace if found.trace > 0 else 0.0
    return f"estimated from a sketch of {found.axes.shape[1]} axes: eigenvalues to {error:.2g} of the variance"


def _spectrum_of_rows(x: Array, *, degrees: int) -> tuple[Array, Array]:
    """Eigenvalues of xᵀx/degrees by the smaller Gram matrix, and each row's squared projections (m, r)."""
    values, vectors = np.linalg.eigh(x @ x.T)
    values, vectors = np.clip(values[::-1], 0, None), vectors[:, ::-1]
    kept = values > values[0] * 1e-12 if values[0] > 0 else values >= 0
    return values[kept] / max(degrees, 1), np.square(vectors[:, kept]) * values[kept]


def _outliers(sums: Sums, sample: Sample) -> list[Estimate]:
    exact = variances(sums)
    spread, n = (_variances(sample.x), len(sample)) if exact is None else (exact, sums.n)
    outlying, carrying = outliers.outlier_dimensions(spread), outliers.mean_dimensions(sums.sum_x / sums.n)
    many = float(len(outlying)) if spread.any() else None
    return [
        estimated(METRICS["outlier_dimensions"], many, n=n, d=sums.d, note=_listed(outlying)),
        estimated(METRICS["mean_dimensions"], float(len(carrying)), n=sums.n, d=sums.d, note=_listed(carrying)),
    ]


def _variances(x: NDArray[np.float32]) -> Array:
    """The variance of each column, by blocks that stay in the cache."""
    blocks = row_blocks(x.shape[1], len(x), numbers=CACHED)
    return np.concatenate([x[:, block].astype(float).var(0) for block in blocks])


def _listed(dimensions: list[int]) -> str:
    return ", ".join(map(str, dimensions[:8])) + (" …" if len(dimensions) > 8 else "")
