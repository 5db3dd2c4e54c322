"""Every number in a table of the gallery's pages is in the file that the command above it wrote."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
NUMBER = re.compile(r"[−-]?\d[\d,]*\.?\d*")


def kept(name: str, site: str) -> list[float]:
    """All numbers of a site, those of its heads and parts included."""
    rows = csv.DictReader((GALLERY / "tables" / f"{name}.csv").open(encoding="utf-8"))
    own = [row for row in rows if row["site"] == site or row["site"].startswith(f"{site}.")]
    return [float(row[key]) for row in own for key in ("value", "low", "high", "null", "n") if row.get(key)]


def strangers(page: str) -> list[str]:
    found, name = [], ""
    for line in page.splitlines():
        if run := re.search(r"--out \$RUNS/(\S+)", line):
            name = run[1]
        elif cells := re.match(r"\| `([^`]+)` \|(.*)\|$", line):
            values = kept(name, cells[1])
            for text in NUMBER.findall(cells[2]):
                digits = text.replace("−", "-").replace(",", "")
                half = 0.5001 * 10 ** -len(digits.partition(".")[2])
                if not any(abs(value - float(digits)) <= half for value in values):
                    found.append(f"{name}, {cells[1]}: {text}")
    return found


@pytest.mark.parametrize("page", ["README.md", "attention.md"])
def test_every_number_of_a_table_is_in_its_file(page: str) -> None:
    text = (GALLERY / page).read_text(encoding="utf-8")
    assert text.count("\n| `") > 20
    assert strangers(text) == []


def test_a_number_that_no_file_has_is_seen() -> None:
    text = (GALLERY / "README.md").read_text(encoding="utf-8")
    assert strangers(text.replace("| 0.615 |", "| 0.617 |", 1)) == ["whisper, encoder.embeddings: 0.617"]
