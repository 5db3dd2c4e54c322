"""`anisoscope run run.toml`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anisoscope.cli.output import Csv, ExistingOption, Json, Out, existing_policy, finish


def run(
    plan: Annotated[Path, typer.Argument(help="A run.toml, or the folder of a run.")],
    out: Out = None,
    csv: Csv = None,
    existing: ExistingOption = "resume",
    json: Json = False,
) -> None:
    """Do again what a run.toml describes: every run writes one.

    \b
    Examples:
      anisoscope run anisoscope-runs/vectors-embeddings-1a2b3c4d/run.toml --out again
      anisoscope run my-study.toml
    """
    from anisoscope.studies.plans import perform

    path = plan / "run.toml" if plan.is_dir() else plan
    measurement = perform(path, out=out, existing=existing_policy(existing))
    finish(measurement, as_json=json, csv=csv, title=f"run: {path}")
