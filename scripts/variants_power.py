"""How many seeds a difference between arms needs, from the spread of the differences that are known.

    python scripts/variants_power.py docs/studies/tables/variants-pilot.csv docs/studies/tables/variants-power.csv

For each arm and metric of a table of seeds: the standard deviation of its difference to the control over seeds, the
true difference that a paired test over 3, 5, 10 and 20 seeds finds with a power of 80 %, and the bound within which
such a test would claim equivalence, on average, if there were none. The spread of three seeds is itself uncertain: its
95 % interval reaches from half to six times the estimate.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from pathlib import Path

CONTROL = "softmax"
METRICS = (("", "validation_loss"), ("blocks", "mean_cosine"), ("blocks", "entropy_normalised"))
SEEDS = (3, 5, 10, 20)


def spreads(path: Path) -> dict[tuple[str, str], float]:
    """The standard deviation over seeds of each arm minus the control."""
    values: dict[tuple[str, str], dict[str, float]] = {}
    for row in csv.DictReader(path.open()):
        if row["seed"] and (row["site"], row["metric"]) in METRICS:
            values.setdefault((row["model"], row["metric"]), {})[row["seed"]] = float(row["value"])
    return {
        (arm, metric): statistics.stdev(value - values[CONTROL, metric][seed] for seed, value in mine.items())
        for (arm, metric), mine in values.items()
        if arm != CONTROL
    }


def detectable(sd: float, n: int, *, power: float = 0.8) -> float:
    """The true difference that a paired t-test over `n` draws of standard deviation `sd` finds with this power."""
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    edge = float(t.ppf(0.975, n - 1))
    missed = lambda shift: float(nct.cdf(edge, n - 1, shift)) - (1 - power)  # noqa: E731  (the far side adds nothing)
    return sd / math.sqrt(n) * float(brentq(missed, 0.0, 2 * edge + 2))


def main(pilot: Path, table: Path) -> None:
    from scipy.stats import t

    with table.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["arm", "metric", "sd", *(f"{word}_{n}" for n in SEEDS for word in ("detectable", "bound"))])
        for (arm, metric), sd in spreads(pilot).items():
            ends = [(detectable(sd, n), float(t.ppf(0.95, n - 1)) * sd / math.sqrt(n)) for n in SEEDS]
            writer.writerow([arm, metric, f"{sd:.4f}", *(f"{x:.4f}" for pair in ends for x in pair)])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
