"""Similarity floor and thresholds of embeddings, and what would help.

For people whose similarities are all above 0.7. The floor is the distribution of the cosine of unrelated pairs: two
rows drawn at random (of different groups, where groups are given), or a query and a document. A threshold at
false-positive rate p is the floor's quantile 1 − p. Each correction is fitted on all other rows (exactly: the held-out
rows are subtracted from the sums) and measured on rows held out. `nearest_gap` says how many sds of the floor the best
match of a row stands above the floor's mean; its null is what the best of as many isotropic rows would reach, so that a
correction which only spreads the cloud is not taken for one that helps. Intervals: delete-a-group jackknife over the
held-out rows' sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from anisoscope.accumulate.keys import GROUPS, group_of
from anisoscope.errors import InputError, UsageError
from anisoscope.geometry import corrections
from anisoscope.geometry.nulls import isotropic as null
from anisoscope.geometry.rows import unit_rows
from anisoscope.inference.jackknife import jackknife
from anisoscope.runs.job import Job
from anisoscope.runs.settings import option
from anisoscope.runs.story import Story, Table, interval, number
from anisoscope.runs.study import SHARED, Findings, Study
from anisoscope.runs.table import Row
from anisoscope.runs.work.collected import Collected
from anisoscope.studies.vectors import SITE, VectorFiles, kinds, sum_vectors

if TYPE_CHECKING:
    from anisoscope.accumulate.moments import Moments

Array = NDArray[np.float64]
HELD_OUT = 1024
FEWEST = 64
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
WORDS = {
    "raw": "as it is",
    "centred": "centring",
    "without_top": "centring and removing the top components",
    "whitened": "whitening",
}


class CalibrateSettings(VectorFiles):
    """What `anisoscope calibrate` is asked."""

    queries: list[str] = option("Embeddings of queries, to pair with the files' rows.", [], paths=True)
    rate: list[Annotated[float, Field(gt=0, lt=1)]] = option(
        "False-positive rates of the thresholds.", [0.05, 0.01, 0.001], min_length=1
    )


def collect(job: Job) -> Collected:
    """One pass over the rows, and one over the queries."""
    settings = job.settings
    source = job.vectors(column=settings.column, group=settings.group)
    asked = job.vectors("queries", column=settings.column) if settings.queries or "queries" in job.given else None
    if asked is not None and asked.dim != source.dim:
        raise UsageError("queries and documents have different dimensions", got=asked.dim, expected=source.dim)
    parts = {"": sum_vectors(job, source)}
    if asked is not None:
        parts["queries"] = sum_vectors(job, asked, label="queries", spectrum=False)
    return parts


def conclude(settings: CalibrateSettings, collected: Collected) -> Findings:
    """The floor, the thresholds and the nearest neighbours, raw and after each correction."""
    moments = collected[""].sums["hidden"].parts[SITE]
    held, fitted, n = hold_out(moments)
    if "queries" in collected:
        held = with_queries(collected["queries"].sums["hidden"].parts[SITE], held)
    rows, arrays = calibrate(held, fitted, rates=settings.rate, n=n)
    kind = "query and document" if "queries" in collected else "two rows"
    apart = settings.group and "queries" not in collected
    protocol = {
        "pairs": f"{kind}, of different groups" if apart else f"{kind} at random",
        "held out": f"{len(held.rows)} rows, fitted on {n} others",
        "seed": settings.seed,
    }
    data = {**collected[""].about["data"], "rows": moments.sums().n}
    return Findings(rows, advice(rows), arrays=arrays, protocol=protocol, data=data, notes=_left_out(moments.sums()))


def _left_out(sums: Any) -> list[str]:
    counts = {"zero vectors": sums.zero, "vectors with NaN or infinite entries": sums.nonfinite}
    return [f"{count} {what} left out" for what, count in counts.items() if count]


@dataclass(frozen=True)
class HeldOut:
    """Rows that the corrections were not fitted on, with their sequences; `against` holds the documents for queries."""

    rows: Array  # (m, d)
    keys: NDArray[np.uint64]
    against: Array | None = None  # (k, d)


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


def with_queries(asked: Moments, documents: HeldOut) -> HeldOut:
    """Queries against the held-out documents."""
    sample = asked.reservoir.sample()
    if not len(sample):
        raise InputError("there is no usable query", expected="finite vectors that are not zero")
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


def advice(rows: Sequence[Row]) -> str:
    """The floor, the threshold that goes with it, what helps most by its measured gain, and what would hurt."""
    value = {(row.site, row.metric): row for row in rows if row.at is None}
    thresholds = {row.site: row for row in rows if row.metric == "threshold" and row.at == _usual_rate(rows)}
    raw = thresholds["raw"]
    floor, spread = value["raw", "floor_mean"], value["raw", "floor_sd"]
    said = [
        f"Unrelated pairs have cosine {floor.value:.2f} on average (sd {spread.value:.2f}); "
        f"a similarity means something above {raw.value:.2f} ({raw.at:.1%} false positives)."
    ]
    others = {site: row for site, row in thresholds.items() if site != "raw"}
    better = {site: row for site, row in others.items() if _below(row, raw)}
    if better:
        site = min(better, key=lambda name: better[name].value or 0.0)
        said.append(f"{WORDS[site].capitalize()} helps most: the threshold falls to {better[site].value:.2f}.")
    else:
        said.append("No correction lowers the threshold by more than its interval.")
    worse = [f"{WORDS[site]} raises it to {row.value:.2f}" for site, row in others.items() if _below(raw, row)]
    return " ".join([*said, *([f"Beware: {' and '.join(worse)}."] if worse else [])])


def _usual_rate(rows: Sequence[Row]) -> float:
    rates = {row.at for row in rows if row.metric == "threshold" and row.at is not None}
    return min(rates, key=lambda rate: abs(rate - 0.01))


def _below(one: Row, other: Row) -> bool:
    """Whether a threshold is lower than another by more than both intervals allow."""
    if one.high is None or other.low is None:
        return False
    return one.high < other.low


def story(rows: Sequence[Row]) -> Story:
    """One line for each correction."""
    cells = {(row.site, row.metric, row.at): row for row in rows}
    rates = list(dict.fromkeys(row.at for row in rows if row.metric == "threshold"))
    columns = ("", "floor", "sd", *(f"threshold {rate:.1%}" for rate in rates if rate is not None), "best match")
    body = []
    for site in dict.fromkeys(row.site for row in rows):
        found = [cells.get((site, "floor_mean", None)), cells.get((site, "floor_sd", None))]
        found += [cells.get((site, "threshold", rate)) for rate in rates] + [cells.get((site, "nearest_mean", None))]
        body.append([WORDS.get(site, site), *(number(row.value if row else None) for row in found)])
    lines = [
        f"{WORDS[row.site]}: threshold {number(row.value)} ({interval(row)}) at {row.at:.1%}"
        for row in rows
        if row.metric == "threshold" and row.at == _usual_rate(rows) and row.site in WORDS
    ]
    return Story([Table(columns, body)], lines)


STUDY = Study(
    CalibrateSettings,
    collect=collect,
    conclude=conclude,
    kinds=kinds,
    story=story,
    subject=lambda settings: settings.files[0].rpartition("/")[2],
    machine=("threads", *SHARED),
    help="""
Similarity floor and thresholds of a set of embeddings, and what centring, all-but-the-top or whitening would do.

Examples:
  anisoscope calibrate embeddings.npy
  anisoscope calibrate documents.parquet --queries queries.parquet --rate 0.01,0.001
""",
)
