"""Levels: how high the average cosine of a model lies. Described, not tested against chance, but for one ordering.

The yardstick for "a significant level" is the one of the paper's own figure 18: the 95 % quantile of the cosine of an
isotropic pair in the same dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from anisoscope.geometry.nulls.isotropic import cosine_quantile
from anisoscope.studies.paper.checks import A_LEVEL, Check, Seen
from anisoscope.studies.paper.checks.evidence import Evidence, Sites, after_norm, interval, short_name, value_of

if TYPE_CHECKING:
    from anisoscope.runs.table import Row

EXTREME = 0.8  # what "extremely high" is read as


@dataclass(frozen=True)
class Bounded:
    """Rows that must lie at or above, or below, a bound each; `of`: every row, or some row of every model."""

    rows: tuple[Row, ...]
    bounds: tuple[float, ...]
    below: bool = False
    some: bool = False


def place(row: Row) -> str:
    return f"{row.site} of {short_name(row.model)}"


def every_site(
    evidence: Evidence,
    *,
    at_least: float | None = None,
    below: float | None = None,
    models: Sequence[str] | None = None,
    group: str | None = None,
    but: Sequence[str] = (),
    sites: Sites = "raw",
    extends: bool = False,
) -> Bounded | None:
    """Every layer of the models has an average cosine of at least (or below) a level, by its estimate."""
    chosen = [model for model in evidence.wanted(models, group=group, extends=extends) if model not in but]
    rows = tuple(row for model in chosen for row in evidence.layers(model, sites=sites))
    level = at_least if at_least is not None else below
    assert level is not None
    return Bounded(rows, (level,) * len(rows), below=below is not None) if rows else None


def against_isotropic(
    evidence: Evidence,
    *,
    models: Sequence[str] | None = None,
    group: str | None = None,
    but: Sequence[str] = (),
    below: bool = False,
    some: bool = False,
) -> Bounded | None:
    """Every layer (or some layer of every model) lies above, or below, 95 % of isotropic pairs of its dimension."""
    rows, bounds = [], []
    for model in evidence.wanted(models, group=group):
        widths = {row.site: int(value_of(row)) for row in evidence.rows("dimension", model=model)}
        for row in evidence.layers(model) if model not in but else ():
            if widths.get(row.site, 0) >= 2:
                rows.append(row)
                bounds.append(float(cosine_quantile(0.95, widths[row.site])))
    return Bounded(tuple(rows), tuple(bounds), below=below, some=some) if rows else None


def judge_bounded(read: Bounded) -> Seen:
    good = [
        value_of(row) < bound if read.below else value_of(row) >= bound
        for row, bound in zip(read.rows, read.bounds, strict=True)
    ]
    least, most = min(read.rows, key=value_of), max(read.rows, key=value_of)
    ends = f"lowest {interval(least)} at {place(least)}, highest {interval(most)} at {place(most)}"
    if read.some:
        models = dict.fromkeys(row.model for row in read.rows)
        with_one = [
            model for model in models if any(ok for ok, row in zip(good, read.rows, strict=True) if row.model == model)
        ]
        words = f"{len(with_one)} of {len(models)} models have a layer above 95 % of isotropic pairs"
        return Seen(len(with_one) == len(models), f"{words}; {ends}")
    side = "below" if read.below else "at or above"
    level = f"{read.bounds[0]:g}" if len(set(read.bounds)) == 1 else "the 95 % quantile of isotropic pairs"
    return Seen(all(good), f"{sum(good)} of {len(good)} layers {side} {level}; {ends}")


def last_state(evidence: Evidence, *, models: Sequence[str], at_least: float) -> Bounded | None:
    """The last state that the library returns: after the final norm where the model has one."""
    rows = tuple(found[-1] for model in evidence.wanted(models) if (found := evidence.layers(model, sites="all")))
    return Bounded(rows, (at_least,) * len(rows)) if rows else None


@dataclass(frozen=True)
class Stacks:
    """The layers of an encoder and of its decoder, what a final norm makes of the last one included."""

    encoder: tuple[Row, ...]
    decoder: tuple[Row, ...]


def decoder_extreme(evidence: Evidence, *, models: Sequence[str], extends: bool = False) -> Stacks | None:
    """The decoder reaches an extreme level, and is above its encoder on average."""
    for model in evidence.wanted(models, extends=extends):
        parts = [tuple(evidence.layers(model, sites="all", site=f"{stack}.*")) for stack in ("encoder", "decoder")]
        if all(parts):
            return Stacks(*parts)
    return None


def judge_decoder(read: Stacks) -> Seen:
    peak = max(read.decoder, key=value_of)
    means = [float(np.mean([value_of(row) for row in part])) for part in (read.encoder, read.decoder)]
    words = (
        f"highest {interval(peak)} at {place(peak)}; average {means[1]:.2f} in the decoder, {means[0]:.2f} before it"
    )
    raw = [row for row in read.decoder if not after_norm(row)]
    if after_norm(peak) and raw:
        most = max(raw, key=value_of)
        words += f"; highest raw state {interval(most)} at {most.site}"
    return Seen(value_of(peak) >= EXTREME and means[1] > means[0], words)


@dataclass(frozen=True)
class Peaks:
    """The highest layer of each model, first those that are said to be higher."""

    names: tuple[str, ...]
    values: tuple[float, ...]
    higher: int


def higher_peaks(evidence: Evidence, *, higher: Sequence[str], lower: Sequence[str]) -> Peaks | None:
    """The highest layer of every model of one kind is above that of every model of the other kind."""
    peaks = {
        name: max(map(value_of, rows)) for name in (*higher, *lower) if (rows := evidence.layers(name, sites="all"))
    }
    first = [name for name in higher if name in peaks]
    if not first or len(first) == len(peaks):
        return None
    return Peaks(tuple(peaks), tuple(peaks.values()), len(first))


def judge_peaks(read: Peaks) -> Seen:
    holds = min(read.values[: read.higher]) > max(read.values[read.higher :])
    ranked = sorted(zip(read.names, read.values, strict=True), key=lambda item: -item[1])
    return Seen(holds, "highest layer: " + ", ".join(f"{name} {value:.2f}" for name, value in ranked))


def any_order(read: Peaks, generator: np.random.Generator) -> Peaks:
    """Which model is of which kind makes no difference."""
    return replace(read, values=tuple(generator.permutation(read.values).tolist()))


def quantiles(evidence: Evidence) -> tuple[tuple[str, float], ...] | None:
    """The 95 % quantile of the cosine of isotropic pairs, dimension by dimension."""
    rows = evidence.found("cosine_q95")
    return tuple((row.site, value_of(row)) for row in rows) if len(rows) > 1 else None


def judge_narrowing(read: tuple[tuple[str, float], ...]) -> Seen:
    falling = all(later < earlier for (_, earlier), (_, later) in pairwise(read))
    return Seen(falling, "95 % quantile " + ", ".join(f"{value:.3g} ({site})" for site, value in read))


CHECKS = {
    "every_site": Check(every_site, judge_bounded, without_null=A_LEVEL),
    "against_isotropic": Check(against_isotropic, judge_bounded, without_null=A_LEVEL),
    "last_state": Check(last_state, judge_bounded, without_null=A_LEVEL),
    "decoder_extreme": Check(decoder_extreme, judge_decoder, without_null=A_LEVEL),
    "higher_peaks": Check(higher_peaks, judge_peaks, any_order),
    "narrows": Check(quantiles, judge_narrowing, without_null="not a test of chance: a formula"),
}
