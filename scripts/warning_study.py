"""Which rules warn of a failing training, and how long before its loss does.

    python scripts/warning_study.py docs/studies/tables/warning-series.csv docs/studies

Even seeds choose the numbers of every rule, odd seeds are reported. Writes tables/warning-rules.csv (one line per rule
and half), tables/warning-alarms.csv (the first alarm of every rule in every training) and figures/warning.png.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy import stats

from anisoscope.inference.thresholds import RULES, Rule
from anisoscope.runs.table import Row
from anisoscope.watch.rules import alarms_of

WARM = 100  # twice the warm-up: before it, the cosine and the rank of healthy trainings collapse and recover
FAILED = 0.1  # nats of validation loss above the worst healthy training
HEALTHY = "healthy"
Series = list[dict[str, float]]
Training = tuple[str, int]


@dataclass(frozen=True)
class Level:
    """A bound on one number: above it (or below) the rule warns.

    The bound is twice the worst of the healthy trainings (half of it for a falling number), unless it is `fixed`.
    """

    metric: str
    falling: bool = False
    share: bool = False  # a share: the bound is halfway between the worst healthy value and 1
    after: int = 0
    fixed: float | None = None

    def bound(self, healthy: Sequence[Series]) -> float:
        if self.fixed is not None:
            return self.fixed
        values = [line[self.metric] for one in healthy for line in one if line["step"] >= self.after]
        worst = min(values) if self.falling else max(values)
        return (1 + worst) / 2 if self.share else worst / 2 if self.falling else 2 * worst

    def first(self, series: Series, bound: float) -> int | None:
        late = [line for line in series if line["step"] >= self.after and self.metric in line]
        over = [line for line in late if (line[self.metric] < bound) == self.falling and line[self.metric] != bound]
        return int(over[0]["step"]) if over else None


LEVELS = {
    "logit_growth": Level("max_logit"),
    "entropy_collapse": Level("entropy_collapse", share=True),
    "low_entropy": Level("entropy_normalised", falling=True),
    "drift": Level("mean_cosine", share=True, after=WARM),
    "rank_collapse": Level("effective_rank", falling=True, after=WARM),
    "massive_activation": Level("massive_activation_ratio"),
    "kurtosis": Level("kurtosis"),
    "norm_growth": Level("mean_norm"),
    "logit_growth, fixed": Level("max_logit", fixed=100.0),
    "entropy_collapse, fixed": Level("entropy_collapse", fixed=0.5),
}


def rise(series: Series, margin: float) -> int | None:
    """The loss's own alarm: twice in a row above its least value so far by `margin` nats."""
    least, over = np.inf, 0
    for line in series[1:]:
        over = over + 1 if line["training_loss"] > least + margin else 0
        least = min(least, line["training_loss"])
        if over == 2:
            return int(line["step"])
    return None


def behind(series: Series, worst: Mapping[float, float]) -> int | None:
    """The loss beside known good trainings: twice in a row above the worst of them at the same step."""
    over = 0
    for line in series[1:]:
        over = over + 1 if line["training_loss"] > worst[line["step"]] else 0
        if over == 2:
            return int(line["step"])
    return None


def detectors(healthy: Sequence[Series]) -> dict[str, tuple[str, Callable[[Series], int | None]]]:
    """Every rule with its numbers, chosen on these healthy trainings: a word on them, and the first alarm."""
    margin = next(m / 100 for m in range(5, 500, 5) if not any(rise(one, m / 100) for one in healthy))
    steps = [line["step"] for line in healthy[0]][1:]
    worst = {s: max(line["training_loss"] for one in healthy for line in one if line["step"] == s) + 0.1 for s in steps}
    found: dict[str, tuple[str, Callable[[Series], int | None]]] = {
        "loss rises": (f"+{margin:.2f} nats", lambda one: rise(one, margin)),
        "loss behind": ("+0.10 nats", lambda one: behind(one, worst)),
    }
    for name, level in LEVELS.items():
        bound = level.bound(healthy)
        when = f" from step {level.after}" if level.after else ""
        words = f"{'below' if level.falling else 'above'} {bound:.3g}{when}"
        found[name] = (words, lambda one, level=level, bound=bound: level.first(one, bound))
    for rule in RULES:
        if rule.band is not None:
            own = replace(rule, bound=None, band=replace(rule.band, after=WARM))
            found[f"{rule.name} band"] = (f"band from step {WARM}", lambda one, own=own: banded(one, own))
    return found


def banded(series: Series, rule: Rule) -> int | None:
    rows = [Row(step=int(x["step"]), site="block", metric=rule.metric, value=x.get(rule.metric)) for x in series]
    return next((alarm.step for alarm in alarms_of(rows, [rule])), None)


def read(path: Path) -> dict[Training, Series]:
    found: dict[Training, Series] = {}
    for line in csv.DictReader(path.open()):
        arm, seed = line.pop("arm"), int(line.pop("seed"))
        found.setdefault((arm, seed), []).append({name: float(value) for name, value in line.items() if value})
    return found


def lead_of(pairs: Sequence[int]) -> tuple[float, float, float] | None:
    """The median lead, with its bootstrap interval."""
    if not pairs:
        return None
    draws = np.random.default_rng(0).choice(pairs, (4000, len(pairs)))
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    return statistics.median(pairs), float(low), float(high)


def judge(alarms: Mapping[Training, Mapping[str, int | None]], rule: str, failing: set[Training]) -> dict[str, object]:
    """False alarms, detections and leads of one rule over some trainings."""
    healthy = [one for one in alarms if one[0] == HEALTHY]
    bad = [one for one in alarms if one in failing]
    false, hits = (sum(alarms[one][rule] is not None for one in some) for some in (healthy, bad))
    line: dict[str, object] = {"healthy": len(healthy), "false_alarms": false, "failing": len(bad), "detected": hits}
    for name, count, of in (("false", false, healthy), ("detected", hits, bad)):
        rate = stats.binomtest(count, len(of)).proportion_ci(method="wilson")
        line |= {f"{name}_low": round(rate.low, 3), f"{name}_high": round(rate.high, 3)}
    for other in ("loss rises", "loss behind"):
        pairs = [(alarms[one][rule], alarms[one][other]) for one in bad]
        leads = [theirs - mine for mine, theirs in pairs if mine is not None and theirs is not None]
        found = lead_of(leads)
        name = other.replace(" ", "_")
        ends = ("", "_low", "_high")
        line |= {f"lead_{name}{end}": "" if found is None else found[place] for place, end in enumerate(ends)}
        line |= {f"pairs_{name}": len(leads), f"earlier_{name}": sum(lead > 0 for lead in leads)}
        line[f"only_{name}"] = sum(mine is not None and theirs is None for mine, theirs in pairs)
    return line


def write(path: Path, lines: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def main(table: Path, docs: Path) -> None:
    trainings = read(table)
    chosen = {one: series for one, series in trainings.items() if one[1] % 2 == 0}
    good = [series for (arm, _), series in chosen.items() if arm == HEALTHY]
    limit = max(series[-1]["validation_loss"] for series in good) + FAILED
    failing = {one for one, s in trainings.items() if one[0] != HEALTHY and s[-1]["validation_loss"] > limit}
    rules = detectors(good)
    alarms = {one: {name: first(series) for name, (_, first) in rules.items()} for one, series in trainings.items()}
    lines = []
    for name, (words, _) in rules.items():
        for half, kept in (("chosen on", 0), ("reported", 1)):
            mine = {one: found for one, found in alarms.items() if one[1] % 2 == kept}
            lines.append({"rule": name, "numbers": words, "half": half, **judge(mine, name, failing)})
    write(docs / "tables" / "warning-rules.csv", lines)
    ordered = sorted(alarms)
    last = {one: trainings[one][-1]["validation_loss"] for one in ordered}
    write(
        docs / "tables" / "warning-alarms.csv",
        [{"arm": a, "seed": s, "final": last[a, s], "fails": (a, s) in failing} | alarms[a, s] for a, s in ordered],
    )
    from warning_figure import draw

    draw(trainings, alarms, failing, docs / "figures" / "warning.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
