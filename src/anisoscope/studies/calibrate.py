"""For people whose similarities are all above 0.7: where is the floor, and which threshold means something?

The floor is the distribution of the cosine of unrelated pairs: two rows drawn at random (of different groups, where
groups are given), or a query and a document. A threshold at false-positive rate p is the floor's quantile 1 − p. Each
correction is fitted on all other rows (exactly: the held-out rows are subtracted from the sums) and measured on rows
held out. `nearest_gap` says how many sds of the floor the best match of a row stands above the floor's mean; its null
is what the best of as many isotropic rows would reach, so that a correction which only spreads the cloud is not taken
for one that helps. Intervals: delete-a-group jackknife over the held-out rows' sequences.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from anisoscope.accumulate.keys import GROUPS, group_of
from anisoscope.errors import InputError, UsageError
from anisoscope.geometry import corrections
from anisoscope.geometry.nulls import isotropic as null
from anisoscope.geometry.rows import unit_rows
from anisoscope.inference.jackknife import jackknife
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.plan import Settings, default_folder, reuse_or_begin
from anisoscope.runs.store import Existing
from anisoscope.runs.table import Row
from anisoscope.studies.vectors import VectorsSettings, sum_vectors

if TYPE_CHECKING:
    from anisoscope.accumulate.moments import Moments
    from anisoscope.inputs.vectors.source import VectorSource

Array = NDArray[np.float64]
HELD_OUT = 1024
FEWEST = 64
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


class CalibrateSettings(Settings):
    """What `anisoscope calibrate` does."""

    command = "calibrate"

    files: list[str]
    queries: list[str] = Field(default_factory=list)
    column: str | None = None
    group: str | None = None
    rates: list[float] = Field(default_factory=lambda: [0.05, 0.01, 0.001])
    seed: int = 0


@dataclass(frozen=True)
class HeldOut:
    """Rows that the corrections were not fitted on, with their sequences; `against` holds the documents for queries."""

    rows: Array  # (m, d)
    keys: NDArray[np.uint64]
    against: Array | None = None  # (k, d)


def calibrate_files(
    settings: CalibrateSettings, *, out: Path | None = None, existing: Existing = "resume"
) -> Measurement:
    """Calibrate the vectors of files and keep the run."""
    from anisoscope.inputs.files import digest
    from anisoscope.inputs.vectors.source import open_vectors

    if not all(0 < rate < 1 for rate in settings.rates):
        raise UsageError("false-positive rates lie between 0 and 1", got=settings.rates)
    source = open_vectors(settings.files, column=settings.column, group=settings.group)
    asked = open_vectors(settings.queries, column=settings.column) if settings.queries else None
    if asked is not None and asked.dim != source.dim:
        raise UsageError("queries and documents have different dimensions", got=asked.dim, expected=source.dim)
    fingerprint = digest([part.fingerprint().encode() for part in (source, asked) if part is not None])
    folder = out or default_folder(settings, name=source.name, data=fingerprint)
    finished = reuse_or_begin(folder, settings, existing=existing, data=fingerprint)
    if finished is not None:
        return Measurement.of_run(finished)
    started = time.monotonic()
    plain = VectorsSettings(files=settings.files, column=settings.column, group=settings.group, seed=settings.seed)
    moments = sum_vectors(source, plain)
    held, fitted, n = hold_out(moments)
    if asked is not None:
        held = _with_queries(asked, settings, held)
    rows, arrays = calibrate(held, fitted, rates=settings.rates, n=n)
    kind = "query and document" if settings.queries else "two rows"
    protocol = {
        "pairs": f"{kind}, of different groups" if settings.group and not settings.queries else f"{kind} at random",
        "held out": f"{len(held.rows)} rows, fitted on {n} others",
        "seed": settings.seed,
    }
    data = {"name": source.name, "fingerprint": fingerprint, "rows": moments.sums().n, "dimension": moments.d}
    verdict = _advice(rows)
    found = Measurement(
        tuple(rows), verdict, (), None, settings.command, settings.as_dict(), protocol, data, arrays=arrays
    )
    return Measurement.of_run(found.save(folder, seconds=time.monotonic() - started))


def hold_out(moments: Moments) -> tuple[HeldOut, corrections.Corrections, int]:
    """Held-out rows from the reservoir, and corrections fitted on the sums without them."""
    sums, sample = moments.sums(), moments.reservoir.sample()
    if sums.n < FEWEST or sums.second is None:
        what = f"{sums.n} vectors" if sums.n < FEWEST else f"{moments.d} dimensions"
        raise InputError("cannot calibrate", got=what, expected=f"at least {FEWEST} vectors, at most 4096 dimensions")
    kept = min(HELD_OUT, sums.n // 2)
    rows, keys = sample.x[:kept].astype(float), sample.keys[:kept]
    fitted = corrections.fit_sums(sums.sum_x - rows.sum(0), sums.second - rows.T @ rows, sums.n - kept)
    return HeldOut(rows, keys), fitted, sums.n - kept


def _with_queries(asked: VectorSource, settings: CalibrateSettings, documents: HeldOut) -> HeldOut:
    plain = VectorsSettings(files=settings.queries, column=settings.column, spectrum=False, seed=settings.seed)
    sample = sum_vectors(asked, plain).reservoir.sample()
    if not len(sample):
        raise InputError("there is no usable query", where=asked.name, expected="finite vectors that are not zero")
    return HeldOut(sample.x[:HELD_OUT].astype(float), sample.keys[:HELD_OUT], against=documents.rows)


def calibrate(
    held: HeldOut, fitted: corrections.Corrections, *, rates: list[float], n: int
) -> tuple[list[Row], dict[str, Array]]:
    """The floor, the thresholds and the nearest-neighbour gap, raw and after each correction."""
    rows, arrays = [], {"edges": np.linspace(-1, 1, 201)}
    d = held.rows.shape[1]
    for name in corrections.NAMES:
        similarity, allowed, groups = _similarities(held, fitted, name)
        upper = np.triu(allowed, 1) if held.against is None else allowed  # each pair once
        if not upper.any():
            raise InputError("all rows belong to one group: there are no unrelated pairs", do="leave --group out")
        arrays[f"histogram.{name}"] = _density(similarity[upper], arrays["edges"])
        values = _statistics(similarity, allowed, upper, rates)
        sizes = np.bincount(groups[0], minlength=GROUPS)
        left = np.full((GROUPS, len(values)), np.nan)
        for g in np.flatnonzero(sizes):
            kept = (groups[0] != g)[:, None] & (groups[1] != g)[None, :]
            if not (upper & kept).any():
                continue
            left[g] = _statistics(similarity, allowed & kept, upper & kept, rates)
        low, high = jackknife(left, values, sizes)
        pairs = int(upper.sum())
        for i, (metric, at, expected) in enumerate(_names(rates, d, similarity.shape[1])):
            few = "fewer than ten pairs lie above it" if at is not None and at * pairs < 10 else ""
            rows.append(
                Row(
                    site=name, metric=metric, value=float(values[i]), low=float(low[i]), high=float(high[i]), at=at,
                    null=expected, n=pairs, note=few, protocol=f"held out, fitted on {n} rows",
                )
            )  # fmt: skip
    arrays["null"] = np.diff(np.asarray(null.cosine_cdf(arrays["edges"], d), float)) / np.diff(arrays["edges"])
    return rows, arrays


def _similarities(held: HeldOut, fitted: corrections.Corrections, name: str) -> tuple[Array, NDArray[np.bool_], tuple]:
    """Cosines (m, k), which pairs count, and the jackknife groups of rows and columns."""
    left = unit_rows(fitted.apply(name, held.rows))
    groups = group_of(held.keys)
    if held.against is not None:
        right = unit_rows(fitted.apply(name, held.against))
        return left @ right.T, np.ones((len(left), len(right)), bool), (groups, np.full(len(right), -1))
    return left @ left.T, held.keys[:, None] != held.keys[None, :], (groups, groups)


def _names(rates: list[float], d: int, candidates: int) -> list[tuple[str, float | None, float | None]]:
    """(metric, at, isotropic value), in the order of `_statistics`."""
    named: list[tuple[str, float | None, float | None]] = [("floor_mean", None, 0.0), ("floor_sd", None, d**-0.5)]
    named += [(f"floor_q{round(100 * q):02d}", None, float(null.cosine_quantile(q, d))) for q in QUANTILES]
    named += [("threshold", rate, float(null.cosine_quantile(1 - rate, d))) for rate in rates]
    best = float(
        null.cosine_quantile(1 - 0.5615 / max(candidates - 1, 1), d)
    )  # mean of a Gumbel maximum: e^−γ = 0.5615
    return [*named, ("nearest_mean", None, best), ("nearest_gap", None, best * d**0.5)]


def _statistics(similarity: Array, allowed: NDArray[np.bool_], upper: NDArray[np.bool_], rates: list[float]) -> Array:
    values = similarity[upper]
    mean, sd = values.mean(), values.std()
    some = allowed.any(1)
    nearest = np.where(allowed, similarity, -np.inf)[some].max(1).mean()
    quantiles = np.quantile(values, [*QUANTILES, *(1 - rate for rate in rates)])
    return np.array([mean, sd, *quantiles, nearest, (nearest - mean) / sd])


def _density(values: Array, edges: Array) -> Array:
    counts, _ = np.histogram(np.clip(values, -1, 1), bins=edges)
    return counts / (counts.sum() * np.diff(edges))


def _advice(rows: list[Row]) -> str:
    """Two sentences: the floor with the threshold that goes with it, and what centring makes of it."""
    value = {(row.site, row.metric): row.value for row in rows if row.at is None}
    thresholds = [row for row in rows if row.site == "raw" and row.metric == "threshold"]
    chosen = min(thresholds, key=lambda row: abs((row.at or 0) - 0.01))
    return (
        f"unrelated pairs have cosine {value['raw', 'floor_mean']:.2f} on average, {value['raw', 'floor_sd']:.2f} sd; "
        f"a cosine says something above {chosen.value:.2f} ({chosen.at:.1%} false positives). "
        f"Centring moves the floor to {value['centred', 'floor_mean']:.2f}."
    )
