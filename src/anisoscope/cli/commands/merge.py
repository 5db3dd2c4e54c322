"""Add up the runs of shards into the run that one pass over all the data gives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anisoscope.cli.flags import All, Csv, Figures, Force, Json
from anisoscope.cli.study import existing_option


def merge(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Runs of one command with --shard 0/N … N-1/N.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run that they make.")],
    existing: Annotated[str, existing_option()] = "refuse",
    figures: Figures = True,
    csv: Csv = None,
    force: Force = False,
    all: All = False,
    json: Json = False,
) -> None:
    """Add up the runs of shards. Every shard must be there once, with the same settings, models and data.

    \b
    Examples:
      for i in 0 1 2 3; do anisoscope measure gpt2 --data texts/ --shard $i/4 --out shard-$i & done; wait
      anisoscope merge shard-* -o whole
    """
    from anisoscope.cli.output import finish
    from anisoscope.runs.merging import merge_runs
    from anisoscope.runs.store import checked_existing
    from anisoscope.runs.study import study_of
    from anisoscope.runs.writing import check_target

    if csv is not None:
        check_target(csv, kind="csv", inputs=runs, out=out, force=force)
    found = merge_runs(runs, out, existing=checked_existing(existing))
    given = {"csv": csv, "force": force, "all": all, "json": json, "figures": figures}
    assert found.run is not None
    finish(study_of(found.run), found, given, inputs=runs)
