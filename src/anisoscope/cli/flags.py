"""Options that several commands share; light to import, so that their help is instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Csv = Annotated[Path | None, typer.Option("--csv", help="Also write the tidy table to this CSV file.")]
Markdown = Annotated[Path | None, typer.Option("--markdown", help="Also write what is printed as Markdown.")]
Force = Annotated[bool, typer.Option("--force", help="Let output files overwrite files of another kind.")]
All = Annotated[bool, typer.Option("--all", help="Print every table.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Figures = Annotated[bool, typer.Option("--figures/--no-figures", help="Draw the figures.", show_default=False)]
RunFolder = Annotated[Path | None, typer.Option("--out", "-o", help="Run folder (default: under anisoscope-runs/).")]
