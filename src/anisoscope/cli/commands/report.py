"""One HTML page about any runs, which opens offline and can be mailed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders of any commands.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write (default: report.html).")] = None,
    title: Annotated[str | None, typer.Option("--title", help="Heading of the page (default: the models).")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Markdown for a model card instead, printed unless -o names a file.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file of another kind.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object: the file, its size, its runs.")] = False,
) -> None:
    """One HTML page about any runs, which opens offline and can be mailed: verdicts first, then everything to explore.

    \b
    Examples:
      anisoscope report runs/gpt2 -o report.html
      anisoscope report runs/* -o all.html --title "Five models on WikiText"
      anisoscope report runs/gpt2 --markdown >> README.md
    """
    from anisoscope.cli.output import print_json, say
    from anisoscope.report.page.write import write_page
    from anisoscope.runs.store import open_run
    from anisoscope.runs.writing import check_target

    if markdown:
        _markdown(runs, out, force=force, json=json)
        return
    out = out or Path("report.html")
    check_target(out, kind="page", inputs=runs, force=force)
    path = write_page([open_run(folder) for folder in runs], out, title=title)
    size = path.stat().st_size
    if json:
        print_json({"page": str(path), "bytes": size, "runs": [str(folder) for folder in runs]})
        return
    say(f"page: {path} ({size / 1e6:.1f} MB)")


def _markdown(runs: list[Path], out: Path | None, *, force: bool, json: bool) -> None:
    """Print a section for a model card, or write it."""
    from anisoscope.cli.output import print_json, say
    from anisoscope.errors import UsageError
    from anisoscope.report.markdown import markdown
    from anisoscope.runs.store import open_run
    from anisoscope.runs.writing import guarded

    if out is not None and out.suffix.lower() in (".html", ".htm"):
        raise UsageError("Markdown is no page", got=out, do="-o NAME.md, or leave --markdown out")
    text = markdown([open_run(folder) for folder in runs])
    if out is not None:
        with guarded(out, kind="markdown", inputs=runs, force=force) as partial:
            partial.write_text(text, encoding="utf-8")
    if json:
        print_json({"markdown": text, "runs": [str(folder) for folder in runs]})
    elif out is None:
        typer.echo(text, nl=False)
    else:
        say(f"Markdown: {out}")
