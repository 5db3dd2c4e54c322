"""`anisoscope vocabulary MODEL…`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anisoscope.cli.output import Csv, ExistingOption, Json, Out, existing_policy, finish, say_figures

if TYPE_CHECKING:
    from anisoscope.runs.measurement import Measurement

_SHOWN = (
    ("partition_one_sided", "I(W)"),
    ("partition_both", "I(W), ±"),
    ("mean_cosine", "cosine"),
    ("drift_ratio", "drift ratio"),
    ("isoscore", "IsoScore"),
    ("mean_norm", "norm"),
)


def vocabulary(
    models: Annotated[
        list[str],
        typer.Argument(help="A hub id, folder or name@revision; several are checkpoints in order of training."),
    ],
    data: Annotated[
        list[str] | None, typer.Option("--data", "-d", help="A text, to relate norms and directions to frequency.")
    ] = None,
    head: Annotated[bool, typer.Option(help="Read the output matrix too (a checkpoint may have no head).")] = True,
    points: Annotated[int, typer.Option(help="Rows that the 2-D picture shows.", min=10)] = 4000,
    seed: Annotated[int, typer.Option(help="Seed of the rows shown.")] = 0,
    models_dir: Annotated[Path | None, typer.Option(help="Mirror laid out as owner/name[@revision].")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Allow the model's own Python files to run.")
    ] = False,
    figures: Annotated[bool, typer.Option(help="Draw figures M1 and M4.")] = True,
    out: Out = None,
    csv: Csv = None,
    existing: ExistingOption = "resume",
    json: Json = False,
) -> None:
    """Measure the input and output vocabulary matrices: I(W) in both conventions, cosine, drift, spectrum.

    Raw and centred, against random directions of the same norms; no data is needed. Over a series of checkpoints this
    is the measurement of "Anisotropy is Not Inherent to Transformers".

    \b
    Examples:
      anisoscope vocabulary EleutherAI/pythia-70m
      anisoscope vocabulary series/seed-0/step-* --data book.txt
      anisoscope vocabulary EleutherAI/pythia-70m@step0 EleutherAI/pythia-70m@step143000
    """
    from anisoscope.studies.measure.study import Machine
    from anisoscope.studies.vocabulary import VocabularySettings, measure_vocabularies

    settings = VocabularySettings(models=models, data=data or [], head=head, points=points, seed=seed)
    machine = Machine(models_dir=models_dir, trust_remote_code=trust_remote_code)
    measurement = measure_vocabularies(settings, machine=machine, out=out, existing=existing_policy(existing))
    if json:
        finish(measurement, as_json=True, csv=csv)
    else:
        _show(measurement)
        if csv is not None:
            from anisoscope.cli.output import write_csv

            write_csv(csv, measurement.rows)
    if figures and measurement.run is not None:
        from anisoscope.report.figures.vocabulary import figures_of_vocabularies

        say_figures(measurement.run, figures_of_vocabularies(measurement.run), quiet=json)


def _show(measurement: Measurement) -> None:
    """One line for each model (or step) and matrix, raw and centred."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from anisoscope.report.terminal import number

    console = Console()
    rows = [row for row in measurement.rows if row.positions == "all"]
    cells = {(row.model, row.step, row.site, row.metric): row for row in rows}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("model", "step", "matrix"):
        table.add_column(name, overflow="fold")
    for name in ("I(W)", "random", *(name for _, name in _SHOWN[1:])):
        table.add_column(name, justify="right", no_wrap=True)
    for model, step, site in dict.fromkeys(key[:3] for key in cells):
        found = [cells.get((model, step, site, metric)) for metric, _ in _SHOWN]
        values = [number(row.value if row else None) for row in found]
        null = number(found[0].null if found[0] else None)
        where = ("" if step is None else str(step), site.removeprefix("vocabulary."))
        table.add_row(model.rpartition("/")[2], *where, values[0], null, *values[1:])
    console.print(table)
    for line in measurement.verdict.split("; "):
        console.print(line, highlight=False, markup=False)
    if measurement.run is not None:
        console.print(f"run: {measurement.run.folder}", highlight=False, soft_wrap=True, markup=False)
