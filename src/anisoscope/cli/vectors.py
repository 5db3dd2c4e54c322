"""`anisoscope vectors FILE…`"""

from __future__ import annotations

from typing import Annotated

import typer

from anisoscope.cli.output import Csv, ExistingOption, Json, Out, existing_policy, finish


def vectors(
    files: Annotated[
        list[str],
        typer.Argument(help="Files, folders or globs: .npy .npz .safetensors .parquet .arrow .feather .csv .jsonl"),
    ],
    column: Annotated[str | None, typer.Option(help="Column or array that holds the vectors.")] = None,
    group: Annotated[
        str | None, typer.Option(help="Column that names each row's sequence (document, user, …).")
    ] = None,
    spectrum: Annotated[bool, typer.Option(help="Measure the covariance spectrum too.")] = True,
    neighbours: Annotated[bool, typer.Option(help="Measure neighbourhoods too (on a sample).")] = True,
    sample: Annotated[int, typer.Option(help="Vectors kept for what is no sum.", min=64)] = 4096,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
    out: Out = None,
    csv: Csv = None,
    existing: ExistingOption = "resume",
    json: Json = False,
) -> None:
    """Measure vectors in files: how anisotropic they are, by drift or by spectrum, with intervals and nulls.

    One pass, exact over all pairs, in constant memory.

    \b
    Examples:
      anisoscope vectors embeddings.npy
      anisoscope vectors 'shards/*.parquet' --column embedding --group document
      anisoscope vectors vectors.jsonl --json | jq .verdict
    """
    from anisoscope.studies.vectors import VectorsSettings, measure_files

    settings = VectorsSettings(
        files=files, column=column, group=group, spectrum=spectrum, neighbours=neighbours, sample=sample, seed=seed
    )
    measurement = measure_files(settings, out=out, existing=existing_policy(existing))
    finish(measurement, as_json=json, csv=csv, title=f"vectors: {', '.join(files)}")
