"""Did the geometry survive? Differences between two runs, site by site, with intervals.

Two runs over the same data have the same sequences in the same jackknife groups, so the difference of a metric is
jackknifed as one number: whatever a hard text does to both models cancels (paired). For metrics of the spectrum the
leave-one-group-out eigenvalues are taken to first order from the reservoirs (`inference.spectra`), which hold the same
positions of the same sequences in both runs; where they do not, there is no interval, and the note says so.
A difference whose interval excludes 0 is more than the choice of texts explains.

Every metric has three rows: `X` is second minus first, `X_before` and `X_after` are the values of the two runs. What
belongs to both runs at once has one: how alike the vectors are that both sampled (`inference.two_clouds`). Cost: two
d×d eigendecompositions for each site and run, and one singular value decomposition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.moments import Moments
from anisoscope.accumulate.sums import Sample, Sums
from anisoscope.errors import UsageError
from anisoscope.inference.directions import direction_estimate
from anisoscope.inference.estimates import Estimate
from anisoscope.inference.jackknife import without_each
from anisoscope.inference.metrics import Metric, of_cloud
from anisoscope.inference.spectra import SPECTRA, Spectrum, cloud_spectrum, shrunk_jackknife, spectral_estimate
from anisoscope.inference.two_clouds import partner_estimates, partners_of_rows
from anisoscope.runs.store import Run
from anisoscope.runs.study import Findings
from anisoscope.runs.table import Row, is_embedding
from anisoscope.runs.work.collected import report_of, split

Array = NDArray[np.float64]


def compare_runs(first: Run, second: Run, *, aligned: bool = False) -> Findings:
    """Second minus first, at every site that both have; `null` is 0, the value of no change.

    `aligned`: the runs are of different files whose rows are the same things in the same order.
    """
    ours, theirs = moments_of(first), moments_of(second)
    shared = _in_order(ours.keys() & theirs.keys(), first)
    if not shared:
        raise UsageError(
            "the two runs have no site in common",
            got=f"{', '.join(list(ours)[:4])} … and {', '.join(list(theirs)[:4])} …",
            expected="two runs of `measure` or `vectors` with the same sites",
        )
    same = _same_data(first, second) or (aligned and _same_rows(ours, theirs, shared))
    spectral = _with_spectrum(first) & _with_spectrum(second)
    rows, apart = [], set[str]()
    for key in shared:
        model, _, site = key.rpartition("|")
        like = Row(model=model, site=site)
        rows += differences(ours[key], theirs[key], like=like, paired=same, spectra=site in spectral)
        if same and not is_embedding(site) and not _same_positions(first, second, model):
            apart.add(model)
        elif same:
            rows += _partners(ours[key].sample(), theirs[key].sample(), like)
    notes = [] if same else ["the runs read different data, so the differences have no intervals"]
    notes += _other_settings(first, second)
    notes += ["a position is not the same token in both runs: no vector has a partner"] if apart else []
    for which, run, own in (("first", first, ours), ("second", second, theirs)):
        alone = _in_order(own.keys() - set(shared), run)
        notes += [f"only in the {which} run, and not compared: {', '.join(alone)}"] if alone else []
    notes += _left_out(first, second)
    changes = {row.metric.removesuffix("_before") for row in rows if row.metric.endswith("_before")}
    return Findings(rows, _words(rows), notes=notes, protocol={"difference": "second minus first"}, changes=changes)


_OPTIONAL = ("limit", "length", "prompt", "group")  # left out of a manifest where they were not asked for
_CHOSEN = ("documents", "specials", "positions", "maps", "whisper_window", "pool")


def _other_settings(first: Run, second: Run) -> list[str]:
    """What the runs read and count differently."""
    before, now = (run.manifest["settings"] for run in (first, second))
    names = [*_OPTIONAL, *(name for name in _CHOSEN if name in before and name in now)]
    other = [name for name in names if before.get(name) != now.get(name)] if first.command == second.command else []
    told = [f"{name} {_word(before, name)} and {_word(now, name)}" for name in other]
    return [f"the runs have different settings: {', '.join(told)}"] if told else []


def _word(settings: Mapping[str, Any], name: str) -> str:
    value = settings.get(name)
    return "(default)" if value is None else f"{value:g}" if isinstance(value, float) else repr(value)


def _same_positions(first: Run, second: Run, model: str = "") -> bool:
    """Whether a position is the same token in both runs: as many windows of as many tokens, of the same texts."""
    both = [run.manifest.get("about") or {} for run in (first, second)]
    reports = [report_of(about.get(model) or next(iter(about.values()), {})) for about in both]
    if not all(reports) or reports[0] == reports[1]:
        return True
    before, now = (run.manifest["settings"] for run in (first, second))
    alike = all(before.get(name) == now.get(name) for name in ("length", "prompt"))
    return alike and before.get("limit") != now.get("limit")


def _left_out(first: Run, second: Run) -> list[str]:
    """Vectors that only one of the runs left out: in a port, they may be what went wrong."""
    told = {"nonfinite_vectors": "vectors with NaN or infinite entries", "zero_vectors": "zero vectors"}

    def counts(run: Run) -> dict[tuple[str, str], float]:
        rows = [row for row in run.rows() if row.metric in told and row.positions == "all"]
        several = len({row.model for row in rows}) > 1  # one model may have another name in the other run
        return {(f"{row.model} {row.site}" if several else row.site, row.metric): row.value or 0.0 for row in rows}

    before, after = counts(first), counts(second)
    return [
        f"{told[metric]} at {site}: {before[site, metric]:.0f} in the first run, {count:.0f} in the second"
        for (site, metric), count in after.items()
        if count != before.get((site, metric), count)
    ]


def moments_of(run: Run) -> dict[str, Moments]:
    """The moments that a run kept, by site (`model|site` in a run of several models)."""
    states = split(run.state())
    if run.manifest["format"] > 1:  # label|observer|site
        parts = {tuple(key.split("|", 2)): state for key, state in states.items()}
        labels = {label for label, _, _ in parts}
        states = {
            f"{label}|{site}" if len(labels) > 1 else site: state
            for (label, observer, site), state in parts.items()
            if observer in ("hidden", "embedding")
        }
    if not states:
        raise UsageError("this run kept no sums to compare", where=run.folder, expected="a run of measure or vectors")
    return {site or "vectors": Moments.from_state(state) for site, state in states.items()}


def _in_order(sites: Iterable[str], run: Run) -> list[str]:
    """The sites in order of computation, which tensors on disk do not keep, model by model."""
    computed = {site: k for k, site in enumerate(dict.fromkeys(row.site for row in run.rows()))}
    return sorted(sites, key=lambda site: (site.rpartition("|")[0], computed.get(site.rpartition("|")[2], 0)))


def _same_data(first: Run, second: Run) -> bool:
    def prints(run: Run) -> list[Any]:
        data = run.manifest["data"]
        parts = [data] if "fingerprint" in data else list(data.values())
        return [part.get("fingerprint") for part in parts if isinstance(part, Mapping)]

    known = prints(first) == prints(second) and prints(first) and None not in prints(first)
    return bool(known) or first.folder.resolve() == second.folder.resolve()


def _same_rows(ours: Mapping[str, Moments], theirs: Mapping[str, Moments], sites: Iterable[str]) -> bool:
    """Whether both runs have jackknife groups of the same sizes: the same number of rows, the same left out."""
    return all(np.array_equal(ours[site].sums().group_n, theirs[site].sums().group_n) for site in sites)


def _partners(first: Sample, second: Sample, like: Row) -> list[Row]:
    """How alike the vectors are that both runs sampled: the same positions of the same sequences."""
    places = {place: k for k, place in enumerate(zip(second.keys.tolist(), second.positions.tolist(), strict=True))}
    both = [
        (k, places[place])
        for k, place in enumerate(zip(first.keys.tolist(), first.positions.tolist(), strict=True))
        if place in places
    ]
    if len(both) < 2:
        return []
    a, b = np.array(both).T
    found = partner_estimates(partners_of_rows(first.x[a], second.x[b], first.keys[a]))
    return [replace(like, **asdict(one)) for one in found]


def _with_spectrum(run: Run) -> set[str]:
    """The sites at which the run measured the spectrum."""
    return {row.site for row in run.rows(metric="isoscore") if row.value is not None}


@dataclass(frozen=True)
class _Value:
    """A metric of one run: the estimate, its values without each jackknife group, and the sizes of the groups."""

    estimate: Estimate
    left_out: Array
    sizes: Array
    shrink: float = 1.0


def differences(a: Moments, b: Moments, *, like: Row, paired: bool, spectra: bool = True) -> list[Row]:
    """All metrics of one site, b minus a; `like` gives the other columns."""
    before, after = a.sums(), b.sums()
    note = "paired by sequence group" if paired else ""
    rows: list[Row] = []
    for metric in of_cloud("direction"):
        rows += _rows(like, _of_sums(metric, before), _of_sums(metric, after), paired=paired, note=note)
    return rows + _spectral(a, b, like, paired=paired) if spectra else rows


def _spectral(a: Moments, b: Moments, like: Row, *, paired: bool) -> list[Row]:
    first, second = a.sample(), b.sample()
    if min(len(first), len(second)) < 2:
        return []
    same = np.array_equal(first.keys, second.keys) and np.array_equal(first.positions, second.positions)
    matched = paired and same
    note = "paired by sequence group, to first order" if matched else ""
    if paired and not matched:
        note = "no interval: the runs sampled different vectors"
    rows: list[Row] = []
    for reads in SPECTRA:
        before, after = (cloud_spectrum(m.sums(), m.sample(), centred=reads == SPECTRA[0]) for m in (a, b))
        for metric in of_cloud("spectrum"):
            if metric.reads == (reads,):
                values = _of_spectrum(metric, before, a.d), _of_spectrum(metric, after, b.d)
                rows += _rows(like, *values, paired=matched, note=note)
    return rows


def _of_sums(metric: Metric, sums: Sums) -> _Value:
    assert metric.of is not None
    left = np.asarray(metric.of(*(without_each(groups) for groups in metric.groups(sums))), float)
    return _Value(direction_estimate(metric, sums), left, sums.group_n)


def _of_spectrum(metric: Metric, found: Spectrum, d: int) -> _Value:
    return _Value(spectral_estimate(metric, found, d), found.without_each(metric), found.sizes, found.shrink)


def _rows(like: Row, a: _Value, b: _Value, *, paired: bool, note: str) -> list[Row]:
    """The difference of a metric, then its two values; nothing where one of them is missing."""
    before, after = a.estimate, b.estimate
    if before.value is None or after.value is None:
        return []
    change, low, high = after.value - before.value, None, None
    if paired and len(a.sizes) == len(b.sizes):
        low, high = shrunk_jackknife(b.left_out - a.left_out, change, a.sizes, max(a.shrink, b.shrink))
    said = f"{before.value:.6g} → {after.value:.6g}" + (f", {note}" if note and (low is not None or not paired) else "")
    n = min(before.n or 0, after.n or 0)
    moved = replace(like, metric=before.metric, value=change, low=low, high=high, null=0.0, n=n, note=said)
    return [moved, _side(like, before, "before"), _side(like, after, "after")]


def _side(like: Row, e: Estimate, side: str) -> Row:
    return replace(
        like, metric=f"{e.metric}_{side}", value=e.value, low=e.low, high=e.high, null=e.null, n=e.n, note=e.note
    )


def _words(rows: Iterable[Row]) -> str:
    """Where the average cosine changed, and where most."""
    cosines = [row for row in rows if row.metric == "mean_cosine" and row.value is not None]
    if not cosines:
        return "no site has an average cosine in both runs"
    moved = [row for row in cosines if row.low is not None and row.high is not None and row.low * row.high > 0]
    largest = max(cosines, key=lambda row: abs(row.value or 0.0))
    where = f"{largest.model} {largest.site}" if largest.model else largest.site
    if moved:
        sites = f"{len(moved)} of {len(cosines)} sites"
        return f"The average cosine changed at {sites}, most at {where} ({largest.value:+.4f})."
    if all(row.low is None for row in cosines):
        return f"Largest change of the average cosine: {largest.value:+.4f} at {where}; there are no intervals."
    return f"No average cosine changed by more than its interval (largest {largest.value:+.4f} at {where})."
