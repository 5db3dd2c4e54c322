"""python scripts/make_benchmarks.py [docs/studies/tables/bench.json]

Writes `docs/benchmarks.md` and the cost model in `docs/scale.md` from what `tests/benchmarks/run.py` measured. The
model's coefficients are non-negative least squares of relative errors over the widths marked `fit`; the other widths
say how wrong it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- cost model: begin -->", "<!-- cost model: end -->"
POWERS = {
    "directions": (0, 1),
    "spectra": (0, 1, 2),
    "metrics": (0, 2, 3),
    "bytes_directions": (0, 1),
    "bytes_spectra": (0, 1, 2),
}
TITLES = {
    "commands": "Commands, from start to end",
    "core": "Vectors",
    "measure": "`measure`",
    "attention": "`attention`",
    "wide": "Flattened maps",
    "monitor": "The monitor",
    "remedy": "`remedy apply`",
    "scale": "Many vectors",
    "workers": "Two processes",
    "peers": "Other libraries",
}


def fitted(cost: list[dict[str, Any]], name: str) -> tuple[np.ndarray, Callable[[float], float], float]:
    """Coefficients of the powers of d, the model, and its largest relative error where it was not fitted."""
    from scipy.optimize import nnls

    def terms(d: float) -> np.ndarray:
        return np.array([float(d) ** power for power in POWERS[name]])

    used = [one for one in cost if one["fit"]]
    matrix = np.stack([terms(one["d"]) / one[name] for one in used])
    scale = matrix.max(0)
    found = nnls(matrix / scale, np.ones(len(used)))[0] / scale
    errors = [abs(found @ terms(one["d"]) / one[name] - 1) for one in cost if not one["fit"]]
    return found, lambda d: float(found @ terms(d)), max(errors)


def number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.3g} {unit}" if unit != "×" else f"{value:.2f}×"


def line(row: dict[str, Any]) -> str:
    unit, ratio, aim = row["unit"], row.get("ratio"), row.get("aim")
    against = f"{row['against']}: {number(row['other'], unit)}" if ratio else ""
    shown = f"{ratio:.2f}× ({row['low']:.2f}–{row['high']:.2f})" if ratio else ""
    spread = number(row["ours"], unit) + ("" if ratio else f" ({row['low']:.3g}–{row['high']:.3g})")
    wanted = "" if aim is None else f"{aim:g}×" if ratio or unit == "×" else number(aim, unit)
    held = "" if aim is None else "yes" if (ratio or row["ours"]) <= aim else "no"
    return f"| {row['what']} | {spread} | {against} | {shown} | {wanted} | {held} |"


def page(found: dict[str, Any]) -> Iterator[str]:
    about = found["machine"]
    yield "# Benchmarks\n"
    yield "`make bench` measures this page: contenders take turns in one run, ratios are medians over the rounds, with"
    yield "the least and the largest. `make bench-peers` installs the other libraries first. Weights are random.\n"
    tools = ", ".join(f"{name} {about[name]}" for name in ("anisoscope", "torch", "transformers", "numpy"))
    yield f"{about['processor']}, {about['cores']} cores; Python {about['python']}, {tools}. Load of the machine at the"
    yield f"start: {about['load_before']:.1f}" + (" — it was not idle.\n" if about["load_before"] > 0.5 else ".\n")
    if found["small"]:
        yield "**A quick try (`--small`): toy sizes, one counted round. Ratios and seconds here say nothing.**\n"
    for name, title in TITLES.items():
        rows = [row for row in found["rows"] if row["of"] == name]
        if not rows:
            continue
        yield f"\n## {title}\n"
        if elsewhere := rows[0].get("machine"):
            yield f"Not measured in this run: on {elsewhere}.\n"
        yield "| what | ours | against | ratio (least–largest) | aim: at most | met |\n|---|---|---|---|---|---|"
        yield from map(line, rows)
    if series := found.get("series"):
        yield "\n## Vectors by number\n\nOne thread, whole call, d = 64.\n"
        yield "| n | ns per vector | peak MB |\n|---|---|---|"
        yield from (f"| {one['n']:,} | {1e9 * one['seconds'] / one['n']:,.0f} | {one['peak']:,.0f} |" for one in series)
    missing = [title for name, title in TITLES.items() if not any(row["of"] == name for row in found["rows"])]
    if missing:
        yield f"\nNot measured in this run: {', '.join(missing)}."


def power_words(name: str, found: np.ndarray, unit: float) -> str:
    names = {0: "", 1: "·d", 2: "·d²", 3: "·d³"}
    parts = [f"{c / unit:.3g}{names[p]}" for p, c in zip(POWERS[name], found, strict=True) if c]
    return " + ".join(parts) or "0"


def model_lines(cost: list[dict[str, Any]], hashed: float) -> Iterator[str]:
    fits = {name: fitted(cost, name) for name in POWERS}
    ways = [
        ("time per vector and site, directions", "directions", 1e-9, "ns"),
        ("time per vector and site, with spectra (d ≤ 4,096)", "spectra", 1e-9, "ns"),
        ("time for the metrics of a site, once", "metrics", 1e-3, "ms"),
        ("state of a site, directions: memory, disk, traffic", "bytes_directions", 1e3, "kB"),
        ("state of a site, with spectra", "bytes_spectra", 1e3, "kB"),
    ]
    yield "| quantity | on one thread | largest error at the widths not fitted |\n|---|---|---|"
    for words, name, unit, shown in ways:
        found, _, error = fits[name]
        yield f"| {words} | {power_words(name, found, unit)} {shown} | {100 * error:.0f} % |"
    yield f"| hashing of files on disk, by every process | {hashed / 1e9:.1f} GB/s | |"
    widths = [", ".join(str(one["d"]) for one in cost if one["fit"] == fit) for fit in (True, False)]
    yield f"\nFitted at d = {widths[0]}; checked at d = {widths[1]}, 8,192 vectors each.\n"
    yield from examples({name: fit[1] for name, fit in fits.items()}, hashed)


def examples(of: dict[str, Callable[[float], float]], hashed: float) -> Iterator[str]:
    """Worked on paper: what the model says of three large jobs."""
    yield "### Three examples on paper\n"
    yield "Computed from the coefficients above, not run. Accelerators are untried: 100 TFLOP/s each is an assumption,"
    yield "the sums are taken on CPU threads like the one that was measured, and d above 1,536 was not checked.\n"
    sites, d, tokens = 38, 5120, 100_000
    sums, state = tokens * sites * of["directions"](d), sites * of["bytes_directions"](d)
    yield f"- **Pythia-12B, 154 checkpoints**, {tokens:,} tokens each, {sites} sites of d = {d:,} (too wide for an"
    yield f"  exact spectrum). Per checkpoint: forward {2 * 12e9 * tokens / 1e14:,.0f} s on one accelerator, sums"
    yield f"  {sums:,.0f} s on one thread, {state / 1e9:.1f} GB of state. In all {154 * sums / 3600:,.1f} thread-hours"
    yield "  of sums, and 154 × 24 GB = 3.7 TB of weights to read."
    d, n = 1024, 10**9
    total, narrow = n * of["spectra"](d), n * of["directions"](d)
    yield f"- **A billion embeddings of d = {d:,}** (4.1 TB): {total / 3600:,.0f} thread-hours with spectra,"
    yield f"  {narrow / 3600:,.1f} without. 64 threads need {total / 64 / 60:,.0f} minutes with spectra and"
    yield f"  {4.1e12 / (total / 64) / 1e9:,.1f} GB/s of reading. 64 workers send"
    yield f"  {63 * of['bytes_spectra'](d) / 1e6:,.0f} MB of state to the one that writes. So it is with an"
    yield "  object store; where the files lie on disk, every process also hashes all of them,"
    yield f"  {4.1e12 / hashed / 60:,.0f} minutes however many there are."
    sites, d, tokens = 82, 8192, 10**6
    sums, moved = tokens * sites * of["directions"](d), 2 * tokens * sites * d
    yield f"- **A 70B model on 8 accelerators**, {tokens:,} tokens, {sites} sites of d = {d:,}: forward"
    yield f"  {2 * 70e9 * tokens / 8e14:,.0f} s, {moved / 1e12:.1f} TB of bfloat16 states to the CPU"
    yield f"  ({moved / 2e11:,.0f} s at 25 GB/s per accelerator), sums {sums / 3600:,.1f} thread-hours"
    yield f"  ({sums / 64 / 60:,.1f} minutes on 64 threads), {sites * of['bytes_directions'](d) / 1e9:.1f} GB of state."


def made_how(found: dict[str, Any]) -> Iterator[str]:
    """Said before the model where its numbers are rough: few rounds, or a busy machine."""
    load, rounds = found["machine"]["load_before"], "one counted round" if found["small"] else "five counted rounds"
    if found["small"] or load > 0.5:
        yield f"**Provisional**: {rounds} per width, on a machine with a load of {load:.0f} on"
        yield f"{found['machine']['cores']} cores; `make bench` on an idle machine replaces these coefficients.\n"


def main() -> None:
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "studies" / "tables" / "bench.json"
    found = json.loads(source.read_text(encoding="utf-8"))
    (DOCS / "benchmarks.md").write_text("\n".join(page(found)) + "\n", encoding="utf-8")
    if "cost" in found:
        scale = DOCS / "scale.md"
        before, rest = scale.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        middle = "\n".join([*made_how(found), *model_lines(found["cost"], found["hashed"])])
        scale.write_text(f"{before}{BEGIN}\n{middle}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
