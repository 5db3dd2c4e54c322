"""`anisoscope calibrate FILE…`"""

from __future__ import annotations

from typing import Annotated

import typer

from anisoscope.cli.output import Csv, ExistingOption, Json, Out, existing_policy, finish, say_figures


def calibrate(
    files: Annotated[list[str], typer.Argument(help="Files of embeddings (see `anisoscope vectors`).")],
    queries: Annotated[
        list[str] | None, typer.Option(help="Embeddings of queries, to pair with the files' rows.")
    ] = None,
    column: Annotated[str | None, typer.Option(help="Column or array that holds the vectors.")] = None,
    group: Annotated[
        str | None, typer.Option(help="Column that names each row's document: pairs within one are left out.")
    ] = None,
    rate: Annotated[list[float] | None, typer.Option(help="False-positive rates of the thresholds.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the held-out sample.")] = 0,
    out: Out = None,
    csv: Csv = None,
    existing: ExistingOption = "resume",
    json: Json = False,
) -> None:
    """Similarity floor and thresholds of a set of embeddings, and what centring, all-but-the-top or whitening would do.

    \b
    Examples:
      anisoscope calibrate embeddings.npy
      anisoscope calibrate documents.parquet --queries queries.parquet --rate 0.01 --rate 0.001
    """
    from anisoscope.studies.calibrate import CalibrateSettings, calibrate_files

    chosen = {} if not rate else {"rates": rate}
    settings = CalibrateSettings(files=files, queries=queries or [], column=column, group=group, seed=seed, **chosen)
    measurement = calibrate_files(settings, out=out, existing=existing_policy(existing))
    finish(measurement, as_json=json, csv=csv, title=f"calibrate: {', '.join(files)}")
    if measurement.run is not None:
        from anisoscope.report.figures.calibrate import figure_calibration

        say_figures(measurement.run, {"calibration": figure_calibration}, quiet=json)
