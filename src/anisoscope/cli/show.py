"""`anisoscope show RUN`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anisoscope.cli.output import Csv, Json, finish


def show(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    csv: Csv = None,
    json: Json = False,
) -> None:
    """Print a run: the verdict, the table, small curves.

    \b
    Examples:
      anisoscope show anisoscope-runs/measure-gpt2-1a2b3c4d
      anisoscope show RUN --csv table.csv
    """
    from anisoscope.runs.measurement import Measurement
    from anisoscope.runs.store import open_run

    found = Measurement.of_run(open_run(run))
    finish(found, as_json=json, csv=csv, title=f"{found.command}: {run}")
