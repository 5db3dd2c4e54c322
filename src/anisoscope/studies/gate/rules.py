"""The rules of a gate: limits for a metric, or for its change, and what an interval says about them.

    [[rule]]
    metric = "mean_cosine"
    site = "embedding"          # a pattern; every site without it
    move = 0.02                 # the second may differ from the first by at most this much

    [[rule]]
    metric = "neighbour_overlap"
    at_least = 0.95             # of the second, or of the two together

A rule is two one-sided tests, decided by the 95 % interval: it **holds** where the whole interval lies within the
limits (each test at 2.5 %), **fails** where the whole interval lies beyond one, and in between, or without an interval,
there is too little data to say. Not having seen a change does not show that it is small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from anisoscope.errors import UsageError
from anisoscope.inference.metrics import METRICS, lookup
from anisoscope.inputs.files import read_toml
from anisoscope.runs.settings import nearest
from anisoscope.runs.story import number
from anisoscope.runs.table import Row

HOLDS, FAILS, CANNOT_SAY = "holds", "fails", "cannot say"
OUTCOMES = (HOLDS, FAILS, CANNOT_SAY)  # in the order of their exit codes
Verdict = Mapping[str, Any]
_FIELDS = ("metric", "site", "move", "at_least", "at_most")


@dataclass(frozen=True)
class Rule:
    """Limits of a metric at the sites that a pattern names: of its change (`move`), or of its value."""

    metric: str
    site: str = "*"
    move: float | None = None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def limits(self) -> tuple[float, float]:
        if self.move is not None:
            return -self.move, self.move
        return (
            float("-inf") if self.at_least is None else self.at_least,
            float("inf") if self.at_most is None else self.at_most,
        )

    @property
    def words(self) -> str:
        """`average cosine: moves by at most 0.02`."""
        said = {"moves by at most": self.move, "at least": self.at_least, "at most": self.at_most}
        ends = " and ".join(f"{words} {number(value)}" for words, value in said.items() if value is not None)
        return f"{lookup(self.metric).label}: {ends}"

    @property
    def judged(self) -> tuple[str, ...]:
        """The metrics of a comparison that the rule is about: the first that is present."""
        return (self.metric,) if self.move is not None else (f"{self.metric}_after", self.metric)


DEFAULT = (
    Rule("mean_cosine", move=0.02),
    Rule("neighbour_overlap", at_least=0.95),
    Rule("partner_cosine", at_least=0.99),
)


def read_rules(path: str | Path | None) -> tuple[Rule, ...]:
    """The rules of a TOML file, or those that hold without one: the same cosine, neighbours and directions."""
    if path is None:
        return DEFAULT
    written = read_toml(path)
    listed = written.get("rule")
    if not isinstance(listed, list) or not listed or set(written) - {"rule"}:
        raise UsageError(
            "a gate is a list of rules", where=path, got=", ".join(written) or "nothing", expected="[[rule]]"
        )
    return tuple(_rule(one, path) for one in listed)


def _rule(written: Any, path: str | Path) -> Rule:
    if not isinstance(written, Mapping):
        raise UsageError("a rule is a table", where=path, got=repr(written)[:80], expected="[[rule]]")
    for name in written:
        if name not in _FIELDS:
            do = nearest(name, _FIELDS)[2:] or None
            raise UsageError("a rule has no such field", where=path, got=name, expected=", ".join(_FIELDS), do=do)
    metric, site = written.get("metric"), written.get("site", "*")
    limits = {name: written[name] for name in ("move", "at_least", "at_most") if name in written}
    if metric not in METRICS:
        raise UsageError("a rule names a metric", where=path, got=metric, do=nearest(str(metric), METRICS)[2:] or None)
    if not isinstance(site, str) or not all(_is_number(value) for value in limits.values()):
        raise UsageError("a rule has a site and numbers", where=path, got=dict(written))
    if not limits or ("move" in limits and (len(limits) > 1 or limits["move"] < 0)):
        expected = "move ≥ 0, or at_least, at_most, or both of these"
        raise UsageError("a rule sets a limit", where=path, got=f"{metric}: {limits or 'none'}", expected=expected)
    return Rule(str(metric), site, **limits)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def outcome(low: float | None, high: float | None, limits: tuple[float, float]) -> str:
    """What an interval says about limits.

    >>> outcome(-0.01, 0.01, (-0.02, 0.02)), outcome(0.03, 0.04, (-0.02, 0.02)), outcome(0.01, 0.03, (-0.02, 0.02))
    ('holds', 'fails', 'cannot say')
    """
    if low is None or high is None:
        return CANNOT_SAY
    if limits[0] <= low and high <= limits[1]:
        return HOLDS
    return FAILS if high < limits[0] or low > limits[1] else CANNOT_SAY


def judge(rules: Sequence[Rule], rows: Sequence[Row]) -> tuple[list[Row], list[Verdict]]:
    """For each rule and site of a comparison its row, both values beside a change, and the verdict on it."""
    found: list[Row] = []
    verdicts: list[Verdict] = []
    for rule in rules:
        name = next((name for name in rule.judged if any(row.metric == name for row in rows)), rule.metric)
        here = [row for row in rows if row.metric == name and fnmatchcase(row.site, rule.site)]
        for row in here or [Row(site=rule.site, note="not measured")]:
            verdicts.append(_verdict(rule, row))
            found.append(replace(row, metric=f"{name}_difference" if rule.move is not None else name))
            sides = {f"{rule.metric}_{side}" for side in ("before", "after")} if rule.move is not None else set()
            found += [one for one in rows if one.metric in sides and (one.model, one.site) == (row.model, row.site)]
    return found, verdicts


def _verdict(rule: Rule, row: Row) -> Verdict:
    """What a rule says of a row, as plain values; a limit that the rule does not set is missing."""
    limits = [limit if abs(limit) < float("inf") else None for limit in rule.limits]
    judged = {"metric": rule.metric, "rule": rule.words, "limits": limits}
    seen = {name: getattr(row, name) for name in ("model", "site", "value", "low", "high")}
    return {**seen, **judged, "outcome": outcome(row.low, row.high, rule.limits)}


def overall(verdicts: Sequence[Verdict]) -> str:
    """Fails if one rule does, else cannot say if one cannot, else holds."""
    seen = {one["outcome"] for one in verdicts}
    return next((word for word in (FAILS, CANNOT_SAY) if word in seen), HOLDS if seen else CANNOT_SAY)
