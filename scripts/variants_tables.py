"""Put the numbers of tables/variants.csv into the two tables of the study of variants that have ten seeds.

    anisoscope variants --plan docs/studies/plans/variants.toml --threads 1 --out variants --csv variants.csv
    python scripts/variants_tables.py docs/studies [variants.csv]

A grid may be trained piece by piece: the trainings of a file that is named join those of the table that it lacks, and
means, differences and Holm's correction are computed anew, over all arms.

The first table has the mean of each arm, the second its difference to the control within seeds: bold where Holm's p is
below 0.05, with Holm's p where only the interval leaves zero out. The figures are drawn from the same table.
"""

from __future__ import annotations

import csv
import re
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from anisoscope.report.figures.style import save
from anisoscope.report.figures.variants import figure_variants, figure_variants_differences
from anisoscope.runs.store import write_run
from anisoscope.runs.table import Row
from anisoscope.studies.variants.rows import averages, differences

COLUMNS = (
    ("", "validation_loss"),
    *(("blocks", name) for name in ("mean_cosine", "isoscore", "entropy_normalised", "max_probability")),
    *(("blocks", name) for name in ("query_drift_ratio", "query_key_alignment")),
)
MOST = 10  # seeds, which need not be said
Cells = dict[tuple[str, str, str], dict[str, str]]  # by arm, site and metric
HEAD = ("model", "seed", "step", "site", "metric", "value", "low", "high", "null", "note")


def rows_of(table: Path, *, single: bool) -> list[Row]:
    """The rows of single seeds, or those over all of them; those of single heads are left out."""
    numbers = {"seed": int, "step": int, **dict.fromkeys(("value", "low", "high", "null"), float)}
    found = []
    for line in csv.DictReader(table.open(encoding="utf-8")):
        if bool(line["seed"]) is single and not line.get("head"):
            fields: dict[str, Any] = {name: line[name] for name in HEAD}
            fields |= {name: kind(line[name]) if line[name] else None for name, kind in numbers.items()}
            found.append(Row(**fields))
    return found


def join(table: Path, files: Iterable[Path]) -> None:
    """Write the table anew, with the trainings of more files: of the metrics and sites that it has."""
    rows = rows_of(table, single=True)
    told, there = {(row.site, row.metric) for row in rows}, {(row.model, row.seed) for row in rows}
    for row in (row for file in files for row in rows_of(file, single=True)):
        if (row.site, row.metric) in told and (row.model, row.seed) not in there:
            rows.append(row)
    order = list(dict.fromkeys(row.model for row in rows))
    rows.sort(key=lambda row: (order.index(row.model), row.seed))
    with table.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(HEAD)
        for row in (*averages(rows), *differences(rows, control=rows[0].model), *rows):
            writer.writerow([_written(getattr(row, name)) for name in HEAD])


def _written(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def read(table: Path) -> Cells:
    """The rows over all seeds."""
    rows = csv.DictReader(table.open())
    return {(row["model"], row["site"], row["metric"]): row for row in rows if not row["seed"]}


def signed(x: str) -> str:
    return f"{float(x):+.3f}".replace("-", "−")


def level(row: dict[str, str]) -> str:
    value, low, high = (f"{float(row[name]):.3f}" for name in ("value", "low", "high"))
    return f"{value} ({low} … {high})"


def change(row: dict[str, str]) -> str:
    value, low, high = (signed(row[name]) for name in ("value", "low", "high"))
    if all(abs(float(row[end])) < 5e-4 for end in ("low", "high")):
        return "0.000"
    p = re.search(r"([\d.e-]+) by Holm", row["note"])
    if p is not None and float(p[1]) < 0.05:
        value = f"**{value}**"
    said = p is not None and float(p[1]) >= 0.05 and (float(row["low"]) > 0 or float(row["high"]) < 0)
    return f"{value} ({low} … {high})" + (f", Holm {float(p[1]):.2g}" if said and p is not None else "")


def bound(row: dict[str, str]) -> str:
    """The bound of equivalence, with three digits after the point, or one that is not zero."""
    found = re.search(r"within ±([\d.e-]+)", row["note"])
    assert found is not None
    return f"±{float(found[1]):.3f}" if float(found[1]) >= 5e-4 else f"±{Decimal(f'{float(found[1]):.0e}'):f}"


def name(arm: str, row: dict[str, str]) -> str:
    seeds = int(re.search(r"(\d+) seeds", row["note"])[1])  # pyright: ignore[reportOptionalSubscript]
    return f"`{arm}`" + ("" if seeds == MOST else f" ({seeds} seeds)")


def tables(cells: Cells) -> tuple[list[str], list[str]]:
    """The lines of both tables, without their heads."""
    arms = list(dict.fromkeys(arm for arm, _, _ in cells))
    means = [[name(arm, cells[arm, *COLUMNS[0]]), *(level(cells[arm, *place]) for place in COLUMNS)] for arm in arms]
    changes = []
    for arm in arms[1:]:
        mine = [cells[arm, site, f"{metric}_difference"] for site, metric in COLUMNS]
        changes.append([name(arm, mine[0]), *map(change, mine), bound(mine[1])])
    return [_line(cells) for cells in means], [_line(cells) for cells in changes]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def put(text: str, found: tuple[list[str], list[str]]) -> str:
    """The page with these lines below the heads of its tables; the first one with IsoScore has the means."""
    lines, left, skipping = [], list(found), False
    for line in text.splitlines():
        skipping = skipping and line.startswith("| `")
        if not skipping:
            lines.append(line)
        if re.fullmatch(r"(\|---)+\|", line) and "IsoScore" in lines[-2]:
            lines += left.pop(0)
            skipping = True
    assert not left, "the page has not the two tables"
    return "\n".join(lines) + "\n"


def draw(docs: Path, table: str, name: str) -> None:
    """The two figures of a table of the variants."""
    rows = [
        replace(row, layer=int(row.site.partition(".")[2]) if row.site.startswith("block.") else None)
        for row in rows_of(docs / "tables" / f"{table}.csv", single=False)
    ]
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", command="variants", settings={"compare": "attention"}, rows=rows)
        for suffix, figure in (("", figure_variants), ("-differences", figure_variants_differences)):
            save(figure(run), docs / "figures", f"{name}{suffix}", formats=("png",))


def main(docs: Path, *files: Path) -> None:
    page = docs / "variants.md"
    if files:
        join(docs / "tables" / "variants.csv", files)
    page.write_text(put(page.read_text(encoding="utf-8"), tables(read(docs / "tables" / "variants.csv"))), "utf-8")
    draw(docs, "variants", "variants-power")
    draw(docs, "variants-pilot", "variants")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
