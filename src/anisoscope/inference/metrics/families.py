"""Families of metrics whose names are systematic: quantiles, and what changed of any declared metric.

| name | is |
|---|---|
| `cosine_q97.5` | a quantile of the cosine of single pairs |
| `floor_q75` | a quantile of the cosine of unrelated pairs |
| `X_change` | X under an intervention minus X of the untouched model |
| `X_difference` | X of an arm of a study minus X of its control |
| `X_before`, `X_after` | X on both sides of what is studied: two runs, the input and the output of a norm |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from anisoscope.inference.metrics.clouds import pair_quantile
from anisoscope.inference.metrics.declaration import Metric, constant

_SIDES = {
    "before": "before the change that is studied (in the first run, or entering a norm)",
    "after": "after the change that is studied (in the second run)",
}
_CHANGES = {
    "change": "under the intervention minus that of the untouched model",
    "difference": "in this arm minus that of the control",
}


def member(name: str, metrics: Mapping[str, Metric]) -> Metric | None:
    """The declaration of a member of a family, or None."""
    quantile = re.fullmatch(r"(cosine|floor)_q(\d+(?:\.\d+)?)", name)
    if quantile:
        return _quantile(name, quantile[1], float(quantile[2]) / 100)
    base, _, end = name.rpartition("_")
    of = metrics.get(base)
    if of is None:
        return None
    if end in _SIDES:
        return replace(of, name=name, label=f"{of.label}, {end}", meaning=f"{_sentence(of)}: {_SIDES[end]}.")
    return _moved(of, name, end) if end in _CHANGES else None


def _quantile(name: str, kind: str, level: float) -> Metric | None:
    if not 0 < level < 1:
        return None
    found = pair_quantile(level, name)
    if kind == "cosine":
        return found
    meaning = f"Cosine that {100 * level:g} % of unrelated pairs stay below."
    return replace(found, label=f"{100 * level:g} % quantile of the floor", meaning=meaning, group="similarity")


def _moved(of: Metric, name: str, end: str) -> Metric:
    """A difference of two values of a metric: its null is 0, and it reaches as far as the range of the metric."""
    reach = None if of.low is None or of.high is None else of.high - of.low
    meaning = f"{_sentence(of)}: its value {_CHANGES[end]}."
    low = None if reach is None else -reach
    return Metric(name, f"{of.label}, {end}", meaning, of.group, low, reach, of.unit, null=constant(0.0))


def _sentence(of: Metric) -> str:
    return of.meaning.removesuffix(".")
