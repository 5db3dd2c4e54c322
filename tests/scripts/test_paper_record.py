"""The table of record: every statement has a row, what fails on real weights leads, what was not seen is no verdict."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import paper_record

from anisoscope.studies.paper.recipes import choose, figures


def folder(path: Path, name: str, *, holds: bool | None, stands_in: str | None) -> Path:
    (figure,) = choose([name])
    told: dict[str, Any] = {"holds": holds, "seen": "0.150 | at final_norm", "chance": 0.03, "on": []}
    told |= {"about_chance": "would pass by chance: 3 %", "by_input": {}}
    said = [
        {"quote": one.quote, "section": one.section, "said_by": one.said_by, "about": one.about, **told}
        for one in figure.statements
    ]
    path.mkdir()
    whole = {"figures": [{"name": name, "stands_in": stands_in, "statements": said}]}
    (path / "results.json").write_text(json.dumps(whole))
    return path


def test_failing_statements_lead_and_every_statement_has_a_row(tmp_path: Path) -> None:
    demo = folder(tmp_path / "demo", "23", holds=True, stands_in="small models")
    local = folder(tmp_path / "local", "23", holds=False, stands_in=None)
    rows = paper_record.table(demo, local).splitlines()
    assert len(rows) == 2 + sum(len(figure.statements) for figure in figures())
    assert rows[2].startswith("| 23 | We observe similar trends")
    assert "**fails**: 0.150 \\| at final_norm; would pass by chance: 3 %" in rows[2]
    assert rows[2].endswith("| holds | not run |")
    assert all("not testable" in row for row in rows[3:])
