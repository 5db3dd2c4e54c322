"""The table of record of docs/paper.md: every statement beside what was seen on stand-ins and on real weights.

    python scripts/paper_record.py DEMO_FOLDER LOCAL_FOLDER > table.md

The folders are those of `anisoscope paper` at the scales demo and local. Statements that fail on real weights lead.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from anisoscope.studies.paper.recipes import figures

WORDS = {True: "holds", False: "**fails**", None: "not testable"}
ORDER = {False: 0, True: 1, None: 2}


def statements(folder: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Statements with their figures, by figure, quote and part."""
    written = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return {
        (figure["name"], said["quote"], said["about"]): {**said, "stands_in": figure["stands_in"]}
        for figure in written["figures"]
        for said in figure["statements"]
    }


def cell(said: dict[str, Any] | None) -> str:
    """The verdict and its numbers."""
    if said is None or said["holds"] is None:
        return "not testable"
    on = f" (on {', '.join(said['on'])})" if said["on"] else ""
    chance = f"; {said['about_chance']}" if said["chance"] is not None else ""
    return f"{WORDS[said['holds']]}: {said['seen']}{on}{chance}".replace("|", "\\|")


def table(demo: Path, local: Path) -> str:
    """A row per statement."""
    stand_ins, real = statements(demo), statements(local)
    stated = [(figure.name, said) for figure in figures() for said in figure.statements]
    known = {(name, said.quote, said.about): said for name, said in stated}
    keys = list(known)
    keys.sort(key=lambda key: ORDER[real[key]["holds"] if key in real else None])
    lines = ["| figure | the paper says | real weights here | stand-in | hub |", "|---|---|---|---|---|"]
    for name, quote, about in keys:
        said = known[name, quote, about]
        mark = "" if said.said_by == "text" else " (our reading of a picture)"
        part = f" *{about}*" if about else ""
        words = f"{quote}{mark} § {said.section}.{part}".replace("|", "\\|")
        example = stand_ins.get((name, quote, about))
        lines.append(
            f"| {name} | {words} | {cell(real.get((name, quote, about)))} | {_on_stand_in(example)} | not run |"
        )
    return "\n".join(lines)


def _on_stand_in(said: dict[str, Any] | None) -> str:
    if said is None:
        return "not run"
    return WORDS[said["holds"]] if said["stands_in"] else "none needed"


if __name__ == "__main__":
    print(table(Path(sys.argv[1]), Path(sys.argv[2])))
