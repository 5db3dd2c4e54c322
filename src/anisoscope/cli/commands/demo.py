"""`anisoscope demo`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anisoscope.cli.output import Json, print_json, say_figures


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the runs and figures.")] = Path("demo"),
    json: Json = False,
) -> None:
    """The main job on what is embedded: offline, in a few minutes, with figures.

    \b
    Examples:
      anisoscope demo
      anisoscope demo --out /tmp/demo
    """
    from anisoscope.report.figures import block, calibrate, dynamics, layers, null
    from anisoscope.report.page.write import write_page
    from anisoscope.studies.demo import demo as run_demo

    draw = {
        "calibrate": lambda run: {"calibration": calibrate.figure_calibration},
        "layers": layers.figures_of_layers,
        "block": block.figures_of,
        "sweep": dynamics.figures_of_sweep,
        "null": lambda run: {"figure-17": lambda _: null.figure_17()},
    }
    parts = run_demo(out)
    figures = [
        path
        for part in parts
        if part.name in draw and part.measurement.run is not None
        for path in say_figures(part.measurement.run, draw[part.name](part.measurement.run), quiet=True)
    ]
    runs = [part.measurement.run for part in parts if part.measurement.run is not None]
    page = write_page(runs, out / "report.html", title="anisoscope demo")
    if json:
        rows = [row.as_dict() for part in parts for row in part.measurement.rows]
        print_json({"run": str(out), "verdict": "; ".join(part.seen for part in parts), "measurements": rows})
        return
    for number, part in enumerate(parts, 1):
        typer.echo(f"{number}. {part.seen}")
    typer.echo(f"page: {page}")
    typer.echo(f"figures: {len(figures)} files, {out}/*/figures/*.svg")
    typer.echo(f"next: anisoscope show {out / parts[0].name}")
