"""One HTML page of runs that opens offline and can be mailed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, of any commands.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option("--title", help="Heading of the page (default: the models).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file of another kind.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object: the file, its size, its runs.")] = False,
) -> None:
    """One HTML page of runs that opens offline and can be mailed: verdicts first, then everything to explore.

    \b
    Examples:
      anisoscope report runs/gpt2 -o report.html
      anisoscope report runs/* -o all.html --title "Five models on WikiText"
    """
    from anisoscope.cli.output import print_json, say
    from anisoscope.report.page.write import write_page
    from anisoscope.runs.store import open_run
    from anisoscope.runs.writing import check_target

    check_target(out, kind="page", inputs=runs, force=force)
    path = write_page([open_run(folder) for folder in runs], out, title=title)
    size = path.stat().st_size
    if json:
        print_json({"page": str(path), "bytes": size, "runs": [str(folder) for folder in runs]})
        return
    say(f"page: {path} ({size / 1e6:.1f} MB)")
