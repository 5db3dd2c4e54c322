"""The ten nearest rows of some queries under every variant, from one pass over the rows in blocks.

Of each query the best ten scores are kept and their row numbers; a block adds those of its rows that beat the tenth.
Of equal scores the row with the lower number is nearer, so the result is that of sorting all rows, whatever the blocks.
Memory: queries × (rows of a block for each thread + 10 × variants). Cost: queries × rows × dimensions for each variant,
in float32; threads share the variants of a map among them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.threads import by_slices, suited_to
from anisoscope.studies.advise.variants import Floats, Variant, mapped

Numbers = NDArray[np.int64]
NEIGHBOURS = 10
_TIED = 2e-7  # the rounding of a cosine in float32


class Best:
    """The k best scores of every query so far, and the numbers of their rows.

    >>> best = Best(1, 2)
    >>> best.add(np.array([[0.1, 0.9, 0.5]], np.float32), np.arange(3))
    >>> best.add(np.array([[0.5, 0.7]], np.float32), np.arange(3, 5))
    >>> best.numbers.tolist()
    [[1, 4]]
    """

    def __init__(self, queries: int, k: int = NEIGHBOURS) -> None:
        self.k = k
        self.scores = np.full((queries, k), -np.inf, np.float32)
        self.numbers = np.full((queries, k), -1, np.int64)

    def add(self, scores: Floats, numbers: Numbers) -> None:
        """Consider the rows of a block: their scores (queries, rows), and their numbers."""
        bar = self.scores[:, -1:]
        if not np.isfinite(bar).all() and scores.shape[1] > self.k:  # the first block: leave the hopeless out
            bar = np.nextafter(np.partition(scores, -self.k, axis=1)[:, -self.k :][:, :1], np.float32(-np.inf))
        query, row = np.nonzero(scores > bar)
        every = np.concatenate([np.repeat(np.arange(len(scores)), self.k), query])
        values = np.concatenate([self.scores.ravel(), scores[query, row]])
        named = np.concatenate([self.numbers.ravel(), numbers[row]])
        order = np.lexsort((named, -values, every))
        first = np.searchsorted(every[order], np.arange(len(scores)))
        chosen = order[first[:, None] + np.arange(self.k)]
        self.scores, self.numbers = values[chosen], named[chosen]


class Search:
    """The rows nearest to every query under every variant. `own` are the queries' numbers: no row finds itself.

    `groups` are variants that share a map, which is applied once to a block of rows.
    """

    def __init__(
        self, groups: Sequence[Sequence[Variant]], queries: NDArray[np.floating], own: Numbers, *, k: int = NEIGHBOURS
    ) -> None:
        self.groups, self.own, self.k = groups, own, k
        self.asked = {v: v.asked(mapped(queries, group[0])) for group in groups for v in group}
        self.best = {v: Best(len(queries), k) for group in groups for v in group}
        self.best[groups[0][0]] = Best(
            len(queries), k + 1
        )  # one more, to see where the last is not nearer than the next

    def add(self, x: NDArray[np.floating], numbers: Numbers) -> None:
        """Consider the rows of a block; their numbers rise."""
        if not len(x):
            return
        place = np.minimum(np.searchsorted(numbers, self.own), len(numbers) - 1)
        here = np.flatnonzero(numbers[place] == self.own)

        def search(variants: Sequence[Variant], y: Floats) -> None:
            for variant in variants:
                scores = self.asked[variant] @ variant.coded(y).T  # (queries, rows)
                scores[here, place[here]] = -np.inf
                self.best[variant].add(scores, numbers)

        with suited_to(x.shape[1]):
            for group in self.groups:
                y = mapped(x, group[0])
                by_slices(lambda some, group=group, y=y: search(group[some], y), len(group))

    def overlap(self) -> dict[Variant, NDArray[np.float64]]:
        """Of every query, the share of its nearest rows under the first variant that each variant keeps."""
        reference = self.best[self.groups[0][0]].numbers[:, : self.k]
        return {variant: overlaps(best.numbers[:, : self.k], reference) for variant, best in self.best.items()}

    def tied(self) -> float:
        """The share of queries whose last neighbour under the first variant is as near as the next."""
        scores = self.best[self.groups[0][0]].scores
        return float((scores[:, -2] - scores[:, -1] < _TIED).mean())


def overlaps(found: Numbers, reference: Numbers) -> NDArray[np.float64]:
    """The share of each query's nearest rows (q, k) that are among those of the reference.

    >>> overlaps(np.array([[1, 2], [3, 4]]), np.array([[2, 1], [4, 9]])).tolist()
    [1.0, 0.5]
    """
    return (found[:, :, None] == reference[:, None, :]).any(2).mean(1)
