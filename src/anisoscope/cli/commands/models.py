"""The models of the two papers, and which are at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anisoscope.cli.flags import Json


def models(
    modality: Annotated[str | None, typer.Option(help="Only text, speech or vision.")] = None,
    figure: Annotated[str | None, typer.Option(help="Only those of a figure, e.g. 1, 3a, M1.")] = None,
    models_dir: Annotated[Path | None, typer.Option(help="Mirror laid out as owner/name[@revision].")] = None,
    json: Json = False,
) -> None:
    """The models of the two papers, and which of them are at hand on this machine.

    \b
    Examples:
      anisoscope models
      anisoscope models --modality speech --models-dir /mirror
    """
    from anisoscope.cli.output import print_json
    from anisoscope.errors import UsageError
    from anisoscope.models.catalogue import at_hand, catalogue, figure_order
    from anisoscope.runs.settings import nearest

    known = {
        "modality": {one.modality for one in catalogue()},
        "figure": {f for one in catalogue() for f in one.figures},
    }
    for name, given in (("modality", modality), ("figure", figure)):
        if given is not None and given not in known[name]:
            do = nearest(given, known[name])[2:] or None
            raise UsageError(
                f"there is no such {name}", got=given, expected=", ".join(sorted(known[name], key=figure_order)), do=do
            )
    entries = [(entry, at_hand(entry, models_dir)) for entry in catalogue(modality=modality, figure=figure)]
    if json:
        found = [
            {
                "id": entry.id,
                "label": entry.label,
                "modality": entry.modality,
                "figures": list(entry.figures),
                "our_choice": entry.our_choice or None,
                "at_hand": None if where is None else str(where),
            }
            for entry, where in entries
        ]
        print_json({"models": found})
        return
    from textwrap import fill

    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, width in (("model", 40), ("modality", 8), ("figures", 15), ("here", 4)):  # 80 columns in all
        table.add_column(name, overflow="fold", width=width)
    seeds = [entry for entry, _ in entries if entry.series == "multiberts"]
    for entry, where in entries:
        if entry in seeds[1:] and where is None:
            continue  # twenty-five lines that differ in a digit
        several = f" … seed_{len(seeds) - 1}" if entry in seeds[:1] and len(seeds) > 1 else ""
        figures, here = ", ".join(entry.figures), "yes" if where else ""
        table.add_row(f"{entry.id}{several}", entry.modality, figures, here)
    console = Console()
    console.print(table)
    for entry, _ in entries:
        if entry.our_choice:
            typer.echo(fill(f"our choice for {entry.label}: {entry.our_choice}", console.width, subsequent_indent="  "))
    typer.echo(f"{sum(where is not None for _, where in entries)} of {len(entries)} are at hand (mirror or hub cache).")
