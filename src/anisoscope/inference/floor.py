"""The floor: how similar unrelated pairs are, before and after corrections, on rows that no correction was fitted on.

A pair is unrelated if its rows belong to different sequences (documents, topics). For every correction:

- `floor_mean`, `floor_sd`, quantiles of the cosine of unrelated pairs; `threshold` at rate p is the quantile 1 − p;
- `nearest_mean`: the average cosine of a row and its best match; `nearest_gap`: how many sds of the floor that lies
  above the mean of the floor. Its null is what the best of as many isotropic rows would reach, so that a correction
  which only spreads the cloud is not taken for one that helps. `nearest_gap_difference` is the gain over `raw`, paired;
- `neighbour_overlap`: the share of a row's ten nearest neighbours that a correction keeps; by chance 10 of the
  unrelated rows. Rows with ten unrelated ones or fewer are left out: they have no others to lose them to.

Intervals: delete-a-group jackknife over the sequences of the rows. Cost O(m²·d) for each correction, m ≤ 1024.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.keys import GROUPS, group_of
from anisoscope.errors import InputError
from anisoscope.geometry.missing import settle
from anisoscope.geometry.nulls import isotropic as null
from anisoscope.geometry.rows import unit_rows
from anisoscope.geometry.two_clouds import shared_neighbours
from anisoscope.inference.estimates import Estimate
from anisoscope.inference.jackknife import jackknife, jackknife_mean

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
QUANTILES = (0.05, 0.25, 0.5, 0.75)  # the upper tail is in the thresholds
NEIGHBOURS = 10
_GUMBEL = 0.5615  # e^−γ: the mean of a maximum of n is about the quantile 1 − 0.5615/n


@dataclass(frozen=True)
class HeldOut:
    """Rows that the corrections were not fitted on, with their sequences; `against` holds the documents for queries."""

    rows: Array  # (m, d)
    keys: NDArray[np.uint64]
    against: Array | None = None  # (k, d)
    places: NDArray[np.int64] | None = None  # (m,) what tells the rows of a sequence apart


@dataclass(frozen=True)
class Similarities:
    """Cosines (m, k) under one correction, which pairs are unrelated, and the jackknife groups of rows and columns."""

    cosines: Array
    unrelated: Bools
    once: Bools  # each unrelated pair once
    groups: tuple[NDArray[np.int64], NDArray[np.int64]]


def similarities(
    held: HeldOut, correct: Callable[[Array], Array], asked: Callable[[Array], Array] | None = None
) -> Similarities:
    """The cosines of the held-out rows under a correction; `asked` is that of queries, where they have their own."""
    left, groups = unit_rows((asked or correct)(held.rows)), group_of(held.keys)
    if held.against is not None:
        right = unit_rows(correct(held.against))
        every = np.ones((len(left), len(right)), bool)
        return Similarities(left @ right.T, every, every, (groups, np.full(len(right), -1)))
    unrelated = held.keys[:, None] != held.keys[None, :]
    return Similarities(left @ left.T, unrelated, np.triu(unrelated, 1), (groups, groups))


def measure_floor(
    held: HeldOut,
    corrections: Mapping[str, Callable[[Array], Array]],
    *,
    rates: Sequence[float],
    asked: Mapping[str, Callable[[Array], Array]] | None = None,
) -> tuple[dict[str, list[Estimate]], dict[str, Array]]:
    """Estimates of every correction, `raw` among them and first, and the sorted cosines of unrelated pairs of each.

    `asked`: the corrections of queries, by the same names.
    """
    found: dict[str, list[Estimate]] = {}
    values: dict[str, Array] = {}
    raw: _Table | None = None
    for name, correct in corrections.items():
        table = _table(similarities(held, correct, (asked or {}).get(name)), rates)
        raw = raw or table
        found[name] = _estimates(table, rates, held.rows.shape[1])
        if table is not raw:
            found[name] += _compared(table, raw)
        values[name] = table.sorted
    return found, values


def cosine_histograms(cosines: Mapping[str, Array], d: int) -> dict[str, Array]:
    """The density of cosines by name, in bins of 0.01, and that of isotropic pairs in d dimensions: arrays of a run."""
    edges = np.linspace(-1, 1, 201)
    found = {"edges": edges, "null": np.diff(np.asarray(null.cosine_cdf(edges, d), float)) / np.diff(edges)}
    for name, values in cosines.items():
        counts, _ = np.histogram(np.clip(values, -1, 1), bins=edges)
        found[f"histogram.{name}"] = counts / (counts.sum() * np.diff(edges))
    return found


@dataclass(frozen=True)
class _Table:
    """The statistics of one correction: over all groups (s,), without each (g, s), and the neighbours of every row."""

    values: Array
    left_out: Array
    sizes: NDArray[np.int64]
    pairs: int
    sorted: Array
    neighbours: NDArray[np.int64]  # (r, 10) of the rows that have more unrelated ones
    unrelated: NDArray[np.int64]  # (m,) how many each row has
    groups: NDArray[np.int64]
    candidates: int


def _table(found: Similarities, rates: Sequence[float]) -> _Table:
    if not found.once.any():
        do = "leave out --group, or give more groups"
        raise InputError("the rows that are held out belong to one group: there are no unrelated pairs", do=do)
    pairs = _Pairs.of(found)
    groups = found.groups[0]
    sizes = np.bincount(groups, minlength=GROUPS)
    values = pairs.statistics(rates)
    left = np.full((GROUPS, len(values)), np.nan)
    for group in np.flatnonzero(sizes):
        left[group] = pairs.statistics(rates, without=int(group))
    unrelated, candidates = found.unrelated.sum(1), found.cosines.shape[1]
    return _Table(
        values, left, sizes, len(pairs.cosines), pairs.cosines, _nearest(found), unrelated, groups, candidates
    )


@dataclass(frozen=True)
class _Pairs:
    """Unrelated pairs, sorted by cosine once, so that leaving a group out sorts nothing anew.

    - `left`, `right`: the groups of the two rows of each pair; `best`: of every row, its best match in each group.
    """

    cosines: Array  # (p,) rising
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    best: Array  # (m, GROUPS + 1), the last column for rows without a group
    groups: NDArray[np.int64]  # (m,)

    @classmethod
    def of(cls, found: Similarities) -> _Pairs:
        rows, columns = np.nonzero(found.once)
        cosines = found.cosines[rows, columns]
        order = np.argsort(cosines)
        left, right = found.groups
        masked = np.where(found.unrelated, found.cosines, -np.inf)
        best = np.full((len(left), GROUPS + 1), -np.inf)
        for group in np.unique(right):
            best[:, group] = masked[:, right == group].max(1)
        return cls(cosines[order], left[rows[order]], right[columns[order]], best, left)

    def statistics(self, rates: Sequence[float], *, without: int | None = None) -> Array:
        """Mean, sd, quantiles, thresholds, best match and its gap; of all rows, or without those of a group."""
        kept, best = self.cosines, self.best
        if without is not None:
            kept = kept[(self.left != without) & (self.right != without)]
            best = np.delete(best, without, axis=1)[self.groups != without]
        nearest = best.max(1) if len(best) else np.empty(0)
        nearest = nearest[np.isfinite(nearest)]
        levels = [*QUANTILES, *(1 - rate for rate in rates)]
        if not len(kept) or not len(nearest):
            return np.full(len(levels) + 4, np.nan)
        mean, sd = kept.mean(), kept.std()
        quantiles = np.interp(np.array(levels) * (len(kept) - 1), np.arange(len(kept)), kept)
        gap = (nearest.mean() - mean) / sd if sd > 0 else np.nan
        return np.array([mean, sd, *quantiles, nearest.mean(), gap])


def _estimates(table: _Table, rates: Sequence[float], d: int) -> list[Estimate]:
    low, high = jackknife(table.left_out, table.values, table.sizes)
    estimates = []
    for i, (metric, at, expected) in enumerate(_names(rates, d, table.candidates)):
        few = "fewer than ten pairs lie above it" if at is not None and at * table.pairs < 10 else ""
        ends = settle(table.values[i]), settle(low[i]), settle(high[i])
        estimates.append(Estimate(metric, *ends, null=expected, n=table.pairs, note=few, at=at))
    return estimates


def _names(rates: Sequence[float], d: int, candidates: int) -> list[tuple[str, float | None, float | None]]:
    """(metric, at, isotropic value), in the order of `_Pairs.statistics`."""
    named: list[tuple[str, float | None, float | None]] = [("floor_mean", None, 0.0), ("floor_sd", None, d**-0.5)]
    named += [(f"floor_q{round(100 * q):02d}", None, float(null.cosine_quantile(q, d))) for q in QUANTILES]
    named += [("threshold", rate, float(null.cosine_quantile(1 - rate, d))) for rate in rates]
    best = float(null.cosine_quantile(1 - _GUMBEL / max(candidates - 1, 1), d))
    return [*named, ("nearest_mean", None, best), ("nearest_gap", None, best * d**0.5)]


def _compared(table: _Table, raw: _Table) -> list[Estimate]:
    """What a correction does to the best match and to neighbours, beside the rows as they are."""
    gain = table.values[-1] - raw.values[-1]
    low, high = jackknife(table.left_out[:, -1] - raw.left_out[:, -1], gain, table.sizes)
    moved = Estimate("nearest_gap_difference", settle(gain), settle(low), settle(high), null=0.0, n=table.pairs)
    return [moved, _overlap(table, raw)]


def _overlap(table: _Table, raw: _Table) -> Estimate:
    some = table.unrelated > NEIGHBOURS
    few = int((~some).sum())
    note = f"{few} rows with ten unrelated ones or fewer left out" if few else ""
    if not some.any():
        return Estimate("neighbour_overlap", None, n=0, note=note)
    shared = shared_neighbours(table.neighbours, raw.neighbours)  # (r,)
    chance = float((NEIGHBOURS / table.unrelated[some]).mean())
    kept = jackknife_mean(shared, table.groups[some])
    return Estimate("neighbour_overlap", *kept, null=chance, n=len(shared), note=note)


def _nearest(found: Similarities) -> NDArray[np.int64]:
    """The ten most similar unrelated columns of every row that has more than ten."""
    some = found.unrelated.sum(1) > NEIGHBOURS
    masked = np.where(found.unrelated, found.cosines, -np.inf)[some]
    return np.argpartition(-masked, NEIGHBOURS - 1, axis=1)[:, :NEIGHBOURS] if len(masked) else np.zeros((0, 0), int)
