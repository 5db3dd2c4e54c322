"""`anisoscope block`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from anisoscope.cli.output import Csv, ExistingOption, Json, Out, existing_policy, finish

if TYPE_CHECKING:
    from anisoscope.runs.measurement import Measurement

_COLUMNS = (
    ("input", "mean_cosine", "cos in"),
    ("output", "mean_cosine", "cos out"),
    ("input", "mean_norm", "‖in‖"),
    ("output", "mean_norm", "‖out‖"),
    ("output", "norm_of_mean", "‖mean out‖"),
    ("query", "mean_cosine", "cos Q"),
    ("key", "mean_cosine", "cos K"),
    ("scores", "mean_score", "score"),
    ("softmax", "max_probability", "max p"),
    ("softmax", "min_probability", "min p"),
)


def block(
    arch: Annotated[
        str,
        typer.Option(
            help="Architectures, comma-separated: bert, roberta, modernbert, gpt2, opt, neox, llama, olmo2, t5, vit, "
            "convnext, resnet, or folders with a config.json."
        ),
    ] = "bert",
    input: Annotated[str, typer.Option(help="table (vectors of the embedding table), embeddings (layer), or both.")] = (
        "table"
    ),
    without: Annotated[str, typer.Option(help="Branches to take out: none, attention, mlp; comma-separated.")] = "none",
    norms: Annotated[str | None, typer.Option(help="Drift norms N, as 0,1,10,60.")] = None,
    seeds: Annotated[int, typer.Option(help="Draws of weights, vectors and direction.", min=1)] = 5,
    sequences: Annotated[int, typer.Option(help="Sequences a draw.", min=1)] = 2,
    length: Annotated[int, typer.Option(help="Vectors a sequence.", min=2)] = 512,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's 16 sequences of 512 a draw (minutes).")] = False,
    depth: Annotated[int, typer.Option(help="Untrained blocks on top of each other.", min=1)] = 1,
    init_std: Annotated[float | None, typer.Option(help="Standard deviation of the initialisation.")] = None,
    qk_bias: Annotated[
        bool, typer.Option(help="Query and key biases as nn.Linear draws them, U(±1/√d), instead of zero.")
    ] = False,
    against: Annotated[
        list[str] | None, typer.Option(help="Runs of trained models, whose hidden norms are compared with N*.")
    ] = None,
    figures: Annotated[bool, typer.Option("--figures", help="Draw figures 6 to 10 into the run folder.")] = False,
    out: Out = None,
    csv: Csv = None,
    existing: ExistingOption = "resume",
    json: Json = False,
) -> None:
    """Put drifting vectors through an untrained block: cosine, norms, fixed point, queries, keys, softmax.

    Section 4 of "Anisotropy Is Inherent to Self-Attention in Transformers", with intervals over draws, on any
    architecture. By default one BERT-base layer at BERT's initialisation.

    \b
    Examples:
      anisoscope block
      anisoscope block --arch bert,gpt2,llama,convnext --out blocks
      anisoscope block --input table,embeddings --figures
      anisoscope block --without none,attention,mlp
      anisoscope block --arch gpt2 --depth 12 --seeds 3
      anisoscope block --against runs/bert-base
    """
    from anisoscope.studies.block.study import BlockPlan, run_blocks

    given = {"arch": _listed(arch), "input": _listed("table,embeddings" if input == "both" else input)}
    given |= {"without": _listed(without), "seeds": seeds, "sequences": 16 if paper else sequences, "length": length}
    given |= {"depth": depth, "init_std": init_std, "qk_bias": qk_bias, "against": against or []}
    if norms is not None:
        given["norms"] = _listed(norms)
    measurement = run_blocks(BlockPlan.check(given), out=out, existing=existing_policy(existing))
    if json:
        finish(measurement, as_json=True, csv=csv)
    else:
        _show(measurement)
        if csv is not None:
            from anisoscope.cli.output import write_csv

            write_csv(csv, measurement.rows)
    if figures and measurement.run is not None:
        from anisoscope.cli.output import say_figures
        from anisoscope.report.figures.block import figures_of

        say_figures(measurement.run, figures_of(measurement.run), quiet=json)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _show(measurement: Measurement) -> None:
    """One table an experiment: a line for each N; then N* and where the run is."""
    from rich.console import Console

    from anisoscope.report.terminal import interval, number

    console = Console()
    average = [row for row in measurement.rows if row.seed is None]
    for label in dict.fromkeys(row.model for row in average):
        mine = [row for row in average if row.model == label]
        console.print(_sweep_table(label, mine))
        for row in (row for row in mine if row.metric.startswith("fixed_point")):
            console.print(f"{row.metric}: {number(row.value)}  {interval(row)}  ({row.note})", highlight=False)
        for row in (row for row in mine if row.metric == "norm_over_fixed_point"):
            console.print(f"{row.site}: {number(row.value)} × N*  ({row.note})", highlight=False)
        console.print()
    for line in measurement.verdict.split("; "):
        console.print(line, highlight=False, markup=False)
    if measurement.run is not None:
        console.print(f"run: {measurement.run.folder}", highlight=False, soft_wrap=True, markup=False)


def _sweep_table(label: str, rows: list):
    from rich import box
    from rich.table import Table

    from anisoscope.report.terminal import number

    value = {(row.site, row.metric, row.at): row.value for row in rows}
    shown = [column for column in _COLUMNS if any(key[:2] == column[:2] for key in value)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=label, title_justify="left", title_style="bold")
    for name in ("N", *(name for _, _, name in shown)):
        table.add_column(name, justify="right", no_wrap=True)
    for at in sorted({at for _, _, at in value if at is not None}):
        table.add_row(number(at), *(number(value.get((site, metric, at))) for site, metric, _ in shown))
    return table
