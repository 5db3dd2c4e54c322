"""Trends with depth: does a quantity rise or fall from the first layers to the last?

Layers that are exchangeable are the null: any order of the values is as likely as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from anisoscope.studies.paper.checks import Check, Seen
from anisoscope.studies.paper.checks.evidence import Evidence, at_last_step, value_of

ONE_IN_TWENTY = 0.05


@dataclass(frozen=True)
class Depth:
    """One value for each layer, in order, and their names; `falling` is what is claimed, of `what`."""

    names: tuple[str, ...]
    values: tuple[float, ...]
    falling: bool
    what: str


def falls_with_depth(evidence: Evidence, *, models: Sequence[str]) -> Depth | None:
    """The average cosine falls from layer to layer."""
    for model in evidence.wanted(models):
        rows = evidence.layers(model)
        if len(rows) >= 3:
            return Depth(tuple(row.site for row in rows), tuple(map(value_of, rows)), True, f"cosine of {model}")
    return None


def first_layers_sharper(evidence: Evidence) -> Depth | None:
    """At the last step the entropy of attention rises with depth, seeds averaged."""
    rows = [
        row
        for _, run in evidence.runs
        for row in at_last_step(run.rows(metric="entropy", positions="all"))
        if row.value is not None and row.head is None and row.layer is not None
    ]
    layers = sorted({row.layer for row in rows if row.layer is not None})
    if len(layers) < 3:
        return None
    means = [float(np.mean([value_of(row) for row in rows if row.layer == layer])) for layer in layers]
    return Depth(tuple(f"layer {layer}" for layer in layers), tuple(means), False, "entropy at the last step")


def rank_correlation(values: np.ndarray) -> np.ndarray:
    """Spearman's correlation of each row of values (…, n) with their order.

    >>> rank_correlation(np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])).round(6).tolist()
    [1.0, -1.0]
    """
    from scipy.stats import rankdata

    n = values.shape[-1]
    order = np.arange(n) - (n - 1) / 2
    ranks = np.asarray(rankdata(values, axis=-1)) - (n + 1) / 2
    spread = np.sqrt((order @ order) * (ranks**2).sum(-1))
    return ranks @ order / np.where(spread == 0, 1, spread)


@cache
def critical(n: int) -> float:
    """The correlation with depth that one order in twenty reaches, by 20,000 random orders (all of them if fewer)."""
    from itertools import permutations
    from math import factorial

    few = factorial(n) <= 40_320
    shuffled = np.random.default_rng(0).random((20_000, n))
    orders = np.array(list(permutations(range(n)))) if few else np.argsort(shuffled, axis=1)
    found = np.sort(rank_correlation(orders.astype(float)))[::-1]
    levels = np.unique(found)[::-1]
    reached = [float(level) for level in levels if (found >= level - 1e-12).mean() <= ONE_IN_TWENTY]
    return reached[-1] if reached else float("inf")


def judge_depth(read: Depth) -> Seen:
    """Spearman's correlation with depth is of the claimed sign and beyond chance, and the extreme layer lies where it
    must: the highest value in the half that is said to be higher."""
    n = len(read.values)
    values = np.array(read.values)
    rho = float(rank_correlation(values[None])[0]) * (-1 if read.falling else 1)
    highest = int(values.argmax())
    in_place = highest < n / 2 if read.falling else highest >= n / 2
    words = (
        f"{read.what}: {values[0]:.3g} at {read.names[0]}, {values[-1]:.3g} at {read.names[-1]}, highest "
        f"{values.max():.3g} at {read.names[highest]}; rank correlation with depth {-rho if read.falling else rho:+.2f}"
    )
    return Seen(rho >= critical(n) - 1e-12 and in_place, words)


def exchangeable_layers(read: Depth, generator: np.random.Generator) -> Depth:
    """Any order of the layers is as likely."""
    return replace(read, values=tuple(generator.permutation(read.values).tolist()))


CHECKS = {
    "falls_with_depth": Check(falls_with_depth, judge_depth, exchangeable_layers),
    "first_layers_sharper": Check(first_layers_sharper, judge_depth, exchangeable_layers),
}
