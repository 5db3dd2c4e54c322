"""How every command ends: the story for people, or one JSON object for machines; CSV and figures on request."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING, Any

import typer

from anisoscope.errors import printable

if TYPE_CHECKING:
    from anisoscope.runs.measurement import Measurement
    from anisoscope.runs.study import Study
    from anisoscope.runs.table import Row


def finish(
    study: Study | None, measurement: Measurement, given: Mapping[str, Any], *, inputs: Iterable[str | Path] = ()
) -> None:
    """End a command that made or opened a run."""
    if given.get("csv") is not None:
        write_csv(given["csv"], measurement.rows, inputs=inputs, force=bool(given.get("force")))
    if given.get("markdown") is not None:
        from anisoscope.report.markdown import summary
        from anisoscope.runs.writing import guarded

        with guarded(given["markdown"], kind="markdown", inputs=inputs, force=bool(given.get("force"))) as partial:
            partial.write_text(summary(study, measurement), encoding="utf-8")
    if given.get("json"):
        print_json(as_json(measurement))
    else:
        from anisoscope.report.terminal import tell

        tell(study, measurement, everything=bool(given.get("all")))
    if given.get("figures") and measurement.run is not None:
        from anisoscope.report.figures import draw

        written = draw(measurement.run)
        if written and not given.get("json"):
            drawn = [path for path in written if path.suffix == ".svg"]
            many = f"{len(drawn)} in {drawn[0].parent}" if len(drawn) > 2 else ", ".join(map(str, drawn))
            say(f"figures: {many}")


def as_json(measurement: Measurement) -> dict[str, Any]:
    """The one object of `--json`: version 1 of its schema is `docs/reference/schema.json`."""
    from anisoscope.runs.measurement import sentence_of

    return {
        "schema": 1,
        "run": str(measurement.run.folder) if measurement.run else None,
        "command": measurement.command,
        "verdict": str(measurement.verdict),
        "sentence": sentence_of(measurement.verdict),
        "notes": list(measurement.notes),
        "verdicts": [dict(one) for one in measurement.verdicts],
        "measurements": [row.as_dict() for row in measurement.rows],
    }


def say(text: str, *, err: bool = False, prose: bool = False) -> None:
    """Print a line whose names may be hostile; prose is folded between words on a screen."""
    line = printable(text)
    if prose and sys.stdout.isatty():
        line = fill(line, get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)
    typer.echo(line, err=err)


def print_json(value: dict[str, Any]) -> None:
    """Exactly one object on standard output."""
    import json

    json.dump(value, sys.stdout, ensure_ascii=True, allow_nan=False)
    sys.stdout.write("\n")


def write_csv(path: Path, rows: Sequence[Row], *, inputs: Iterable[str | Path] = (), force: bool = False) -> None:
    """The tidy table as CSV. A text that a spreadsheet would take for a formula gets an apostrophe in front."""
    from dataclasses import replace

    import pyarrow.csv

    from anisoscope.runs.table import to_table
    from anisoscope.runs.writing import guarded

    def harmless(row: Row) -> Row:
        texts = ("run", "model", "revision", "site", "metric", "note", "positions", "protocol")
        changed = {name: f"'{text}" for name in texts if (text := getattr(row, name) or "")[:1] in tuple("=+-@\t\r")}
        return replace(row, **{name: text for name, text in changed.items() if text != "'"}) if changed else row

    with guarded(path, kind="csv", inputs=inputs, force=force) as partial:
        pyarrow.csv.write_csv(to_table(map(harmless, rows)), partial)
