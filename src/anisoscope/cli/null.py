"""`anisoscope null --dim D`"""

from __future__ import annotations

from typing import Annotated

import typer

from anisoscope.cli.output import Csv, ExistingOption, Json, Out, existing_policy, finish


def null(
    dim: Annotated[list[int], typer.Option("--dim", help="Dimension; give it several times to compare.")],
    n: Annotated[int, typer.Option("--n", help="How many vectors.")] = 10_000,
    out: Out = None,
    csv: Csv = None,
    existing: ExistingOption = "resume",
    json: Json = False,
) -> None:
    """What isotropy would look like in this many dimensions, at this many vectors.

    \b
    Examples:
      anisoscope null --dim 768 --n 20000
      anisoscope null --dim 64 --dim 768 --dim 4096
    """
    from anisoscope.studies.null import NullSettings, null_study

    measurement = null_study(NullSettings(dim=dim, n=n), out=out, existing=existing_policy(existing))
    finish(measurement, as_json=json, csv=csv, title=f"isotropic vectors, d = {', '.join(map(str, dim))}, n = {n:,}")
