"""Search with labelled pairs: what a correction does to rankings, and thresholds that hold for new queries.

For queries with at least one related document, documents ranked by cosine:

- nDCG@10 = Σ_{r ≤ 10} g_r/log₂(r + 1) over the same sum for the best order, g the label of the document at rank r;
- recall@k: the share of a query's related documents among the first k;
- conformal threshold at rate p: one unrelated document is drawn for each of n queries; the threshold is the
  ⌈(n + 1)(1 − p)⌉-th smallest of the n cosines, so that an unrelated document of a *new* query exceeds it with
  probability at most p (Vovk et al. 2005), whatever the distribution. It needs n ≥ 1/p − 1 queries;
- recall and precision at that threshold, over the labelled pairs; precision only where some are labelled 0.

Documents of equal cosine (copies, codes of a few bits) have no order: nDCG and recall are means over all of theirs
(McSherry & Najork 2008). Intervals: delete-a-group jackknife over queries. Documents without a label count as
unrelated, as in BEIR, and a document that is the query itself is never found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.keys import group_of
from anisoscope.geometry.rows import unit_rows
from anisoscope.inference.estimates import Estimate
from anisoscope.inference.jackknife import jackknife_mean

Array = NDArray[np.float64]
DEPTH = 10
CUTS = (1, 10, 100)
_BLOCK = 256  # queries at a time
_ROUNDING = 1e-12  # by which cosines of equal vectors may differ


@dataclass(frozen=True)
class Labelled:
    """Queries, documents and the label of some pairs: `pairs` (p, 2) are their numbers."""

    queries: Array  # (q, d)
    documents: Array  # (m, d)
    pairs: NDArray[np.int64]
    labels: Array  # (p,)
    keys: NDArray[np.uint64]  # (q,) of the queries
    itself: NDArray[np.int64]  # (q,) the document that is the query, or -1
    names: tuple[str, ...] = ()  # (m,) of the documents

    @property
    def judged(self) -> NDArray[np.int64]:
        """The queries with a related document."""
        return np.unique(self.pairs[self.labels > 0, 0])

    @cached_property
    def listed(self) -> dict[int, dict[int, float]]:
        """The labels of the documents that are listed with each query."""
        found: dict[int, dict[int, float]] = {}
        for (query, document), label in zip(self.pairs.tolist(), self.labels.tolist(), strict=True):
            found.setdefault(query, {})[document] = label
        return found


@dataclass(frozen=True)
class Found:
    """Of every judged query: nDCG@10, recall at each cut, the cosine of one unrelated document; of pairs, cosines."""

    ndcg: Array  # (q,)
    recall: Array  # (q, cuts)
    unrelated: Array  # (q,)
    cosines: Array  # (p,)
    groups: NDArray[np.int64]  # (q,)


def of_queries(found: Found, kept: NDArray[np.bool_]) -> Found:
    """The same of some of the judged queries; the cosines of pairs stay."""
    return replace(
        found,
        ndcg=found.ndcg[kept],
        recall=found.recall[kept],
        unrelated=found.unrelated[kept],
        groups=found.groups[kept],
    )


def search(data: Labelled, *, seed: int = 0) -> Found:
    """Rank all documents for every judged query."""
    queries, documents = unit_rows(data.queries), unit_rows(data.documents)
    judged, rng = data.judged, np.random.default_rng(seed)
    ndcg, recall, other = [], [], []
    for start in range(0, len(judged), _BLOCK):
        some = judged[start : start + _BLOCK]
        for query, cosines in zip(some.tolist(), queries[some] @ documents.T, strict=True):
            listed, own = data.listed[query], int(data.itself[query])
            related = {document: label for document, label in listed.items() if label > 0}
            if own >= 0:
                cosines[own] = -np.inf
            labels = np.zeros(len(cosines))
            labels[list(related)] = list(related.values())
            order = np.argsort(-cosines, kind="stable")
            gains, hits = (_shared(of[order], cosines[order]) for of in (labels, (labels > 0).astype(float)))
            ndcg.append(ndcg_of(gains[:DEPTH].tolist(), list(related.values())))
            recall.append([float(hits[:k].sum()) / len(related) for k in CUTS])
            other.append(_unlisted(cosines, {*listed, own}, rng))
    pairs = np.einsum("ij,ij->i", queries[data.pairs[:, 0]], documents[data.pairs[:, 1]])
    return Found(np.array(ndcg), np.array(recall), np.array(other), pairs, group_of(data.keys[judged]))


def _shared(gains: Array, cosines: Array) -> Array:
    """The gains at falling cosines; where cosines are equal, each has the mean of them.

    >>> _shared(np.array([1.0, 0.0, 0.0, 1.0]), np.array([0.5, 0.5, 0.2, 0.1]))
    array([0.5, 0.5, 0. , 1. ])
    """
    starts = np.flatnonzero(np.diff(cosines, prepend=np.inf) < -_ROUNDING)
    sizes = np.diff(starts, append=len(cosines))
    return np.repeat(np.add.reduceat(gains, starts) / sizes, sizes)


def _unlisted(cosines: Array, listed: set[int], rng: np.random.Generator) -> float:
    """The cosine of a document drawn from those that are not listed with the query; NaN where there is none."""
    free = np.ones(len(cosines), bool)
    free[[one for one in listed if one >= 0]] = False
    return float(cosines[rng.choice(np.flatnonzero(free))]) if free.any() else float("nan")


def ndcg_of(gains: Sequence[float], ideal: Sequence[float]) -> float:
    """nDCG@10 of the gains in the order found, against all gains.

    >>> round(ndcg_of([0, 3, 2], [3, 2]), 4)
    0.6788
    """
    best = _dcg(sorted(ideal, reverse=True))
    return _dcg(gains) / best if best > 0 else 0.0


def _dcg(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 2) for rank, gain in enumerate(gains[:DEPTH]))


def conformal_threshold(cosines: Array, rate: float) -> float | None:
    """The threshold that a new unrelated cosine exceeds with probability at most `rate`; None for too few.

    >>> conformal_threshold(np.arange(1, 100) / 100, 0.05), conformal_threshold(np.ones(9), 0.05)
    (0.95, None)
    """
    known = np.sort(cosines[np.isfinite(cosines)])
    place = math.ceil(round((len(known) + 1) * (1 - rate), 9))
    return float(known[place - 1]) if place <= len(known) else None


def retrieval_estimates(found: Mapping[str, Found], labels: Array, rates: Sequence[float]) -> dict[str, list[Estimate]]:
    """What every correction does to search; the first one is what the others are compared with."""
    first = next(iter(found.values()))
    return {
        name: [*_ranked(one, None if one is first else first), *_thresholds(one, labels, rates)]
        for name, one in found.items()
    }


def _ranked(one: Found, raw: Found | None) -> list[Estimate]:
    estimates = [_mean("ndcg", one.ndcg, one.groups)]
    if raw is not None:
        estimates.append(_mean("ndcg_difference", one.ndcg - raw.ndcg, one.groups))
    return estimates + [_mean("recall", one.recall[:, k], one.groups, at=float(cut)) for k, cut in enumerate(CUTS)]


def _mean(metric: str, values: Array, groups: NDArray[np.int64], at: float | None = None) -> Estimate:
    """The mean over queries, with its interval."""
    mean, low, high = jackknife_mean(values, groups)
    null = 0.0 if metric.endswith("_difference") else None
    if null is None:  # shares: the interval ends where they do
        low, high = (None if end is None else min(max(end, 0.0), 1.0) for end in (low, high))
    return Estimate(metric, mean, low, high, null=null, n=len(values), at=at)


def _thresholds(one: Found, labels: Array, rates: Sequence[float]) -> list[Estimate]:
    estimates = []
    for rate in rates:
        threshold, n = conformal_threshold(one.unrelated, rate), int(np.isfinite(one.unrelated).sum())
        note = "" if threshold is not None else f"needs at least {math.ceil(1 / rate) - 1} queries"
        estimates.append(Estimate("threshold_conformal", threshold, n=n, at=rate, note=note))
        if threshold is None:
            continue
        above, related = one.cosines > threshold, labels > 0
        estimates.append(Estimate("recall_at_threshold", float(above[related].mean()), n=int(related.sum()), at=rate))
        if not related.all() and above.any():
            estimates.append(
                Estimate("precision_at_threshold", float(related[above].mean()), n=int(above.sum()), at=rate)
            )
    return estimates
