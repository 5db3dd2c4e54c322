"""From the probes of single trainings to the answer: contrasts of arms, and what goes with the average cosine.

    python scripts/downstream_summary.py docs/studies

Reads tables/downstream.csv; writes tables/downstream-summary.csv, figures/downstream.png and the table of probes in
downstream.md. A contrast is an arm minus softmax within each seed, with Student's interval, Holm's p over all contrasts
and the bound of equivalence. A correlation is Spearman's, over trainings at one site (layers differ in both numbers for
many reasons).
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from anisoscope.inference.contrasts import equivalence_bound, holm, interval_over_draws, paired_p

CONTROL = "softmax"
SHOWN = ("linear", "gated", "no_bias", "more_isotropic", "less_isotropic", "coupled_adam", "muon")  # in the page
Key = tuple[str, str]  # task and site


def read(path: Path) -> dict[Key, dict[str, dict[int, tuple[float, float]]]]:
    """Accuracy and cosine by task and site, then arm, then seed."""
    found: dict[Key, dict[str, dict[int, tuple[float, float]]]] = {}
    for row in csv.DictReader(path.open()):
        by_arm = found.setdefault((row["task"], row["site"]), {})
        by_arm.setdefault(row["arm"], {})[int(row["seed"])] = (float(row["accuracy"]), float(row["mean_cosine"]))
    return found


def contrasts(task: str, site: str, arms: dict[str, dict[int, tuple[float, float]]]) -> list[dict[str, object]]:
    from scipy.stats import spearmanr

    lines: list[dict[str, object]] = []
    everything = [one for seeds in arms.values() for one in seeds.values()]
    rho, rho_p = spearmanr([c for _, c in everything], [a for a, _ in everything])
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
        line |= {"spearman": f"{rho:.3f}", "spearman_p": f"{rho_p:.2g}"}
        lines.append(line)
    return lines


def main(docs: Path) -> None:
    found = read(docs / "tables" / "downstream.csv")
    lines = [line for (task, site), arms in found.items() for line in contrasts(task, site, arms)]
    tested = [line for line in lines if isinstance(line["p"], float)]
    for line, p in zip(tested, holm([float(str(line["p"])) for line in tested]), strict=True):
        line |= {"p": f"{line['p']:.2g}", "p_holm": f"{p:.2g}"}
    columns = list(dict.fromkeys([*lines[0], "p_holm"]))
    with (docs / "tables" / "downstream-summary.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    draw(found, docs / "figures" / "downstream.png")
    page = docs / "downstream.md"
    page.write_text(put(page.read_text(encoding="utf-8"), lines), encoding="utf-8")


def put(page: str, lines: list[dict[str, object]]) -> str:
    """The page with the table of probes: one line per task and site, differences in points."""
    cells = {(line["task"], line["site"], line["arm"]): line for line in lines}
    arms = [arm for arm in SHOWN if any(line["arm"] == arm for line in lines)]
    head = ["task", "site", f"`{CONTROL}`", *(f"`{arm}` −" for arm in arms), "correlation with the cosine, p"]
    table = [_line(head), "|---" * len(head) + "|"]
    for task, site, arm in cells:
        if arm == CONTROL:
            own = cells[task, site, arm]
            middle = [_points(cells[task, site, other]) for other in arms]
            tied = f"{own['spearman']}, {own['spearman_p']}".replace("-0.", "−0.")
            table.append(_line([str(task), f"`{site}`", f"{100 * _number(own['accuracy']):.1f} %", *middle, tied]))
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


def draw(found: dict[Key, dict[str, dict[int, tuple[float, float]]]], path: Path) -> None:
    import matplotlib.pyplot as plt

    from anisoscope.report.figures.style import WIDE, colour, marker, style

    tasks, sites = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    with style():
        figure, grid = plt.subplots(1, len(tasks), figsize=(WIDE, 2.7), layout="constrained")
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
