"""The untrained block under a drift (section 4). Draws of weights are what is repeated; lines are read draw by draw.

All of these look at one experiment, named by its label (`bert` is the paper's: vectors straight from the embedding
table). The runner carries each out under every label that the runs hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from anisoscope.geometry.nulls.isotropic import cosine_quantile
from anisoscope.inference.jackknife import t_quantile
from anisoscope.studies.paper.checks import A_LEVEL, Check, Seen
from anisoscope.studies.paper.checks.evidence import Evidence, short_name, value_of
from anisoscope.studies.paper.checks.trends import Lines, exchangeable_steps, judge_lines, lines_of

if TYPE_CHECKING:
    from anisoscope.runs.table import Row

SLIGHTLY = 0.1  # what "slightly higher" is read as
ORDER_OF_MAGNITUDE = math.sqrt(10)
Array = np.ndarray


def experiment(evidence: Evidence, label: str, metric: str, *, site: Sequence[str] = (), draws: bool) -> list[Row]:
    """Rows of one experiment: of single draws, or the averages over draws."""
    rows = evidence.found(metric, model=label)
    return [row for row in rows if (not site or row.site in site) and (row.seed is not None) == draws]


def along_drift(
    evidence: Evidence,
    *,
    label: str,
    metric: str,
    site: Sequence[str] = (),
    down: bool = False,
    absolute: bool = False,
    need: Literal["all", "most"] = "most",
) -> Lines | None:
    """A quantity moves the way that is said as the drift grows, in most draws."""
    rows = experiment(evidence, label, metric, site=site, draws=True)
    return lines_of(rows, "at", down=down, absolute=absolute, need=need)


def output_above_input(evidence: Evidence, *, label: str) -> Array | None:
    """The output's average cosine is slightly above the input's at every drift norm."""
    found = {
        (row.site, row.seed, row.at): value_of(row)
        for row in experiment(evidence, label, "mean_cosine", site=("input", "output"), draws=True)
    }
    seeds = sorted({seed for _, seed, _ in found if seed is not None})
    norms = sorted({at for _, _, at in found if at is not None})
    if len(seeds) < 2 or not norms:
        return None
    return np.array([[found["output", s, at] - found["input", s, at] for at in norms] for s in seeds])


def judge_gaps(read: Array) -> Seen:
    """At every drift norm the lower end of the 95 % interval over draws is above 0, and the average gap is small."""
    draws = len(read)
    means = read.mean(0)
    half = t_quantile(draws - 1) * read.std(0, ddof=1) / math.sqrt(draws)
    above = means - half > 0
    words = f"above at {int(above.sum())} of {len(above)} drift norms with its interval over {draws} draws, "
    words += f"by {means.min():.2g} to {means.max():.2g}"
    return Seen(bool(above.all() and means.max() < SLIGHTLY), words)


def either_way(read: Array, generator: np.random.Generator) -> Array:
    """Input and output of a draw could be exchanged."""
    return read * generator.choice([-1.0, 1.0], size=(len(read), 1))


@dataclass(frozen=True)
class Crossing:
    """The fixed point of the norms, and where a fresh LayerNorm alone would put it."""

    found: Row
    of_layernorm: float | None


def crosses(evidence: Evidence, *, label: str) -> Crossing | None:
    """The norms of input and output meet at some N* > 0."""
    rows = [row for _, run in evidence.runs for row in run.rows(metric="fixed_point", model=label) if row.seed is None]
    predicted = experiment(evidence, label, "fixed_point_of_layernorm", draws=False)
    return Crossing(rows[0], value_of(predicted[0]) if predicted else None) if rows else None


def judge_crossing(read: Crossing) -> Seen:
    row = read.found
    if row.value is None:
        return Seen(False, row.note)
    if row.value <= 0:
        return Seen(False, "the norms meet at N* = 0 only: no drift is needed")
    words = f"N* = {row.value:.4g}"
    if row.low is not None and row.high is not None:
        words += f" ({row.low:.4g} … {row.high:.4g})"
    if read.of_layernorm is not None and abs(row.value / read.of_layernorm - 1) < 0.01:
        words += f", which is √(d − E‖x‖²) = {read.of_layernorm:.4g}: the last LayerNorm fixes the output's norm"
    return Seen(True, words)


@dataclass(frozen=True)
class Scales:
    """Mean norms of trained layers over √d, beside N*/√d of the untrained block."""

    names: tuple[str, ...]
    ratios: tuple[float, ...]


def norms_near_fixed_point(
    evidence: Evidence, *, label: str, models: Sequence[str], extends: bool = False
) -> Scales | None:
    """The mean norms of a trained model's layers are of the order of N*; widths are divided out."""
    fixed = [row for row in experiment(evidence, label, "fixed_point", draws=False) if value_of(row) > 0]
    width = experiment(evidence, label, "width", draws=False)
    names, ratios = [], []
    for model in evidence.wanted(models, extends=extends) if fixed and width else ():
        d = {row.site: value_of(row) for row in evidence.rows("dimension", model=model)}
        unit = value_of(fixed[0]) / math.sqrt(value_of(width[0]))
        for row in evidence.rows("mean_norm", model=model, site="*block.*"):
            if row.site in d:
                names.append(f"{row.site} of {short_name(row.model)}")
                ratios.append(value_of(row) / math.sqrt(d[row.site]) / unit)
    return Scales(tuple(names), tuple(ratios)) if names else None


def judge_scales(read: Scales) -> Seen:
    ratios = np.array(read.ratios)
    near = (ratios > 1 / ORDER_OF_MAGNITUDE) & (ratios < ORDER_OF_MAGNITUDE)
    low, high = int(ratios.argmin()), int(ratios.argmax())
    words = f"{int(near.sum())} of {len(near)} layers within a factor of √10 of N* (widths divided out): "
    words += f"{ratios[low]:.2g} at {read.names[low]} … {ratios[high]:.2g} at {read.names[high]}"
    return Seen(bool(near.all()), words)


@dataclass(frozen=True)
class AtStart:
    """Cosines without drift, and what 95 % of isotropic pairs stay below."""

    cosines: dict[str, float]
    bound: float


def anisotropic_at_start(evidence: Evidence, *, label: str, site: Sequence[str]) -> AtStart | None:
    """Without any drift the average cosine is above that of 95 % of isotropic pairs."""
    rows = [row for row in experiment(evidence, label, "mean_cosine", site=site, draws=False) if row.at == 0]
    width = experiment(evidence, label, "width", draws=False)
    if len(rows) < len(site) or not width:
        return None
    return AtStart({row.site: value_of(row) for row in rows}, float(cosine_quantile(0.95, int(value_of(width[0])))))


def judge_start(read: AtStart) -> Seen:
    words = ", ".join(f"{site} {value:.3g}" for site, value in read.cosines.items())
    holds = all(value >= read.bound for value in read.cosines.values())
    return Seen(holds, f"at N = 0: {words}; 95 % of isotropic pairs are below {read.bound:.3g}")


@dataclass(frozen=True)
class Growth:
    """By draw (draws, 2), the factor from no drift to the greatest by which the largest probability grows and the
    smallest falls: of the extremes of a row, and of those of a sequence."""

    row: Array
    sequence: Array


def clearer_over_sequences(evidence: Evidence, *, label: str) -> Growth | None:
    """The largest probability of a sequence grows, and the smallest falls, by a greater factor than that of a row."""
    factors = [
        [_factors(evidence, label, f"{of}{extreme}_probability", sign) for extreme, sign in (("max", 1), ("min", -1))]
        for of in ("", "sequence_")
    ]
    lengths = {len(found) for both in factors for found in both}
    return Growth(*(np.stack(both, axis=1) for both in factors)) if len(lengths) == 1 and lengths != {0} else None


def _factors(evidence: Evidence, label: str, metric: str, sign: int) -> Array:
    """The last over the first value along the drift, draw by draw, or (sign −1) the first over the last."""
    by_draw: dict[int | None, list[Row]] = {}
    for row in sorted(experiment(evidence, label, metric, site=("softmax",), draws=True), key=lambda row: row.at or 0):
        by_draw.setdefault(row.seed, []).append(row)
    return np.array([(value_of(line[-1]) / value_of(line[0])) ** sign for line in by_draw.values()])


def judge_growth(read: Growth) -> Seen:
    good = np.asarray(((read.sequence > read.row) & (read.sequence > 1)).all(1))
    (row_most, row_least), (most, least) = read.row.mean(0), read.sequence.mean(0)
    words = (
        f"in {int(good.sum())} of {len(good)} draws; on average the largest of a row ×{row_most:.3g}, of a sequence "
    )
    words += f"×{most:.3g}; the smallest of a row ÷{row_least:.3g}, of a sequence ÷{least:.3g}"
    return Seen(bool(good.mean() >= 0.75), words)


def either_factor(read: Growth, generator: np.random.Generator) -> Growth:
    """Within a draw the factors of row and sequence could be exchanged, of either extreme."""
    swap = generator.random(read.row.shape) < 0.5
    return replace(read, row=np.where(swap, read.sequence, read.row), sequence=np.where(swap, read.row, read.sequence))


_BY_CONSTRUCTION = (
    "not a test of chance: a block that ends in a LayerNorm gives vectors of norm √d, so the norms must meet"
)
CHECKS = {
    "along_drift": Check(along_drift, judge_lines, exchangeable_steps),
    "output_above_input": Check(output_above_input, judge_gaps, either_way),
    "crosses": Check(crosses, judge_crossing, without_null=_BY_CONSTRUCTION),
    "norms_near_fixed_point": Check(norms_near_fixed_point, judge_scales, without_null=A_LEVEL),
    "anisotropic_at_start": Check(anisotropic_at_start, judge_start, without_null=A_LEVEL),
    "clearer_over_sequences": Check(clearer_over_sequences, judge_growth, either_factor),
}
