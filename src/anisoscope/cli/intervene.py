"""`anisoscope intervene MODEL`"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anisoscope.cli.attention import BeforeRotary, Column, Documents, Figures
from anisoscope.cli.measure import BatchTokens, Data, Device, ModelsDir, TrustRemoteCode, complete_model
from anisoscope.cli.output import Csv, ExistingOption, Json, Out, existing_policy, finish, say_figures, write_csv

if TYPE_CHECKING:
    from anisoscope.runs.measurement import Measurement
    from anisoscope.runs.table import Row

_COLUMNS = {
    "loss_change": "loss",
    "kl": "KL",
    "entropy_normalised_change": "entropy",
    "sink_share_change": "sink",
    "last_cosine_change": "cosine",
}
"""What the table shows: changes against the untouched model."""


def intervene(
    model: Annotated[str, typer.Argument(help="A causal or masked language model.", autocompletion=complete_model)],
    data: Data = None,
    what: Annotated[list[str] | None, typer.Option(help="Interventions (default: all that the model allows).")] = None,
    layers: Annotated[str, typer.Option(help="Pattern of the blocks to change, all at once.")] = "*block.*",
    before_rotary: BeforeRotary = False,
    documents: Documents = "auto",
    column: Column = None,
    length: Annotated[int | None, typer.Option(help="Window in tokens (default 512).")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many documents.", min=1)] = None,
    head: Annotated[bool, typer.Option(help="Open the model with its language-model head, to see the loss.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of the controls' directions.")] = 0,
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
    """Take a part of the drift away while the model runs, and see what it was for: loss, KL, entropy, cosine.

    \b
    Examples:
      anisoscope intervene gpt2 --data texts/ --limit 20
      anisoscope intervene bert-base-uncased --what mean_query --what mean_key --layers 'block.[0-3]'
      anisoscope intervene EleutherAI/pythia-70m --before-rotary --what mean_query
    """
    from anisoscope.studies.intervene.study import InterveneSettings, intervene_model
    from anisoscope.studies.measure.study import Machine

    chosen = {} if not what else {"what": what}
    settings = InterveneSettings(
        model=model, data=data or [], documents=documents, column=column, layers=layers, before_rotary=before_rotary,
        length=length, limit=limit, head=head, seed=seed, **chosen,
    )  # fmt: skip
    machine = Machine(device, batch_tokens, models_dir, trust_remote_code)
    found = intervene_model(settings, machine=machine, out=out, existing=existing_policy(existing))
    _end(found, as_json=json, csv=csv, title=f"intervene: {model}")
    if figures and found.run is not None:
        from anisoscope.report.figures.interventions import figures_of_interventions

        say_figures(found.run, figures_of_interventions(found.run), quiet=json)


def _end(measurement: Measurement, *, as_json: bool, csv: Path | None, title: str) -> None:
    """One line an intervention; the whole table is in the run, in the CSV and in the JSON."""
    if as_json:
        finish(measurement, as_json=True, csv=csv)
        return
    from rich.console import Console

    console = Console()
    console.print(title, style="bold", markup=False, highlight=False)
    console.print(f"verdict: {measurement.verdict}", markup=False, highlight=False)
    for note in measurement.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
    console.print(_table(measurement.rows))
    if csv is not None:
        write_csv(csv, measurement.rows)
    if measurement.run is not None:
        console.print(f"run: {measurement.run.folder}", highlight=False, soft_wrap=True, markup=False)


def _table(rows: Sequence[Row]):
    """Changes by intervention; a star where the 95 % interval holds no 0."""
    from rich import box
    from rich.table import Table

    cells = {(row.site, row.metric): row for row in rows}
    shown = {metric: name for metric, name in _COLUMNS.items() if any(row.metric == metric for row in rows)}
    title = "change by, * 95 % interval without 0"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left")
    table.add_column("intervention", no_wrap=True)
    for name in shown.values():
        table.add_column(name, justify="right", no_wrap=True)
    for site in dict.fromkeys(row.site for row in rows if row.site != "untouched"):
        name = "  its control" if site.endswith(".control") else site
        table.add_row(name, *(_cell(cells.get((site, metric))) for metric in shown))
    return table


def _cell(row: Row | None) -> str:
    if row is None or row.value is None:
        return "–"
    if row.metric == "kl":  # never below 0, so an interval without 0 says nothing
        return f"{abs(row.value):.4f}"
    sure = row.low is not None and row.high is not None and not row.low <= 0 <= row.high
    shown = round(row.value, 4) + 0.0  # no minus before a zero
    return f"{shown:+.4f}{'*' if sure and shown else ' '}"
