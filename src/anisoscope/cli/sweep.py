"""`anisoscope sweep SERIES`"""

from __future__ import annotations

from typing import Annotated

import typer

from anisoscope.cli.attention import BeforeRotary, Column, Documents, Dtype, Figures, Length, Limit, Sample, Seed, end
from anisoscope.cli.measure import BatchTokens, Data, Device, ModelsDir, TrustRemoteCode
from anisoscope.cli.output import Csv, ExistingOption, Json, Out, existing_policy, say_figures


def sweep(
    series: Annotated[
        str,
        typer.Argument(
            help="multiberts, a Pythia model, a folder of checkpoint-* or seed-*/checkpoint-*, a glob in quotes, "
            "a TOML list of [[checkpoints]], or `embedded`."
        ),
    ],
    data: Data = None,
    steps: Annotated[
        str, typer.Option(help="all, paper, log, a count (21: evenly over the training), or a list: 0,1000,20k.")
    ] = "all",
    seeds: Annotated[str | None, typer.Option(help="0-4 or 0,2: which seeds of the series.")] = None,
    sites: Annotated[str, typer.Option(help="What to look at: hidden, attention, vocabulary.")] = "hidden,attention",
    specials: Annotated[
        str, typer.Option(help="Special tokens in hidden states: keep (as the paper) or drop.")
    ] = "keep",
    spectrum: Annotated[bool, typer.Option(help="Measure the spectrum of hidden states too.")] = False,
    before_rotary: BeforeRotary = False,
    length: Length = None,
    limit: Limit = None,
    documents: Documents = "auto",
    column: Column = None,
    sample: Sample = 128,
    seed: Seed = 0,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    batch_tokens: BatchTokens = None,
    models_dir: ModelsDir = None,
    trust_remote_code: TrustRemoteCode = False,
    figures: Figures = True,
    out: Out = None,
    csv: Csv = None,
    existing: ExistingOption = "resume",
    json: Json = False,
) -> None:
    """Follow a training: hidden states, queries, keys and attention at every checkpoint, over the same tokens.

    Checkpoints that are missing are listed and passed over; equal or misplaced ones are pointed out. A killed sweep
    continues with the checkpoint it was at when the same command is given again.

    \b
    Examples:
      anisoscope sweep embedded
      anisoscope sweep multiberts --seeds 0-4 --data wikitext/valid.txt --limit 128
      anisoscope sweep EleutherAI/pythia-70m --steps 21 --sites hidden,vocabulary
      anisoscope sweep ./my-training --steps log
      anisoscope sweep 'runs/*/checkpoint-*'
    """
    from anisoscope.models.checkpoints import parse_seeds
    from anisoscope.studies.measure.study import Machine
    from anisoscope.studies.sweep.study import SweepSettings, sweep_series

    settings = SweepSettings(
        series=series, steps=steps, seeds=None if seeds is None else list(parse_seeds(seeds)),
        sites=[part.strip() for part in sites.split(",") if part.strip()], specials=specials, spectrum=spectrum,
        data=data or [], documents=documents, column=column, length=length, limit=limit, before_rotary=before_rotary,
        sample=sample, seed=seed, dtype=dtype,
    )  # fmt: skip
    machine = Machine(device, batch_tokens, models_dir, trust_remote_code)
    measurement = sweep_series(settings, machine=machine, out=out, existing=existing_policy(existing))
    end(measurement, as_json=json, csv=csv, title=f"sweep: {series}")
    if figures and measurement.run is not None:
        from anisoscope.report.figures.dynamics import figures_of_sweep

        say_figures(measurement.run, figures_of_sweep(measurement.run), quiet=json)
