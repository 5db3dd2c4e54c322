"""Does drift go with anisotropy? Figures 5 and 16, by the groups and the signs that the paper names.

"Correlated" means a positive correlation of the average cosine with ‖x̄‖ over the layers, at p < 0.05: a significant
negative one does not support it. "Not correlated" means p ≥ 0.05, as for the points above the line of figure 5: a
significant negative correlation is a correlation. A permutation test over n layers cannot give less than 2/n!, which is
0.083 for four layers: such a model cannot be significant, and is left out, as the words say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from anisoscope.inference.correlation import correlate
from anisoscope.studies.paper.checks import Check, Seen
from anisoscope.studies.paper.checks.evidence import Evidence, value_of

SIGNIFICANT = 0.05
Array = np.ndarray


@dataclass(frozen=True)
class Layers:
    """Average cosine and ‖x̄‖ of a model, layer by layer."""

    model: str
    cosine: tuple[float, ...]
    drift: tuple[float, ...]

    @property
    def floor(self) -> float:
        """The smallest p-value that a permutation test over this many layers can give."""
        return 2 / math.factorial(len(self.cosine))


@dataclass(frozen=True)
class Tests:
    """The models of a claim, what is claimed, and which p-value counts."""

    layers: tuple[Layers, ...]
    correlated: bool
    need: Literal["all", "most"]
    method: str
    p_values: str


def _layers(evidence: Evidence, model: str) -> Layers | None:
    drift = {row.site: value_of(row) for row in evidence.rows("drift_norm", model=model)}
    pairs = [(value_of(row), drift[row.site]) for row in evidence.layers(model) if row.site in drift]
    return Layers(model, *map(tuple, zip(*pairs, strict=True))) if len(pairs) >= 3 else None


def drift_correlation(
    evidence: Evidence,
    *,
    correlated: bool,
    need: Literal["all", "most"] = "all",
    models: Sequence[str] | None = None,
    group: str | None = None,
    but: Sequence[str] = (),
    method: str = "spearman",
    extends: bool = False,
) -> Tests | None:
    """All, or most, of the models have a positive correlation with drift at p < 0.05; or no correlation at all."""
    chosen = [model for model in evidence.wanted(models, group=group, extends=extends) if model not in but]
    found = tuple(layers for model in chosen if (layers := _layers(evidence, model)) is not None)
    return Tests(found, correlated, need, method, evidence.p_values) if found else None


def _test(layers: Layers, method: str, p_values: str) -> tuple[float, float] | None:
    """Correlation and p-value; None where they are undefined. `quick`: by a table that all draws of a null share."""
    if p_values == "quick":
        return _quick_test(layers, method)
    test = correlate(layers.cosine, layers.drift, method=method)
    p = test.p_asymptotic if p_values == "asymptotic" else test.p
    return None if test.value is None or p is None else (test.value, p)


def _quick_test(layers: Layers, method: str) -> tuple[float, float]:
    """The permutation test again, without new permutations: reordering the layers does not change their table."""
    x, y = (_centred(values, method) for values in (layers.cosine, layers.drift))
    table = _table(layers.cosine, tuple(sorted(layers.drift)), method)
    as_extreme = len(table) - int(np.searchsorted(table, abs(x @ y) * (1 - 1e-12)))
    return float(x @ y / np.sqrt((x @ x) * (y @ y))), (1 + as_extreme) / (1 + len(table))


@lru_cache(maxsize=256)
def _centred(values: tuple[float, ...], method: str) -> Array:
    from scipy.stats import rankdata

    x = np.asarray(rankdata(values) if method == "spearman" else values, float)
    return x - x.mean()


@lru_cache(maxsize=256)
def _table(cosine: tuple[float, ...], drift: tuple[float, ...], method: str) -> Array:
    x, y = _centred(cosine, method), _centred(drift, method)
    orders = np.argsort(np.random.default_rng(1).random((4000, len(x))), axis=1)
    return np.sort(np.abs(y[orders] @ x))


def judge_correlation(read: Tests) -> Seen:
    told, words = [], []
    for layers in read.layers:
        test = _test(layers, read.method, read.p_values)
        if test is None:
            continue
        name = f"{layers.model} {test[0]:+.2f} (p {test[1]:.2g}, {len(layers.cosine)} layers)"
        if read.p_values != "asymptotic" and layers.floor >= SIGNIFICANT:
            words.append(f"{name}: p cannot fall below {layers.floor:.2g}, left out")
            continue
        significant = test[1] < SIGNIFICANT
        told.append(significant and test[0] > 0 if read.correlated else not significant)
        words.append(name)
    if not told:
        return Seen(None, "; ".join(words) or "no correlation is defined")
    good = sum(told)
    holds = good == len(told) if read.need == "all" else 2 * good > len(told)
    what = "correlated with drift" if read.correlated else "not correlated with drift"
    return Seen(holds, f"{good} of {len(told)} {what}: {'; '.join(words)}")


def unrelated(read: Tests | Both, generator: np.random.Generator) -> Tests | Both:
    """Cosine and drift have nothing to do with each other: the layers of one are dealt out anew."""
    shuffled = [replace(one, drift=tuple(generator.permutation(one.drift).tolist())) for one in read.layers]
    return replace(read, layers=tuple(shuffled), p_values="asymptotic" if read.p_values == "asymptotic" else "quick")


@dataclass(frozen=True)
class Both:
    """Models for which two tests are compared."""

    layers: tuple[Layers, ...]
    p_values: str


def tests_disagree(evidence: Evidence, *, models: Sequence[str]) -> Both | None:
    """Spearman and Pearson fall on different sides of 0.05."""
    found = tuple(layers for model in evidence.wanted(models) if (layers := _layers(evidence, model)) is not None)
    return Both(found, evidence.p_values) if found else None


def judge_disagreement(read: Both) -> Seen:
    words, apart = [], []
    for layers in read.layers:
        tests = {method: _test(layers, method, read.p_values) for method in ("spearman", "pearson")}
        if all(tests.values()):
            p = {method: test[1] for method, test in tests.items() if test is not None}
            apart.append((p["spearman"] < SIGNIFICANT) != (p["pearson"] < SIGNIFICANT))
            words.append(f"{layers.model}: Spearman p {p['spearman']:.2g}, Pearson p {p['pearson']:.2g}")
    return Seen(all(apart) if apart else None, "; ".join(words) or "no correlation is defined")


CHECKS = {
    "drift_correlation": Check(drift_correlation, judge_correlation, unrelated),
    "tests_disagree": Check(tests_disagree, judge_disagreement, unrelated),
}
