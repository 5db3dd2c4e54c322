"""What the greatest attention logit is made of when it grows, and what holds it down.

    anisoscope sweep embedded --limit 8 --csv embedded.csv
    python scripts/max_logit_study.py embedded.csv docs/studies

Reads tables/warning-series.csv and tables/max-logit-series.csv (`watch_trainings.py`) beside the sweep. Writes
tables/max-logit.csv, one line per group of trainings and step, and figures/max-logit.png. Shares are of the greatest
logit of the training at that step: its parts add up to it, so a negative part makes the others exceed 1.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path

PARTS = ("means", "query", "salience", "content")
STEPS = (0, 50, 100, 200, 300)
Line = dict[str, float]


def parts_of(line: dict[str, str]) -> Line:
    found = {name: float(line[f"max_logit_{name}"]) for name in PARTS}
    loss = {"validation_loss": float(line["validation_loss"])} if line.get("validation_loss") else {}
    return {"max_logit": float(line["max_logit"]), **found, **loss}


def read_series(path: Path) -> dict[tuple[str, int], list[Line]]:
    """The trainings of each arm at each step."""
    found: dict[tuple[str, int], list[Line]] = {}
    for line in csv.DictReader(path.open()):
        if line["max_logit"]:
            found.setdefault((line["arm"], int(line["step"])), []).append(parts_of(line))
    return found


def read_sweep(path: Path) -> dict[tuple[str, int], list[Line]]:
    """The layer with the greatest logit, at each step and seed of a sweep."""
    layers: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in csv.DictReader(path.open()):
        if row["metric"].startswith("max_logit") and not row["head"]:
            layers.setdefault((row["step"], row["seed"], row["site"]), {})[row["metric"]] = row["value"]
    tops: dict[tuple[str, str], dict[str, str]] = {}
    for (step, seed, _), line in layers.items():
        if float(line["max_logit"]) > float(tops.get((step, seed), {}).get("max_logit", "-inf")):
            tops[step, seed] = line
    found: dict[tuple[str, int], list[Line]] = {}
    for (step, _), line in tops.items():
        found.setdefault(("embedded series", int(float(step))), []).append(parts_of(line))
    return found


def summary(arm: str, step: int, lines: list[Line]) -> dict[str, object]:
    """Medians over the trainings, and the range of the invisible share."""
    shares = [(one["means"] + one["query"]) / one["max_logit"] for one in lines]
    table: dict[str, object] = {"arm": arm, "step": step, "trainings": len(lines)}
    table["max_logit"] = f"{statistics.median(one['max_logit'] for one in lines):.4g}"
    table |= {"invisible": f"{statistics.median(shares):.3f}"}
    table |= {"invisible_low": f"{min(shares):.3f}", "invisible_high": f"{max(shares):.3f}"}
    for name in ("salience", "content"):
        table[name] = f"{statistics.median(one[name] / one['max_logit'] for one in lines):.3f}"
    losses = [one["validation_loss"] for one in lines if "validation_loss" in one]
    ends = (statistics.median(losses), min(losses), max(losses)) if losses else ("", "", "")
    names = ("validation_loss", "validation_low", "validation_high")
    return table | {n: f"{x:.4g}" if isinstance(x, float) else x for n, x in zip(names, ends, strict=True)}


def main(sweep: Path, docs: Path) -> None:
    tables = docs / "tables"
    known = {**read_series(tables / "warning-series.csv"), **read_series(tables / "max-logit-series.csv")}
    series = {**known, **read_sweep(sweep)}
    lines = [summary(arm, step, found) for (arm, step), found in sorted(series.items())]
    kept = [line for line in lines if line["arm"] == "embedded series" or line["step"] in STEPS]
    with (tables / "max-logit.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, kept[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
    draw(lines, docs / "figures" / "max-logit.png")


GROUPS = (("healthy", "lr_10", "lr_30", "ramp_unclipped", "embedded series"), "lr_30", "ramp")


def draw(lines: list[dict[str, object]], path: Path) -> None:
    from anisoscope.report.figures.style import WIDE, colour, style, subplots

    with style():
        figure, grid = subplots(1, 3, size=(WIDE, 2.7))
        panels = (
            ("Unseen by softmax, share", "invisible", GROUPS[0]),
            ("Greatest logit, lr ×30", "max_logit", _arms(lines, "lr_30")),
            ("Validation loss, rising lr", "validation_loss", _arms(lines, "ramp")),
        )
        for axes, (title, column, arms) in zip(grid, panels, strict=True):
            for place, arm in enumerate(arms):
                mine = sorted(
                    (line for line in lines if line["arm"] == arm and line[column]), key=lambda x: float(str(x["step"]))
                )
                last = max(float(str(line["step"])) for line in mine)
                x, y = ([float(str(line[name])) for line in mine] for name in ("step", column))
                axes.plot([s / last for s in x], y, color=colour(place), linewidth=1, label=arm.replace("_", " "))
            axes.set(title=title, xlabel="share of the training")
            if column != "invisible":
                axes.set_yscale("log")
            axes.legend(fontsize=5)
        grid[0].set_ylim(-1, 1)
        figure.savefig(path, dpi=160)


def _arms(lines: list[dict[str, object]], start: str) -> list[str]:
    names = dict.fromkeys(str(line["arm"]) for line in lines)
    return [name for name in names if name.startswith(start) and "final_norm" not in name]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
