"""python scripts/advise_study.py FOLDER

Joins the tables that `anisoscope advise ENCODER-DATA.npy --csv FOLDER/ENCODER-DATA.csv` wrote: writes
`docs/studies/tables/advise.csv`, draws forecast against measurement, and prints the tables of `docs/studies/advise.md`.

The link is logit(kept) = a + b·logit(forecast), with a and b by least squares of the shares over all other encoders
(the fine-tune of MiniLM counts as MiniLM).
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares
from scipy.special import expit, logit
from scipy.stats import spearmanr

from anisoscope.report.figures.style import colour, marker, style, subplots

STUDIES = Path(__file__).parents[1] / "docs/studies"
KIN = {"sre": "minilm"}
Cells = dict[tuple[str, int], dict[str, dict[str, str]]]
Runs = dict[tuple[str, str], Cells]


def read(folder: Path) -> Runs:
    """The rows of every (encoder, data), by site and dimensions, then metric."""
    found: Runs = {}
    for path in sorted(folder.glob("*.csv")):
        encoder, _, data = path.stem.rpartition("-")
        cells = found.setdefault((encoder, data), {})
        for row in csv.DictReader(path.open(encoding="utf-8")):
            if row["at"]:
                cells.setdefault((row["site"], int(float(row["at"]))), {})[row["metric"]] = row
    return found


def points(cells: Cells) -> np.ndarray:
    """(forecast, kept) of every variant but the vectors as they are."""
    whole = ("raw.float32", max(dims for _, dims in cells))
    names = ("overlap_forecast", "neighbour_overlap")
    return np.array([[float(one[name]["value"]) for name in names] for key, one in cells.items() if key != whole])


def linked(by: np.ndarray, forecast: np.ndarray) -> np.ndarray:
    """The forecast after the link that fits the points `by` best."""
    z = logit(np.clip(by[:, 0], 0.005, 0.995))
    a, b = least_squares(lambda t: expit(t[0] + t[1] * z) - by[:, 1], [0.0, 1.0]).x
    return expit(a + b * logit(np.clip(forecast, 0.005, 0.995)))


def others(runs: Runs, encoder: str) -> np.ndarray:
    kin = KIN.get(encoder, encoder)
    return np.concatenate([points(cells) for (one, _), cells in runs.items() if KIN.get(one, one) != kin])


def show(runs: Runs) -> None:
    for (encoder, data), cells in runs.items():
        found, whole = points(cells), max(dims for _, dims in cells)
        half = sorted({dims for _, dims in cells}, reverse=True)[2]
        asked = [(f"raw.{code}", whole) for code in ("int8", "int4", "binary")] + [("centred.binary", whole)]
        asked += [("raw.float32", half), ("centred.float32", half), ("centred.float32", whole)]
        asked += [("whitened.float32", whole)]
        kept = " | ".join(f"{float(cells[key]['neighbour_overlap']['value']):.2f}" for key in asked)
        missed, after = found[:, 0] - found[:, 1], linked(others(runs, encoder), found[:, 0]) - found[:, 1]
        rank = spearmanr(found[:, 0], found[:, 1])[0]
        errors = f"{missed.mean():+.2f} | {np.abs(missed).max():.2f} | {rank:.2f}"
        linking = f"{np.abs(after).mean():.2f} | {after.mean():+.2f} | {np.abs(after).max():.2f}"
        print(f"| {encoder} | {data} | {whole} | {kept} || {np.abs(missed).mean():.2f} | {errors} | {linking} |")
    every = np.concatenate([points(cells) for cells in runs.values()])
    above = every[:, 0] - every[:, 1]
    print(f"{len(every)} variants, {np.sum(above > 0)} above by at most {above.max():.4f}, bias {above.mean():+.3f}")
    for data in sorted({data for _, data in runs}):
        here, there = (
            np.concatenate([points(c) for (_, d), c in runs.items() if (d == data) == same]) for same in (True, False)
        )
        print(f"link of other data on {data}: {np.abs(linked(there, here[:, 0]) - here[:, 1]).mean():.3f}")


def write(runs: Runs, path: Path) -> None:
    head = ["encoder", "data", "correction", "code", "dims", "overlap", "low", "high", "forecast"]
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*head, "gb_per_million", "queries"])
        for (encoder, data), cells in runs.items():
            for (site, dims), one in cells.items():
                kept, more = one["neighbour_overlap"], (one["overlap_forecast"], one["memory_per_million"])
                values = [kept["value"], kept["low"], kept["high"], *(row["value"] for row in more)]
                shown = [f"{float(value):.4f}" if value else "" for value in values]
                writer.writerow([encoder, data, *site.split("."), dims, *shown, kept["n"]])


def draw(runs: Runs, datas: Sequence[str], path: Path) -> None:
    """One column for each data set: the forecast, and below it the linked one, against what was measured."""
    encoders = sorted({encoder for encoder, _ in runs})
    with style():
        figure, panels = subplots(2, len(datas), size=(6.6, 6.2), sharex=True, sharey=True)
        for (encoder, data), cells in runs.items():
            found, k, column = points(cells), encoders.index(encoder), datas.index(data)
            for row, x in enumerate((found[:, 0], linked(others(runs, encoder), found[:, 0]))):
                like = {"linestyle": "", "marker": marker(k), "markersize": 2.6, "alpha": 0.8}
                panels[row, column].plot(x, found[:, 1], color=colour(k), label=encoder, **like)
        for row, words in enumerate(("forecast from mean and covariance", "forecast after the link of other encoders")):
            for column, data in enumerate(datas):
                panels[row, column].plot([0, 1], [0, 1], color="#444444", linestyle=":", linewidth=1)
                panels[row, column].set(xlabel=words, title=data if row == 0 else "")
            panels[row, 0].set_ylabel("measured: neighbours kept")
        panels[0, 0].legend(fontsize=6, loc="lower right")
        figure.savefig(path)


def main() -> None:
    runs = read(Path(sys.argv[1]))
    write(runs, STUDIES / "tables/advise.csv")
    draw(runs, sorted({data for _, data in runs}, reverse=True), STUDIES / "figures/advise.png")
    show(runs)


if __name__ == "__main__":
    main()
