"""What became of the figures, kept in `results.json` of the folder: the page and the docs are made from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anisoscope.errors import StoreError
from anisoscope.runs.store import Run
from anisoscope.runs.writing import atomic, is_free
from anisoscope.studies.paper.checks import Seen
from anisoscope.studies.paper.recipes import Figure, Statement, figures
from anisoscope.studies.paper.scale import Scale

FILE = "results.json"
FORMAT = 3
_EARLIER = 2  # its runs are used again, what it says of figures is not


@dataclass(frozen=True)
class Tested:
    """A statement and what was seen; `by_input`: under each input; `on`: the models that stood for the paper's."""

    statement: Statement
    seen: Seen
    by_input: dict[str, Seen] = field(default_factory=dict)
    on: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """What became of a figure: its runs, its statements; or why it could not be made (`failed`, `not_testable`)."""

    figure: Figure
    runs: tuple[Run, ...] = ()
    tested: tuple[Tested, ...] = ()
    stands_in: str | None = None
    failed: str = ""
    not_testable: str = ""
    marks: dict[str, dict[str, str]] = field(default_factory=dict)
    data: tuple[str, ...] = ()


def status(result: Result) -> str:
    """One word or two for a figure.

    `stand-in only` says nothing about the papers. Otherwise `holds`, `fails` (some statement does), `not testable here`
    (nothing at hand tells), `drawn` (nothing is stated), or `failed` (it could not be made).
    """
    if result.failed:
        return "failed"
    if result.stands_in:
        return "stand-in only"
    told = [tested.seen.holds for tested in result.tested if tested.seen.holds is not None]
    if result.not_testable or (result.tested and not told):
        return "not testable here"
    if not told:
        return "drawn"
    return "holds" if all(told) else "fails"


def describe(result: Result, out: Path) -> dict[str, Any]:
    """A result as plain values; folders of runs are relative to the folder of all."""
    figure = result.figure
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "status": status(result),
        "stands_in": result.stands_in,
        "failed": result.failed or None,
        "not_testable": result.not_testable or None,
        "marks": result.marks,
        "data": list(result.data),
        "draw": list(figure.draw),
        "together": figure.together,
        "options": figure.options,
        "runs": [str(run.folder.relative_to(out)) for run in result.runs],
        "statements": [_statement(tested) for tested in result.tested],
    }


def _statement(tested: Tested) -> dict[str, Any]:
    said = tested.statement
    return {
        "quote": said.quote,
        "section": said.section,
        "said_by": said.said_by,
        "about": said.about,
        **_seen(tested.seen),
        "on": list(tested.on),
        "by_input": {label: _seen(seen) for label, seen in tested.by_input.items()},
    }


def _seen(seen: Seen) -> dict[str, Any]:
    return {"holds": seen.holds, "seen": seen.words, "chance": seen.chance, "about_chance": seen.about_chance}


def begin(out: Path, scale: Scale) -> list[dict[str, Any]]:
    """What the folder knows of figures that were made before; refuses a folder that holds something else."""
    path = out / FILE
    if is_free(out):
        out.mkdir(parents=True, exist_ok=True)
        _write(out, scale, [])
        return []
    there = _read(path) if path.is_file() else {}
    if there.get("format") not in (_EARLIER, FORMAT) or "scale" not in there:
        raise StoreError(
            "this folder holds something other than figures of the papers",
            where=out,
            expected=f"an empty folder, or one with a {FILE} of this version",
            do="choose another --out",
        )
    for name, now in (("scale", scale.name), ("protocol", scale.protocol)):
        if there[name] != now:
            raise StoreError(
                f"this folder holds figures of another {name}",
                where=out,
                got=there[name],
                expected=now,
                do="choose another --out",
            )
    return there["figures"] if there["format"] == FORMAT else []


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def keep(results: Sequence[Result], earlier: Sequence[dict[str, Any]], scale: Scale, out: Path) -> None:
    """Write what was seen beside what is known of other figures, in the order of the recipes."""
    known = {about["name"]: about for about in earlier} | {one.figure.name: describe(one, out) for one in results}
    _write(out, scale, [known[figure.name] for figure in figures() if figure.name in known])


def _write(out: Path, scale: Scale, figures: Sequence[dict[str, Any]]) -> None:
    whole = {"format": FORMAT, "scale": scale.name, "protocol": scale.protocol, "figures": list(figures)}
    with atomic(out / FILE) as partial:
        partial.write_text(json.dumps(whole, ensure_ascii=False, indent=1), encoding="utf-8")
