"""`anisoscope compare RUN_A RUN_B`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anisoscope.cli.output import Csv, Json, Out, finish


def compare(
    first: Annotated[Path, typer.Argument(help="Run folder of the original.")],
    second: Annotated[Path, typer.Argument(help="Run folder of the port, the quantised or the fine-tuned model.")],
    out: Out = None,
    csv: Csv = None,
    json: Json = False,
) -> None:
    """Did the geometry survive? Differences between two runs by site, with intervals paired by sequence group.

    \b
    Examples:
      anisoscope compare runs/original runs/quantised
      anisoscope compare runs/base runs/tuned --out runs/difference --json
    """
    from dataclasses import replace

    from anisoscope.runs.store import open_run
    from anisoscope.studies.compare import compare_runs

    found = compare_runs(open_run(first), open_run(second))
    if out is not None:
        found = replace(found, run=found.save(out))
    finish(found, as_json=json, csv=csv, title=f"compare: {second} against {first}")
