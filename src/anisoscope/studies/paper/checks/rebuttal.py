"""Machina & Mercer's statements on the Pythia models: vocabulary matrices and the final norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from anisoscope.studies.paper.checks import A_LEVEL, Check, Seen
from anisoscope.studies.paper.checks.evidence import Evidence, at_last_step, value_of

ISOTROPIC = 0.2  # the published Inter-Sim of the large Pythia models is 0.14; their small ones and GPT-2 are near 1
HIGH, SHARP = 0.5, 0.5  # what "high" is read as, and the share of it that a "sharp drop" takes away
OF_NORM = "final_norm"


def last(evidence: Evidence, metric: str, model: str, site: str) -> float | None:
    """A number of a model at the last step of its training."""
    rows = at_last_step(evidence.rows(metric, model=model, site=site))
    return value_of(rows[0]) if rows else None


@dataclass(frozen=True)
class Levels:
    """A number for each model and matrix, and the bound that each must keep."""

    values: dict[str, float]
    at_least: float | None = None
    below: float | None = None


def vocabulary_level(
    evidence: Evidence,
    *,
    models: Sequence[str],
    metric: str = "partition_one_sided",
    matrices: Sequence[str] = ("output",),
    at_least: float | None = None,
    below: float | None = None,
) -> Levels | None:
    """The vocabulary matrices of the models end at least at, or below, a level."""
    found = {
        f"{model} ({matrix})": value
        for model in evidence.wanted(models)
        for matrix in matrices
        if (value := last(evidence, metric, model, f"vocabulary.{matrix}")) is not None
    }
    return Levels(found, at_least, below) if found else None


def judge_levels(read: Levels) -> Seen:
    good = [
        (read.at_least is None or value >= read.at_least) and (read.below is None or value < read.below)
        for value in read.values.values()
    ]
    bound = f"at least {read.at_least:g}" if read.at_least is not None else f"below {read.below:g}"
    told = ", ".join(f"{name} {value:.3g}" for name, value in read.values.items())
    return Seen(all(good), f"{sum(good)} of {len(good)} {bound}: {told}")


@dataclass(frozen=True)
class Published:
    """Numbers beside the published ones."""

    here: dict[str, float]
    published: dict[str, float]


def as_published(
    evidence: Evidence, *, models: Sequence[str], metric: str, published: dict[str, float]
) -> Published | None:
    """The numbers that the authors' own code prints."""
    for model in evidence.wanted(models):
        here = {site: last(evidence, metric, model, f"vocabulary.{site}") for site in published}
        found = {site: value for site, value in here.items() if value is not None}
        if len(found) == len(published):
            return Published(found, published)
    return None


def judge_published(read: Published) -> Seen:
    told = ", ".join(f"{site} {value:.4f} (published {read.published[site]:.4f})" for site, value in read.here.items())
    return Seen(all(abs(value - read.published[site]) < 0.005 for site, value in read.here.items()), told)


@dataclass(frozen=True)
class Order:
    """Numbers of models of which the first ones are said to be lower than the others, each by several metrics."""

    names: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    lower: int
    metrics: tuple[str, ...]
    no_test: str = ""


def small_bias(evidence: Evidence, *, isotropic: Sequence[str], anisotropic: Sequence[str]) -> Order | None:
    """Models that are isotropic have a smaller ‖b‖, and a smaller ‖b‖/‖g‖, than every model that is not."""
    metrics = ("bias_norm", "bias_over_gain")
    found: dict[str, tuple[float, ...]] = {}
    groups = [evidence.wanted(names) for names in (isotropic, anisotropic)]
    for model in (*groups[0], *groups[1]):
        numbers = [last(evidence, metric, model, OF_NORM) for metric in metrics]
        if None not in numbers:
            found[model] = tuple(x for x in numbers if x is not None)
    if not all(set(group) & found.keys() for group in groups):
        return None
    cosine = {model: last(evidence, "mean_cosine", model, OF_NORM) for model in found}
    wrong = [m for m in found if (value := cosine[m]) is not None and (value < ISOTROPIC) != (m in groups[0])]
    told = ", ".join(f"{model} {cosine[model]:.2f}" for model in wrong)
    note = f"no test: isotropic is a cosine below {ISOTROPIC:g} after the final norm, and here it is {told}"
    lower = sum(model in groups[0] for model in found)
    return Order(tuple(found), tuple(found.values()), lower, metrics, note if wrong else "")


def judge_order(read: Order) -> Seen:
    if read.no_test:
        return Seen(None, read.no_test)
    table = np.array(read.values)
    holds = bool((table[: read.lower].max(0) < table[read.lower :].min(0)).all())
    rows = [f"{name} {', '.join(f'{x:.3g}' for x in row)}" for name, row in zip(read.names, read.values, strict=True)]
    return Seen(holds, f"{', '.join(read.metrics)}: {'; '.join(rows)}")


def any_model(read: Order, generator: np.random.Generator) -> Order:
    """Which model is isotropic has nothing to do with its bias."""
    order = generator.permutation(len(read.values))
    return replace(read, values=tuple(read.values[i] for i in order), no_test="")


@dataclass(frozen=True)
class Drop:
    """By model: the average cosine of the blocks, of the last one, and after the final norm."""

    blocks: dict[str, float]
    before: dict[str, float]
    after: dict[str, float]


def sharp_drop(evidence: Evidence, *, models: Sequence[str], extends: bool = False) -> Drop | None:
    """The cosine between sequences is high through the stack and falls sharply in the last block and the final norm."""
    blocks, before, after = {}, {}, {}
    for model in evidence.wanted(models, extends=extends):
        rows = at_last_step(evidence.rows("mean_cosine_inter", model=model, site="block.*"))
        rows = [row for row in rows if row.site.count(".") == 1]
        normed = last(evidence, "mean_cosine_inter", model, OF_NORM)
        if len(rows) > 1 and normed is not None:
            blocks[model] = float(np.mean([value_of(row) for row in rows[:-1]]))
            before[model], after[model] = value_of(rows[-2]), normed
    return Drop(blocks, before, after) if blocks else None


def judge_drop(read: Drop) -> Seen:
    good = [read.blocks[model] >= HIGH and read.after[model] <= SHARP * read.before[model] for model in read.blocks]
    told = "; ".join(
        f"{model}: {read.blocks[model]:.2f} on average over the blocks, {read.before[model]:.2f} before the last one, "
        f"{read.after[model]:.2f} after the final norm"
        for model in read.blocks
    )
    return Seen(all(good), told)


CHECKS = {
    "vocabulary_level": Check(vocabulary_level, judge_levels, without_null=A_LEVEL),
    "as_published": Check(as_published, judge_published, without_null="not a test of chance: published numbers"),
    "small_bias": Check(small_bias, judge_order, any_model),
    "sharp_drop": Check(sharp_drop, judge_drop, without_null=A_LEVEL),
}
