"""`anisoscope variants`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from anisoscope.cli.output import Csv, ExistingOption, Json, Out, existing_policy, finish, say_figures, write_csv

if TYPE_CHECKING:
    from anisoscope.runs.measurement import Measurement
    from anisoscope.runs.table import Row


def variants(
    data: Annotated[list[str], typer.Option("--data", "-d", help="Text to train on (repeat the option).")],
    compare: Annotated[
        str, typer.Option(help="attention (variants of it) or objectives (mlm, clm, headless, headless_clm).")
    ] = ("attention"),
    arms: Annotated[str | None, typer.Option(help="Only these arms, as softmax,gated; all by default.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of each training.", min=1)] = 4096,
    seeds: Annotated[str, typer.Option(help="Seeds of each arm, as 0,1,2.")] = "0,1,2",
    recipe: Annotated[
        list[str] | None,
        typer.Option(help="Fields of the recipe, as hidden=96 (repeat the option); see `anisoscope pretrain --help`."),
    ] = None,
    texts: Annotated[list[str] | None, typer.Option(help="Text to measure on; embedded English by default.")] = None,
    limit: Annotated[int, typer.Option(help="Documents to measure on.", min=2)] = 64,
    threads: Annotated[int | None, typer.Option(help="CPU threads; all by default.", min=1)] = None,
    figures: Annotated[bool, typer.Option(help="Draw the figure.")] = True,
    out: Out = None,
    csv: Csv = None,
    existing: ExistingOption = "resume",
    json: Json = False,
) -> None:
    """Train variants of attention (or objectives) side by side and measure their geometry.

    Same data, seeds, sizes and steps for all; intervals over seeds. Kill it and repeat the command to go on.

    \b
    Examples:
      anisoscope variants --data enwik8 --steps 4096 --seeds 0,1,2 --out variants
      anisoscope variants --data enwik8 --arms softmax,gated,query_centred --recipe layers=2 --recipe hidden=64
      anisoscope variants --data enwik8 --compare objectives --out objectives
    """
    from anisoscope.studies.variants.study import VariantsSettings, run_variants
    from anisoscope.training.recipe import parse_seeds

    given: dict[str, Any] = {"data": data, "compare": compare, "steps": steps, "seeds": list(parse_seeds(seeds))}
    given |= {"arms": [] if arms is None else arms.split(","), "recipe": dict(map(_field, recipe or []))}
    given |= {"texts": texts or [], "limit": limit}
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    measurement = run_variants(
        VariantsSettings.check(given),
        out=out,
        existing=existing_policy(existing),
        announce=lambda line: typer.echo(line, err=True),
    )
    if json:
        finish(measurement, as_json=True, csv=csv)
    else:
        _show(measurement)
        if csv is not None:
            write_csv(csv, measurement.rows)
    if figures and measurement.run is not None:
        from anisoscope.report.figures.variants import figures_of_variants

        say_figures(measurement.run, figures_of_variants(measurement.run), quiet=json)


def _field(text: str) -> tuple[str, Any]:
    """`name=value` with the value as TOML has it, or as plain text."""
    import tomllib

    from anisoscope.errors import UsageError

    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError("cannot read this field of the recipe", got=text, expected="name=value, as hidden=96")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value


def _show(measurement: Measurement) -> None:
    """One line an arm, in each cell the mean over seeds and its difference to the control; then where the run is."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from anisoscope.studies.variants.rows import COLUMNS, DIFFERENCE, summary

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption="below each mean: minus the control, 95 % over seeds")
    table.add_column("arm", no_wrap=True)
    for _, _, heading in COLUMNS:
        table.add_column(heading, justify="right")
    for arm, line in summary(measurement.rows).items():
        cells = (_cell(line.get(metric), line.get(f"{metric}{DIFFERENCE}")) for _, metric, _ in COLUMNS)
        table.add_row(arm, *cells)
    console = Console()
    console.print(table)
    console.print(f"verdict: {measurement.verdict}", highlight=False, markup=False)
    if measurement.run is not None:
        console.print(f"run: {measurement.run.folder}", highlight=False, soft_wrap=True, markup=False)


def _cell(row: Row | None, difference: Row | None) -> str:
    """`0.312`, and below it `−0.041 ± 0.012`."""
    from anisoscope.report.terminal import number

    text = number(None if row is None else row.value)
    if difference is None or difference.value is None:
        return text
    if difference.high is None:
        return f"{text}\n{difference.value:+.3f}"
    return f"{text}\n{difference.value:+.3f} ± {difference.high - difference.value:.3f}"
