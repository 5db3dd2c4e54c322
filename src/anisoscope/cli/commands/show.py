"""Print a run: verdict, table, small curves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anisoscope.cli.flags import All, Csv, Force, Json


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    all: All = False,
    json: Json = False,
    csv: Csv = None,
    force: Force = False,
) -> None:
    """Print a run the way its command did: verdict, table, small curves.

    \b
    Examples:
      anisoscope show anisoscope-runs/measure-gpt2-1a2b3c4d
      anisoscope show RUN --csv table.csv
    """
    from anisoscope.cli.output import finish
    from anisoscope.runs.measurement import Measurement
    from anisoscope.runs.store import open_run
    from anisoscope.runs.study import study_of
    from anisoscope.runs.writing import check_target

    if csv is not None:
        check_target(csv, kind="csv", force=force)
    found = open_run(run)
    given = {"csv": csv, "force": force, "all": all, "json": json}
    finish(study_of(found), Measurement.of_run(found), given)
