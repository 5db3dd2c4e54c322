"""Which correction to take, judged on groups that none was fitted on.

Without labels the judge is the gap of the best match (`inference.floor`): how far above unrelated pairs, in their own
spread, a row's best match stands. A method is worth taking if the gain over the rows as they are is above 0 by more
than its interval, and if the best match then stands higher than that of isotropic rows would: structure, not spread.
`best` is the one with the largest gain. Where none is, `best` leaves the vectors as they are but for their norm, and
says so. With labelled pairs the judge is nDCG@10: `best` is chosen on one half of the queries, and what is reported is
of the other. What a method costs is reported as well: the share of nearest neighbours that it keeps.

Queries may lie elsewhere than documents (another prompt, another encoder, another modality). Where their vectors are
given, each side is centred on its own mean, and the linear map of the documents serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from anisoscope.errors import InputError, UsageError
from anisoscope.geometry.corrections import METHODS, Affine, Corrections
from anisoscope.inference.estimates import Estimate
from anisoscope.inference.floor import HeldOut, measure_floor
from anisoscope.inference.retrieval import Found, Labelled, of_queries, retrieval_estimates
from anisoscope.runs.story import cosine, percent
from anisoscope.studies.folds import Split
from anisoscope.studies.pairs import search_maps
from anisoscope.studies.remedy.estimator import LEVELS

RATE = 0.01
Map = Callable[[NDArray[np.float64]], NDArray[np.float64]]
WORDS = {
    "none": "leaving the vectors as they are",
    "centre": "centring",
    "standardise": "standardising",
    "all-but-the-top": "centring and removing the top components",
    "whiten": "whitening",
    "whiten-k": "whitening to fewer dimensions",
    "soft-zca": "soft whitening",
}


@dataclass(frozen=True)
class Chosen:
    """A method with its map, fitted on everything, its floor on held-out pairs, and what was found of every method."""

    method: str
    map: Affine
    floor: NDArray[np.float64]
    estimates: Mapping[str, Sequence[Estimate]]
    sentence: str
    query_mean: NDArray[np.float64] | None = None
    length: float | None = None  # of the rows that the map was fitted on: the root of their mean squared norm


def choose(
    split: Split,
    method: str,
    dims: int | None,
    *,
    pairs: Labelled | None = None,
    queries: Split | None = None,
    seed: int = 0,
    rates: Sequence[float] = (0.05, RATE, 0.001),
) -> Chosen:
    """Fit and judge the method that is asked for, or all of them for `best`."""
    d = len(split.whole.mean)
    if dims is not None and not 1 < dims <= d:
        raise UsageError("that many dimensions cannot be kept", got=dims, expected=f"2 to {d}")
    asked = (
        [name for name in METHODS if split.leaves(name)] if method == "best" else [] if method == "none" else [method]
    )
    if not all(map(split.leaves, asked)):
        raise UsageError("this method leaves nothing of these vectors but rounding errors", got=method)
    held, sides = split.held, _sides(split.fitted, asked, dims, None if queries is None else queries.fitted.mean)
    if queries is not None:
        held = HeldOut(queries.held.rows, queries.held.keys, against=held.rows)
    estimates, cosines = measure_floor(held, sides[0], asked=sides[1], rates=rates)
    best = method if method != "best" else _best(estimates)
    if pairs is not None:
        whole = _sides(split.whole, asked, dims, None if queries is None else queries.whole.mean)
        found = search_maps(pairs, whole[0], asked=whole[1], seed=seed)
        if method == "best":
            half = next(iter(found.values())).groups % 2 == 0
            best = _best_search({name: of_queries(one, half) for name, one in found.items()}, pairs)
            found = {name: of_queries(one, ~half) for name, one in found.items()}
        searched = retrieval_estimates(found, pairs.labels, rates)
        estimates = {name: [*ones, *searched[name]] for name, ones in estimates.items()}
    final = split.whole.affine(best, dims=None if best == "none" else dims)
    floor = np.quantile(cosines["raw" if best == "none" else best], LEVELS)
    own = None if queries is None else queries.whole.mean if best != "none" else np.zeros(d)
    length = None if best == "none" else split.whole.length  # a map that changes nothing fits every scale
    said = _sentence(estimates, best, asked_best=method == "best")
    return Chosen(best, final, floor, estimates, said, own, length)


def _sides(
    fitted: Corrections, names: Sequence[str], dims: int | None, mean: NDArray[np.float64] | None
) -> tuple[Mapping[str, Map], Mapping[str, Map]]:
    """The map of every method, and that of queries: the same, about their own mean where there is one."""
    maps = {name: fitted.affine(name, dims=dims) for name in names}
    raw = partial(Affine.apply, fitted.affine("none"))
    asked = maps if mean is None else {name: replace(one, mean=mean) for name, one in maps.items()}
    both = ({name: partial(Affine.apply, one) for name, one in side.items()} for side in (maps, asked))
    documents, queries = ({"raw": raw} | side for side in both)
    return documents, queries


def _one(estimates: Sequence[Estimate], metric: str) -> Estimate | None:
    return next((one for one in estimates if one.metric == metric), None)


def _best(estimates: Mapping[str, Sequence[Estimate]]) -> str:
    """The method of the largest gain that its interval does not explain; `none` where there is no such method."""
    gaps = {name: _one(found, "nearest_gap") for name, found in estimates.items() if is_worth(found)}
    return max(gaps, key=lambda name: gaps[name].value) if gaps else "none"  # pyright: ignore  # worth: it has a value


def _best_search(found: Mapping[str, Found], pairs: Labelled) -> str:
    """The method of the largest gain in nDCG that its interval does not explain; `none` where there is no such one."""
    if not all(len(one.ndcg) for one in found.values()):
        raise InputError("there are too few queries to choose by", expected="several, with a related document each")
    moved = {name: _one(ones, "ndcg_difference") for name, ones in retrieval_estimates(found, pairs.labels, ()).items()}
    gains = {name: one.value for name, one in moved.items() if one is not None and one.low is not None and one.low > 0}
    return max(gains, key=lambda name: gains[name] or 0.0) if gains else "none"


def is_worth(estimates: Sequence[Estimate]) -> bool:
    """Whether a method lifts the best match, and above what isotropic rows would reach, by more than its interval."""
    gain, gap = _one(estimates, "nearest_gap_difference"), _one(estimates, "nearest_gap")
    if gain is None or gain.low is None or gap is None or gap.low is None or gap.null is None:
        return False
    return gain.low > 0 and gap.low > gap.null


def _sentence(estimates: Mapping[str, Sequence[Estimate]], method: str, *, asked_best: bool) -> str:
    """Whether the method helps and by what; what it does to the threshold, and what it costs."""
    before = _values(estimates["raw"])
    if method == "none":
        floor = f"Unrelated pairs have cosine {cosine(before['floor_mean'])} on average"
        why = (
            f"nothing is worth doing: {_why_none(estimates, before)}"
            if asked_best
            else "the vectors are left as they are"
        )
        return f"{floor}; {why}."
    after = _values(estimates[method])
    found = _search_words(estimates, method) or _gap_words(estimates[method], after, before)
    kept = after.get("neighbour_overlap")
    moved = f"goes from {cosine(before['threshold'])} to {cosine(after['threshold'])}"
    said = f"{WORDS[method].capitalize()} {found}; the threshold at {percent(RATE)} {moved}"
    return f"{said}{'' if kept is None or np.isnan(kept) else f'; {percent(kept)} of the ten nearest neighbours stay'}."


def _gap_words(estimates: Sequence[Estimate], after: Mapping[str, float], before: Mapping[str, float]) -> str:
    """Whether the best match stands higher than before, and than it would among random directions."""
    random, gain = _one(estimates, "nearest_gap"), _one(estimates, "nearest_gap_difference")
    gaps = f"{after['nearest_gap']:.1f} sd above unrelated pairs ({before['nearest_gap']:.1f} before)"
    if is_worth(estimates):
        return f"helps: the best match stands {gaps}"
    null = None if random is None or gain is None or (gain.low or 0) <= 0 else random.null
    limit = "" if null is None else f", not clearly more than random directions would give ({null:.1f})"
    return f"is not shown to help: the best match stands {gaps}{limit}"


def _why_none(estimates: Mapping[str, Sequence[Estimate]], before: Mapping[str, float]) -> str:
    """Why no method is chosen: none gains, or what they gain is what random directions have."""
    if "ndcg" in before:
        return "no method improves nDCG@10 by more than its interval"
    gains = [_one(found, "nearest_gap_difference") for found in estimates.values()]
    gaps = [one for found in estimates.values() if (one := _one(found, "nearest_gap")) and one.null is not None]
    if not gaps or not any(gain is not None and (gain.low or 0) > 0 for gain in gains):
        return "no method lifts the best match above unrelated pairs by more than its interval"
    best = max(gaps, key=lambda gap: gap.value or 0.0)
    return (
        f"at best the best match stands {best.value:.1f} sd above the floor ({before['nearest_gap']:.1f} as it is), no "
        f"more than random directions would give ({best.null:.1f})"
    )


def _search_words(estimates: Mapping[str, Sequence[Estimate]], method: str) -> str:
    moved = None if method == "none" else _one(estimates[method], "ndcg_difference")
    if moved is None or moved.value is None:
        return ""
    ends = "" if moved.low is None or moved.high is None else f" ({moved.low:+.3f} … {moved.high:+.3f})"
    surely = moved.low is not None and moved.high is not None and moved.low * moved.high > 0
    verb = "is not shown to change search" if not surely else "helps search" if moved.value > 0 else "hurts search"
    return f"{verb}: nDCG@10 changes by {moved.value:+.3f}{ends}"


def _values(estimates: Sequence[Estimate]) -> dict[str, float]:
    return {
        one.metric: one.value if one.value is not None else float("nan")
        for one in estimates
        if one.at is None or one.at == RATE
    }
