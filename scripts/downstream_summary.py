"""From the probes of single trainings to the answer: contrasts of arms, and what goes with the average cosine.

    python scripts/downstream_summary.py docs/studies

Reads tables/downstream.csv; writes tables/downstream-summary.csv, tables/downstream-correlations.csv, the table of
probes in downstream.md and, with tables/downstream-series.csv, two figures. A contrast is an arm minus softmax within
each seed, with Student's interval, Holm's p over all contrasts and the bound of equivalence. A correlation is
Spearman's: over trainings at one site, with Holm's p over all sites and tasks, with all arms and without the most
isotropic one; or over the sites of one training, averaged over the arms of a seed, with Student's interval over seeds.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from anisoscope.inference.contrasts import equivalence_bound, holm, interval_over_draws, paired_p

CONTROL = "softmax"
SHOWN = ("linear", "gated", "more_isotropic", "isotropy_3", "less_isotropic", "coupled_adam", "muon")  # in the page
MOST_ISOTROPIC = "isotropy_3"
Key = tuple[str, str]  # task and site
Probes = dict[Key, dict[str, dict[int, tuple[float, float]]]]  # accuracy and cosine, by arm and seed


def read(path: Path) -> Probes:
    found: Probes = {}
    for row in csv.DictReader(path.open()):
        by_arm = found.setdefault((row["task"], row["site"]), {})
        by_arm.setdefault(row["arm"], {})[int(row["seed"])] = (float(row["accuracy"]), float(row["mean_cosine"]))
    return found


def contrasts(task: str, site: str, arms: dict[str, dict[int, tuple[float, float]]]) -> list[dict[str, object]]:
    lines: list[dict[str, object]] = []
    control = arms[CONTROL]
    for arm, seeds in arms.items():
        both = [seed for seed in seeds if seed in control]
        gain = [seeds[seed][0] - control[seed][0] for seed in both]
        turn = [seeds[seed][1] - control[seed][1] for seed in both]
        line: dict[str, object] = {"task": task, "site": site, "arm": arm, "seeds": len(seeds)}
        line["accuracy"] = f"{np.mean([a for a, _ in seeds.values()]):.4f}"
        line["mean_cosine"] = f"{np.mean([c for _, c in seeds.values()]):.4f}"
        low, high = interval_over_draws(gain)
        known = arm != CONTROL and low is not None and high is not None
        line["difference"] = f"{np.mean(gain):.4f}" if known else ""
        line |= {"low": f"{low:.4f}" if known else "", "high": f"{high:.4f}" if known else ""}
        line["p"] = paired_p(gain) if known else None
        line["equivalent_within"] = f"{equivalence_bound(gain):.4f}" if known else ""
        line["cosine_difference"] = f"{np.mean(turn):.4f}" if known else ""
        lines.append(line)
    return lines


def over_trainings(found: Probes, without: str = "") -> list[dict[str, object]]:
    """Rank correlations of cosine and accuracy over trainings, at every site."""
    from scipy.stats import spearmanr

    lines: list[dict[str, object]] = []
    for (task, site), arms in found.items():
        points = [one for arm, seeds in arms.items() if arm != without for one in seeds.values()]
        rho, p = np.array(spearmanr([c for _, c in points], [a for a, _ in points]), dtype=float)
        lines.append({"task": task, "over": "trainings", "site": site, "without": without, "n": len(points)})
        lines[-1] |= {"spearman": f"{rho:.3f}", "p": float(p)}
    return corrected(lines)


def over_sites(found: Probes) -> list[dict[str, object]]:
    """Rank correlations over the sites of a training, averaged over the arms of each seed."""
    from scipy.stats import spearmanr

    lines: list[dict[str, object]] = []
    for task in dict.fromkeys(task for task, _ in found):
        sites = [arms for (other, _), arms in found.items() if other == task]
        by_seed: dict[int, list[float]] = {}
        for arm, seed in [(arm, seed) for arm, seeds in sites[0].items() for seed in seeds]:
            pairs = [site[arm][seed] for site in sites]
            if len({a for a, _ in pairs}) > 1:
                rho = np.array(spearmanr([c for _, c in pairs], [a for a, _ in pairs]), dtype=float)[0]
                by_seed.setdefault(seed, []).append(float(rho))
        means = [float(np.mean(values)) for values in by_seed.values()]
        low, high = interval_over_draws(means)
        line: dict[str, object] = {"task": task, "over": "sites", "n": sum(map(len, by_seed.values()))}
        line |= {"spearman": f"{np.mean(means):.3f}", "low": f"{low:.3f}", "high": f"{high:.3f}"}
        lines.append(line)
    return lines


def corrected(lines: list[dict[str, object]]) -> list[dict[str, object]]:
    """The lines with Holm's p over those of them that have one."""
    tested = [line for line in lines if isinstance(line["p"], float)]
    for line, p in zip(tested, holm([float(str(line["p"])) for line in tested]), strict=True):
        line |= {"p": f"{line['p']:.2g}", "p_holm": f"{p:.2g}"}
    return lines


def main(docs: Path) -> None:
    found = read(docs / "tables" / "downstream.csv")
    lines = corrected([line for (task, site), arms in found.items() for line in contrasts(task, site, arms)])
    tied = [*over_trainings(found), *over_trainings(found, MOST_ISOTROPIC), *over_sites(found)]
    for name, rows in (("summary", lines), ("correlations", tied)):
        with (docs / "tables" / f"downstream-{name}.csv").open("w", newline="") as file:
            columns = list(dict.fromkeys(name for row in rows for name in row))
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    draw(found, docs / "figures" / "downstream.png")
    if (docs / "tables" / "downstream-series.csv").exists():
        draw_series(docs / "tables" / "downstream-series.csv", docs / "figures" / "downstream-series.png")
    page = docs / "downstream.md"
    page.write_text(put(page.read_text(encoding="utf-8"), lines, tied), encoding="utf-8")


def put(page: str, lines: list[dict[str, object]], tied: list[dict[str, object]]) -> str:
    """The page with the table of probes: one line per task and site, differences in points."""
    cells = {(line["task"], line["site"], line["arm"]): line for line in lines}
    rank = {(line["task"], line["site"]): line for line in tied if line["over"] == "trainings" and not line["without"]}
    arms = [arm for arm in SHOWN if any(line["arm"] == arm for line in lines)]
    head = ["task", "site", f"`{CONTROL}`", *(f"`{arm}` −" for arm in arms), "correlation with the cosine, p"]
    table = [_line(head), "|---" * len(head) + "|"]
    for task, site, arm in cells:
        if arm == CONTROL:
            own = cells[task, site, arm]
            middle = [_points(cells[task, site, other]) for other in arms]
            both = f"{rank[task, site]['spearman']}, {rank[task, site]['p']}".replace("-0.", "−0.")
            table.append(_line([str(task), f"`{site}`", f"{100 * _number(own['accuracy']):.1f} %", *middle, both]))
    start = page.index("| task | site |")
    return page[:start] + "\n".join(table) + page[page.index("\n\n", start) :]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(text: object) -> float:
    return float(str(text))


def _points(line: dict[str, object]) -> str:
    """A difference with its interval, in points; bold where Holm's p is below 0.05."""
    value, low, high = (f"{100 * _number(line[name]):+.1f}".replace("-", "−") for name in ("difference", "low", "high"))
    words = f"{value} ({low} … {high})"
    return f"**{words}**" if line.get("p_holm") and _number(line["p_holm"]) < 0.05 else words


def draw(found: Probes, path: Path) -> None:
    from anisoscope.report.figures.style import WIDE, colour, marker, style, subplots

    tasks, sites = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    with style():
        figure, grid = subplots(1, len(tasks), size=(WIDE, 2.7))
        for axes, task in zip(grid, tasks, strict=True):
            for place, site in enumerate(sites):
                points = [one for seeds in found[task, site].values() for one in seeds.values()]
                x, y = [c for _, c in points], [a for a, _ in points]
                look = {"linestyle": "", "marker": marker(place), "color": colour(place), "markersize": 3}
                axes.plot(x, y, label=site, **look)
            axes.set(title=task, xlabel="average cosine")
        grid[0].set_ylabel("balanced accuracy")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(sites))
        figure.savefig(path, dpi=160)


def draw_series(table: Path, path: Path) -> None:
    """Accuracy and average cosine by step at the last block, the mean of the seeds and each of them."""
    from anisoscope.report.figures.style import WIDE, colour, style, subplots

    rows = [row for row in csv.DictReader(table.open()) if row["site"] == "block.3"]
    tasks, seeds = (list(dict.fromkeys(row[name] for row in rows)) for name in ("task", "seed"))
    with style():
        figure, grid = subplots(1, len(tasks), size=(WIDE, 2.7))
        for axes, task in zip(grid, tasks, strict=True):
            for place, (column, label) in enumerate((("accuracy", "accuracy"), ("mean_cosine", "average cosine"))):
                for seed, dash in zip(seeds, ("-", "--"), strict=False):
                    own = sorted(
                        (int(r["step"]), float(r[column])) for r in rows if (r["task"], r["seed"]) == (task, seed)
                    )
                    axes.plot(*zip(*own, strict=True), dash, color=colour(place), label=f"{label}, seed {seed}")
            axes.set(title=task, xlabel="step", ylim=(0, 1))
            axes.set_xscale("symlog", linthresh=8)
            axes.set_xlim(0, 8192)
            axes.set_xticks(shown := [0, 8, 64, 512, 8192], [str(step) for step in shown])
            axes.minorticks_off()
        grid[0].set_ylabel("at the last block")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        figure.savefig(path, dpi=160)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
