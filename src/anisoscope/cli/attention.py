"""`anisoscope attention MODEL`"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anisoscope.cli.measure import BatchTokens, Data, Device, ModelsDir, TrustRemoteCode, complete_model
from anisoscope.cli.output import Csv, ExistingOption, Json, Out, existing_policy, finish, say_figures

if TYPE_CHECKING:
    from anisoscope.runs.measurement import Measurement
    from anisoscope.runs.table import Row

Length = Annotated[float | None, typer.Option(help="Window in tokens (default 512), or in seconds for speech.")]
Limit = Annotated[int | None, typer.Option(help="At most so many documents, clips or images.", min=1)]
Documents = Annotated[str, typer.Option(help="How a text file splits: auto, file, lines, blank, paragraphs, wikitext.")]
Column = Annotated[str | None, typer.Option(help="Text column of a table.")]
BeforeRotary = Annotated[
    bool, typer.Option("--before-rotary", help="Queries and keys before rotation (default: as they are scored).")
]
Sample = Annotated[int, typer.Option(help="Queries and keys of each head that are kept to draw clouds.", min=1)]
Seed = Annotated[int, typer.Option(help="Seed of the sample.")]
Dtype = Annotated[str, typer.Option(help="Precision of the model: float32, float64, bfloat16, float16.")]
Figures = Annotated[bool, typer.Option(help="Draw the figures.")]


def attention(
    model: Annotated[str, typer.Argument(help="Hub id, folder or GGUF file.", autocompletion=complete_model)],
    data: Data = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")] = None,
    tower: Annotated[str | None, typer.Option(help="text or vision, of a model of both.")] = None,
    modality: Annotated[str | None, typer.Option(help="text, speech or vision, where the model does not say.")] = None,
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
    """How queries and keys drift, how sharp attention is and what its scores vary by: every layer, every head.

    \b
    Examples:
      anisoscope attention bert-base-uncased --data wikitext/valid.txt --limit 128
      anisoscope attention EleutherAI/pythia-70m --revision step1000 --before-rotary
      anisoscope attention ./checkpoint-500 --json
    """
    from anisoscope.studies.attention.study import AttentionSettings, attention_study
    from anisoscope.studies.measure.study import Machine

    settings = AttentionSettings(
        model=model, revision=revision, tower=tower, modality=modality, data=data or [], documents=documents,
        column=column, length=length, limit=limit, before_rotary=before_rotary, sample=sample, seed=seed, dtype=dtype,
    )  # fmt: skip
    machine = Machine(device, batch_tokens, models_dir, trust_remote_code)
    measurement = attention_study(settings, machine=machine, out=out, existing=existing_policy(existing))
    end(measurement, as_json=json, csv=csv, title=f"attention: {model}")
    if figures and measurement.run is not None:
        from anisoscope.report.figures.heads import figures_of_attention

        say_figures(measurement.run, figures_of_attention(measurement.run), quiet=json)


def end(measurement: Measurement, *, as_json: bool, csv: Path | None, title: str) -> None:
    """End a command that measured attention: one line a layer instead of one a head and metric."""
    if as_json:
        finish(measurement, as_json=True, csv=csv)
        return
    from rich.console import Console

    console = Console()
    console.print(title, style="bold", markup=False, highlight=False)
    console.print(f"verdict: {measurement.verdict}", markup=False, highlight=False)
    for note in measurement.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
    steps = [row.step for row in measurement.rows if row.step is not None]
    last = [row for row in measurement.rows if not steps or row.step == max(steps)]
    for seed in dict.fromkeys(row.seed for row in last):
        told = "" if not steps else f"step {max(steps)}" + ("" if seed is None else f", seed {seed}")
        console.print(_table([row for row in last if row.seed == seed], told))
    if csv is not None:
        from anisoscope.cli.output import write_csv

        write_csv(csv, measurement.rows)
    if measurement.run is not None:
        console.print(f"run: {measurement.run.folder}", highlight=False, soft_wrap=True, markup=False)


_COLUMNS = {
    "mean_cosine": "cosine",
    "query_key_cosine": "cos(Q̄, K̄)",
    "query_drift_ratio": "Q drift",
    "key_drift_ratio": "K drift",
    "entropy_normalised": "entropy",
    "sink_share": "sink",
    "salience_share": "salience",
}
"""Metrics of the table: of hidden states, of heads, of rows (entropy over log n)."""


def _table(rows: Sequence[Row], title: str):
    """One line a site; the cosines of its heads as their range."""
    from rich import box
    from rich.table import Table

    value = {(row.site, row.metric): row.value for row in rows if row.head is None and row.positions == "all"}
    heads: dict[str, list[float]] = {}
    for row in rows:
        if row.metric == "query_key_cosine" and row.head is not None and row.value is not None:
            heads.setdefault(row.site.rpartition(".head.")[0], []).append(row.value)
    shown = {metric: name for metric, name in _COLUMNS.items() if any(key[1] == metric for key in value)}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title=title or None, title_justify="left")
    table.add_column("site", no_wrap=True)
    for name in shown.values():
        table.add_column(name, justify="right", no_wrap=True)
    for site in dict.fromkeys(site for site, metric in value if metric in shown):
        cells = {metric: _short(value.get((site, metric))) for metric in shown}
        if heads.get(site):
            cells["query_key_cosine"] = f"{min(heads[site]):+.2f}…{max(heads[site]):+.2f}"
        table.add_row(site, *cells.values())
    return table


def _short(value: float | None) -> str:
    """Three digits after the point: the table fits into eighty columns."""
    return "–" if value is None else f"{value:.3f}"
