"""`anisoscope final-norm MODEL…`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anisoscope.cli.output import Csv, ExistingOption, Json, Out, existing_policy, finish, say_figures

if TYPE_CHECKING:
    from anisoscope.runs.measurement import Measurement

_COLUMNS = ("gain_norm", "bias_norm", "bias_over_gain", "implied_cosine", "mean_cosine_before", "mean_cosine")


def final_norm(
    models: Annotated[
        list[str],
        typer.Argument(help="A hub id, folder or name@revision; several are checkpoints in order of training."),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option("--data", "-d", help="Files, folders, globs, - or hf:NAME; embedded data without it."),
    ] = None,
    length: Annotated[
        float | None, typer.Option(help="Window in tokens (default 512), or in seconds for speech.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many documents, clips or images.", min=1)] = None,
    documents: Annotated[
        str, typer.Option(help="How a text file splits: auto, file, lines, blank, wikitext.")
    ] = "auto",
    sample: Annotated[int, typer.Option(help="Vectors kept at each site, which ablations run on.", min=64)] = 4096,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps …")] = "cpu",
    batch_tokens: Annotated[int | None, typer.Option(help="Padded positions in a batch (default 8192).", min=1)] = None,
    models_dir: Annotated[Path | None, typer.Option(help="Mirror laid out as owner/name[@revision].")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Allow the model's own Python files to run.")
    ] = False,
    figures: Annotated[bool, typer.Option(help="Draw figures M2 and M3.")] = True,
    out: Out = None,
    csv: Csv = None,
    existing: ExistingOption = "resume",
    json: Json = False,
) -> None:
    """What the norms do: gains and biases, the cosine that they alone imply, cosine before and after, ablations.

    The final norm, or where there is none (BERT) the norm that every block ends in: measured before and after it, with
    its bias at zero, with its gain at one, and with the common mean removed before it.

    \b
    Examples:
      anisoscope final-norm EleutherAI/pythia-70m
      anisoscope final-norm gpt2 --data texts/ --limit 200
      anisoscope final-norm series/seed-0/step-* --length 128
    """
    from anisoscope.studies.final_norm.study import FinalNormSettings, measure_final_norms
    from anisoscope.studies.measure.study import Machine

    settings = FinalNormSettings(
        models=models, data=data or [], documents=documents, length=length, limit=limit, sample=sample, seed=seed
    )
    machine = Machine(device, batch_tokens, models_dir, trust_remote_code)
    measurement = measure_final_norms(settings, machine=machine, out=out, existing=existing_policy(existing))
    if json:
        finish(measurement, as_json=True, csv=csv)
    else:
        _show(measurement)
        if csv is not None:
            from anisoscope.cli.output import write_csv

            write_csv(csv, measurement.rows)
    if figures and measurement.run is not None:
        from anisoscope.report.figures.final_norm import figures_of_norms

        say_figures(measurement.run, figures_of_norms(measurement.run), quiet=json)


def _show(measurement: Measurement) -> None:
    """The norms that close, one line each: parameters, implied and measured cosine, ablations."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from anisoscope.report.figures.final_norm import closing_norms
    from anisoscope.report.terminal import number

    console = Console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    names = ("step", "site", "‖g‖", "‖b‖", "‖b‖/‖g‖", "implied", "before", "after", "b = 0", "g = 1", "mean removed")
    for name in names:
        table.add_column(name, justify="left" if name in ("step", "site") else "right", no_wrap=True)
    for found in closing_norms(measurement.rows):
        step = "" if found.step is None else str(found.step)
        values = [found.row(metric) for metric in _COLUMNS]
        values += [found.ablated(name) for name in ("without_bias", "unit_gain", "mean_removed")]
        table.add_row(step, found.site, *(number(row.value if row else None) for row in values))
    console.print(table)
    for note in measurement.notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    console.print(measurement.verdict, highlight=False, markup=False)
    if measurement.run is not None:
        console.print(f"run: {measurement.run.folder}", highlight=False, soft_wrap=True, markup=False)
