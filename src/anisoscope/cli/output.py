"""How every command ends: a table for people, or one JSON object for machines; a CSV on request."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.figure import Figure

    from anisoscope.runs.measurement import Measurement
    from anisoscope.runs.store import Run
    from anisoscope.runs.table import Row

Out = Annotated[Path | None, typer.Option("--out", "-o", help="Run folder (default: one under anisoscope-runs/).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")]
Csv = Annotated[Path | None, typer.Option("--csv", help="Also write the tidy table to this CSV file.")]
ExistingOption = Annotated[
    str,
    typer.Option(
        "--existing",
        help="What to do with a run that is there: resume (or use again), reuse, replace, refuse.",
        metavar="resume|reuse|replace|refuse",
    ),
]


def existing_policy(value: str) -> Any:
    """Check the value of --existing."""
    from anisoscope.errors import UsageError

    allowed = ("resume", "reuse", "replace", "refuse")
    if value not in allowed:
        raise UsageError("unknown value of --existing", got=value, expected=", ".join(allowed))
    return value


def finish(measurement: Measurement, *, as_json: bool, csv: Path | None = None, title: str = "") -> None:
    """End a command that made a run: the table (or JSON) and where the run is."""
    folder = measurement.run.folder if measurement.run else None
    if csv is not None:
        write_csv(csv, measurement.rows)
    if as_json:
        print_json({"run": str(folder) if folder else None, "verdict": measurement.verdict,
                    "measurements": [row.as_dict() for row in measurement.rows]})  # fmt: skip
        return
    from rich.console import Console

    from anisoscope.report.terminal import show

    console = Console()
    show(console, measurement.rows, title=title, verdict=measurement.verdict, notes=measurement.notes)
    if folder:
        console.print(f"run: {folder}", highlight=False, soft_wrap=True, markup=False)


def say_figures(run: Run, figures: Mapping[str, Callable[[Run], Figure]], *, quiet: bool) -> list[Path]:
    """Draw figures into the run's folder (unless they are there) and say where they are."""
    from anisoscope.report.figures.style import FORMATS, save

    written: list[Path] = []
    for name, draw in figures.items():
        paths = [run.folder / "figures" / f"{name}.{kind}" for kind in FORMATS]
        written += paths if all(path.exists() for path in paths) else save(draw(run), run.folder / "figures", name)
    if not quiet:
        typer.echo(f"figures: {', '.join(str(path) for path in written if path.suffix == '.svg')}")
    return written


def print_json(value: dict[str, Any]) -> None:
    """Exactly one object on standard output."""
    import json

    json.dump(value, sys.stdout, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """The tidy table as CSV, written under another name and renamed."""
    import pyarrow.csv

    from anisoscope.errors import StoreError
    from anisoscope.runs.store import atomic
    from anisoscope.runs.table import to_table

    try:
        with atomic(path) as partial:
            pyarrow.csv.write_csv(to_table(rows), partial)
    except OSError as error:
        raise StoreError("the CSV file cannot be written", where=path, got=error) from error
