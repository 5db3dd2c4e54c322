"""`anisoscope null --dim D`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anisoscope.cli.output import Csv, ExistingOption, Json, Out, existing_policy, finish, say_figures


def null(
    dim: Annotated[list[int], typer.Option("--dim", help="Dimension; give it several times to compare.")],
    n: Annotated[int, typer.Option("--n", help="How many vectors.")] = 10_000,
    runs: Annotated[list[Path] | None, typer.Option(help="Runs whose sites stand as points in figure 18.")] = None,
    figures: Annotated[bool, typer.Option(help="Draw figures 17 and 18.")] = True,
    out: Out = None,
    csv: Csv = None,
    existing: ExistingOption = "resume",
    json: Json = False,
) -> None:
    """What isotropy would look like in this many dimensions, at this many vectors.

    \b
    Examples:
      anisoscope null --dim 768 --n 20000
      anisoscope null --dim 64 --dim 768 --dim 4096 --runs anisoscope-runs/measure-gpt2-1a2b3c4d
    """
    from anisoscope.runs.store import open_run
    from anisoscope.studies.null import NullSettings, null_study

    measured = [open_run(folder) for folder in runs or []]
    measurement = null_study(NullSettings(dim=dim, n=n), out=out, existing=existing_policy(existing))
    finish(measurement, as_json=json, csv=csv, title=f"isotropic vectors, d = {', '.join(map(str, dim))}, n = {n:,}")
    if figures and measurement.run is not None:
        from anisoscope.report.figures import null as drawing

        draw = {"figure_17": lambda _: drawing.figure_17(dim), "figure_18": lambda _: drawing.figure_18(measured)}
        say_figures(measurement.run, draw, quiet=json)
