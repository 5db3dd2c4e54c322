"""One recipe at four sizes: what grows with the size of a model.

    anisoscope variants --plan docs/studies/plans/size.toml --out size
    python scripts/size_study.py size docs/studies

Writes tables/size.csv (one line per training), tables/size-exponents.csv and figures/size.png. An exponent is the slope
of log value on log parameters over all trainings, with the interval of ordinary least squares; seeds are the spread.
"""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

from anisoscope.geometry.partition import partition, partition_reference
from anisoscope.models.open import open_model
from anisoscope.runs.store import open_run

METRICS = {
    "loss": ("", "validation_loss"),
    "cosine of the last block": ("last", "mean_cosine"),
    "cosine after the final norm": ("final_norm", "mean_cosine"),
    "|cos(mean query, mean key)|": ("blocks", "query_key_alignment"),
    "drift of the queries": ("blocks", "query_drift_ratio"),
}
TABLE = "I(W) of the vocabulary"


def trainings(folder: Path) -> list[dict[str, float | str]]:
    """The numbers of every training of the run."""
    rows = [row for row in open_run(folder).rows() if row.seed is not None and row.head is None]
    rows = [row for row in rows if row.positions == "all" or row.metric == "validation_loss"]
    found = []
    for arm, seed in dict.fromkeys((row.model, row.seed) for row in rows):
        mine = {(row.site, row.metric): row for row in rows if (row.model, row.seed) == (arm, seed)}
        layers = max(row.layer for row in mine.values() if row.layer is not None)
        steps = max(row.step for row in mine.values() if row.step is not None)
        module = open_model(str(folder / "training" / arm / f"seed-{seed}" / f"checkpoint-{steps}")).module
        line: dict[str, float | str] = {"arm": arm, "seed": str(seed)}
        line["parameters"] = sum(weight.numel() for weight in module.parameters())
        for name, (site, metric) in METRICS.items():
            value = mine[f"block.{layers}" if site == "last" else site, metric].value
            line[name] = math.nan if value is None else value
        table = module.get_input_embeddings().weight.detach().numpy()
        line[TABLE] = partition(table, convention="both").value
        line["I of random directions"] = partition_reference(table, convention="both").value
        found.append(line)
    return found


def exponent(lines: list[dict[str, float | str]], name: str) -> tuple[float, float, float]:
    from scipy.stats import linregress, t

    x, y = ([math.log(float(line[column])) for line in lines] for column in ("parameters", name))
    fit = linregress(x, y)
    half = float(t.ppf(0.975, len(x) - 2)) * float(fit.stderr)  # pyright: ignore[reportAttributeAccessIssue]
    slope = float(fit.slope)  # pyright: ignore[reportAttributeAccessIssue]
    return slope, slope - half, slope + half


def main(folder: Path, docs: Path) -> None:
    lines = trainings(folder)
    with (docs / "tables" / "size.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(list(lines[0]))
        writer.writerows([f"{x:.5g}" if isinstance(x, float) else x for x in line.values()] for line in lines)
    with (docs / "tables" / "size-exponents.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["number", "exponent", "low", "high"])
        writer.writerows([name, *(f"{x:.3f}" for x in exponent(lines, name))] for name in (*METRICS, TABLE))
    draw(lines, docs / "figures" / "size.png")


def draw(lines: list[dict[str, float | str]], path: Path) -> None:
    from anisoscope.report.figures.style import WIDE, colour, style, subplots

    with style():
        figure, grid = subplots(2, 3, size=(WIDE, 4))
        for place, (axes, name) in enumerate(zip(grid.flat, (*METRICS, TABLE), strict=True)):
            x, y = ([float(line[column]) for line in lines] for column in ("parameters", name))
            axes.plot(x, y, linestyle="", marker="o", color=colour(place), markersize=4)
            axes.set(xscale="log", xlabel="parameters")
            axes.set_title(name, fontsize=7)
        figure.savefig(path, dpi=160)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
