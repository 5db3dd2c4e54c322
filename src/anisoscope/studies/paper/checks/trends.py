"""Trends along a training or along a drift: do the lines go the way that is said, from beginning to end?

A line is one layer, head or draw. It moves as claimed if its rank correlation with the steps has the claimed sign and
its last value lies beyond its first (with intervals: the intervals of both ends are apart). `need` says how many lines
must: `all`, or `most` (three quarters). The null: steps that are exchangeable, dealt out anew within each line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from anisoscope.studies.paper.checks import Check, Seen
from anisoscope.studies.paper.checks.depth import rank_correlation
from anisoscope.studies.paper.checks.evidence import Evidence, value_of

if TYPE_CHECKING:
    from anisoscope.runs.table import Row

MOST = 0.75
Array = np.ndarray


@dataclass(frozen=True)
class Lines:
    """Values with their intervals (lines, steps), oriented so that what is claimed is a rise; `sign` undoes that."""

    value: Array
    low: Array
    high: Array
    need: Literal["all", "most"]
    sign: float
    names: tuple[str, ...]


def lines_of(
    rows: Sequence[Row], by: Literal["at", "step"], *, down: bool, absolute: bool, need: Literal["all", "most"]
) -> Lines | None:
    """Rows as lines over the steps that all of them have."""
    found: dict[tuple[object, ...], dict[float, Row]] = {}
    for row in rows:
        if getattr(row, by) is not None:
            found.setdefault((row.site, row.head, row.seed), {})[getattr(row, by)] = row
    steps = sorted({step for line in found.values() for step in line})
    whole = {key: [line[step] for step in steps] for key, line in found.items() if len(line) == len(steps)}
    if not whole or len(steps) < 3:
        return None
    ends = [
        [[value_of(row) if (end := getattr(row, name)) is None else end for row in line] for line in whole.values()]
        for name in ("value", "low", "high")
    ]
    value, low, high = (np.array(part, float) for part in ends)
    if absolute:
        value = low = high = np.abs(value)
    names = tuple(str(key[0]) for key in whole)
    return Lines(-value, -high, -low, need, -1.0, names) if down else Lines(value, low, high, need, 1.0, names)


def along_training(
    evidence: Evidence,
    *,
    metric: str,
    heads: bool = False,
    down: bool = False,
    absolute: bool = False,
    need: Literal["all", "most"] = "most",
) -> Lines | None:
    """Each layer (or head) of each seed, from the first checkpoint to the last."""
    found = evidence.found(metric, positions="all")
    rows = [row for row in found if row.layer is not None and (row.head is not None) == heads]
    return lines_of(rows, "step", down=down, absolute=absolute, need=need)


def moved(read: Lines) -> Array:
    """Which lines go the way that is said (lines,)."""
    return (rank_correlation(read.value) > 0) & (read.low[:, -1] > read.high[:, 0])


def judge_lines(read: Lines) -> Seen:
    good = moved(read)
    holds = bool(good.all()) if read.need == "all" else bool(good.mean() >= MOST)
    first, last = (read.sign * float(read.value[:, k].mean()) for k in (0, -1))
    way = "fall" if read.sign < 0 else "rise"
    words = f"{int(good.sum())} of {len(good)} lines {way} from beginning to end; on average {first:.4g} → {last:.4g}"
    astray = [read.names[i] for i in np.flatnonzero(~good)]
    if read.need == "all" and astray:
        words += f"; not so: {', '.join(dict.fromkeys(astray))}"
    return Seen(holds, words)


def exchangeable_steps(read: Lines, generator: np.random.Generator) -> Lines:
    """The steps of every line are dealt out anew, with their intervals."""
    order = np.argsort(generator.random(read.value.shape), axis=1)
    taken = {name: np.take_along_axis(getattr(read, name), order, axis=1) for name in ("value", "low", "high")}
    return replace(read, **taken)


CHECKS = {"along_training": Check(along_training, judge_lines, exchangeable_steps)}
