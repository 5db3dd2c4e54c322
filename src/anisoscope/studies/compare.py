"""Did the geometry survive? Differences between two runs, site by site, with intervals.

Two runs over the same data have the same sequences in the same jackknife groups, so the difference of a metric is
jackknifed as one number: whatever a hard text does to both models cancels (paired). For metrics that are no function of
group sums (the spectrum) the intervals of the two runs are combined as if independent, which is wider, and said so.
A difference whose interval excludes 0 is more than the choice of texts explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from anisoscope.accumulate.moments import Moments
from anisoscope.accumulate.sums import Sums
from anisoscope.errors import UsageError
from anisoscope.geometry import cosine, drift
from anisoscope.inference.jackknife import jackknife, without_each
from anisoscope.runs.engine import split_states
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.store import Run
from anisoscope.runs.table import Row

PAIRED: dict[str, Callable[..., Any]] = {
    "mean_cosine": lambda s, cut: cosine.mean_cosine(cut(s.group_unit), cut(s.group_n)),
    "mean_cosine_inter": lambda s, cut: cosine.mean_cosine_inter(
        cut(s.group_unit), cut(s.group_n), cut(s.group_energy), cut(s.group_pairs)
    ),
    "mean_cosine_intra": lambda s, cut: cosine.mean_cosine_intra(
        cut(s.group_energy), cut(s.group_n), cut(s.group_pairs)
    ),
    "mean_norm": lambda s, cut: drift.mean_norm(cut(s.group_norm), cut(s.group_n)),
    "drift_norm": lambda s, cut: drift.drift_norm(cut(s.group_x), cut(s.group_n)),
    "drift_ratio": lambda s, cut: drift.drift_ratio(cut(s.group_x), cut(s.group_norm2), cut(s.group_n)),
}
UNPAIRED = ("isoscore", "participation_ratio_unbiased", "effective_rank", "pc1_share", "stable_rank")


def compare_runs(first: Run, second: Run) -> Measurement:
    """Second minus first, at every site that both have; `null` is 0, the value of no change."""
    ours, theirs = moments_of(first), moments_of(second)
    shared = _in_order(ours.keys() & theirs.keys(), first)
    if not shared:
        raise UsageError(
            "the two runs have no site in common",
            got=f"{', '.join(list(ours)[:4])} … and {', '.join(list(theirs)[:4])} …",
            expected="two runs of `measure` or `vectors` with the same sites",
        )
    same = _same_data(first, second)
    rows = []
    for site in shared:
        rows += _paired(site, ours[site].sums(), theirs[site].sums(), same=same)
        rows += _unpaired(site, first, second)
    moved = [
        row for row in rows if row.metric == "mean_cosine" and row.low is not None and row.low * (row.high or 0) > 0
    ]
    largest = max((row for row in rows if row.metric == "mean_cosine"), key=lambda row: abs(row.value or 0.0))
    words = (
        f"average cosine changed at {len(moved)} of {len(shared)} sites, most at {largest.site} ({largest.value:+.4f})"
        if moved
        else f"no average cosine changed by more than its interval (largest {largest.value:+.4f} at {largest.site})"
    )
    notes = () if same else ("the runs were made on different data: intervals are not paired",)
    settings = {"first": str(first.folder), "second": str(second.folder)}
    return Measurement(tuple(rows), words, notes, None, "compare", settings, {"difference": "second minus first"})


def moments_of(run: Run) -> dict[str, Moments]:
    """The moments that a run kept, by site."""
    states = split_states(run.state())
    if not states:
        raise UsageError("this run kept no sums to compare", where=run.folder, expected="a run of measure or vectors")
    return {site or "vectors": Moments.from_state(state) for site, state in states.items()}


def _in_order(sites: Iterable[str], run: Run) -> list[str]:
    """The sites (`model|site` in a run of several) in order of computation, which tensors on disk do not keep."""
    computed = {site: k for k, site in enumerate(dict.fromkeys(row.site for row in run.rows()))}
    return sorted(sites, key=lambda site: (site.rpartition("|")[0], computed.get(site.rpartition("|")[2], 0)))


def _same_data(first: Run, second: Run) -> bool:
    def prints(run: Run) -> list[Any]:
        data = run.manifest["data"]
        parts = [data] if "fingerprint" in data else list(data.values())
        return [part.get("fingerprint") for part in parts if isinstance(part, Mapping)]

    return prints(first) == prints(second) and None not in prints(first)


def _paired(site: str, a: Sums, b: Sums, *, same: bool) -> list[Row]:
    rows = []
    for name, metric in PAIRED.items():
        before, after = metric(a, lambda groups: groups.sum(0)), metric(b, lambda groups: groups.sum(0))
        if before is None or after is None:
            continue
        low = high = None
        if same and len(a.group_n) == len(b.group_n):
            left = np.asarray(metric(b, without_each), float) - np.asarray(metric(a, without_each), float)
            if np.isfinite(left[a.group_n > 0]).all():
                low, high = jackknife(left, after - before, a.group_n)
        note = f"{before:.6g} → {after:.6g}" + (", paired by sequence group" if low is not None else "")
        rows.append(
            Row(site=site, metric=name, value=after - before, low=low, high=high, null=0.0, n=min(a.n, b.n), note=note)
        )
    return rows


def _unpaired(site: str, first: Run, second: Run) -> list[Row]:
    rows = []
    for name in UNPAIRED:
        before = first.rows(site=site, metric=name, positions="all")
        after = second.rows(site=site, metric=name, positions="all")
        if not before or not after or before[0].value is None or after[0].value is None:
            continue
        a, b = before[0], after[0]
        change = after[0].value - before[0].value
        low = high = None
        if a.low is not None and a.high is not None and b.low is not None and b.high is not None:
            reach = float(np.hypot(a.high - a.low, b.high - b.low)) / 2
            low, high = change - reach, change + reach
        note = f"{a.value:.6g} → {b.value:.6g}, not paired"
        rows.append(Row(site=site, metric=name, value=change, low=low, high=high, null=0.0, n=a.n, note=note))
    return rows
