"""A tour of the main commands on built-in models and data, offline, in a few minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anisoscope.cli.flags import Json


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs, figures and page.")] = Path("demo"),
    json: Json = False,
) -> None:
    """Run the main commands on built-in models and data: offline, in a few minutes, with figures and a page.

    \b
    Examples:
      anisoscope demo
      anisoscope demo --out /tmp/demo
    """
    from anisoscope.cli.output import print_json, say
    from anisoscope.report.figures import draw
    from anisoscope.report.page.write import write_page
    from anisoscope.studies.demo import demo as run_demo

    parts = run_demo(out)
    runs = [part.measurement.run for part in parts if part.measurement.run is not None]
    figures = [path for run in runs for path in draw(run)]
    page = write_page(runs, out / "report.html", title="anisoscope demo")
    if json:
        rows = [row.as_dict() for part in parts for row in part.measurement.rows]
        print_json({"run": str(out), "verdict": " ".join(part.seen for part in parts), "measurements": rows})
        return
    for number, part in enumerate(parts, 1):
        say(f"{number}. {part.seen}", prose=True)
    say(f"page: {page}")
    say(f"figures: {len(figures)} files, {out}/*/figures/*.svg")
    say(f"next: anisoscope show {out / parts[0].name}")
