"""Rules of warning at work: series of numbers along a training, and the alarms that they raise.

    lookout = Lookout(RULES)
    for rows in observations:                 # rows of one step
        for alarm in lookout.see(rows):       # at most one per rule
            print(alarm.message)

    alarms_of(run.rows())                     # the same for a training that was watched: every alarm, in order

A rule (`inference.thresholds.Rule`) names a metric and says when it warns. Each site is a series of its own. An alarm
that stands, of the same rule at the same site, is raised once, until the rule has been quiet for an observation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from anisoscope.inference.thresholds import RULES, Rule
from anisoscope.runs.table import Row


@dataclass(frozen=True)
class Alarm:
    """What a rule saw; `level` is that of the band before it, missing where a bound was crossed."""

    rule: str
    site: str
    step: int
    value: float
    level: float | None
    message: str


class Lookout:
    """The series that the rules read, and the alarms that stand."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self.rules = tuple(rules)
        self._series: dict[tuple[str, str], list[float]] = {}  # by rule and site
        self._standing: set[tuple[str, str]] = set()

    def see(self, rows: Iterable[Row]) -> list[Alarm]:
        """Take in the rows of one step; the alarms that are due now and did not stand before."""
        rows = [row for row in rows if row.head is None and row.positions == "all" and row.step is not None]
        due = [alarm for rule in self.rules if (alarm := self._judge(rule, rows)) is not None]
        new = [alarm for alarm in due if (alarm.rule, alarm.site) not in self._standing]
        self._standing = {(alarm.rule, alarm.site) for alarm in due}
        return new

    def _judge(self, rule: Rule, rows: Sequence[Row]) -> Alarm | None:
        """The first alarm of a rule, in order of sites."""
        mine = [row for row in rows if row.metric == rule.metric]
        found = [self._take(rule, row) for row in (mine[-1:] if rule.where == "last" else mine)]
        return next((alarm for alarm in found if alarm is not None), None)

    def _take(self, rule: Rule, row: Row) -> Alarm | None:
        """Add a number to its series, and judge it."""
        step, value = row.step or 0, row.value
        if value is None:
            return None
        over = rule.bound is not None and (value < rule.bound if rule.falling else value > rule.bound)
        level = None
        if rule.band is not None and step >= rule.band.after:
            series = self._series.setdefault((rule.name, row.site), [])
            series.append(value)
            if not over and rule.band.left(series, falling=rule.falling):
                level = rule.band.level(series)
        if not over and level is None:
            return None
        shown = rule.sentence.format(site=row.site, value=value, level=rule.bound if level is None else level)
        return Alarm(rule.name, row.site, step, value, level, f"{shown} at step {step}")


def alarms_of(rows: Iterable[Row], rules: Sequence[Rule] = RULES) -> list[Alarm]:
    """Every alarm that the rules raise along a training, from the rows of its observations."""
    lookout = Lookout(rules)
    ordered = sorted((row for row in rows if row.step is not None), key=lambda row: row.step or 0)
    return [alarm for _, some in groupby(ordered, key=lambda row: row.step) for alarm in lookout.see(some)]
