"""Figures for papers: SVG, PDF and PNG by matplotlib, from what a run folder holds.

The module of a study's name draws its runs: `figures(run)` gives a function for each picture, by the name of its file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from anisoscope.runs.store import Run

Draw = Callable[["Run"], "Figure"]


def figures_of(run: Run) -> Mapping[str, Draw]:
    """The pictures of a run; none where its study has no module here."""
    module = f"{__name__}.{run.command.replace('-', '_')}"
    return import_module(module).figures(run) if find_spec(module) is not None else {}


def draw(run: Run, folder: Path | None = None) -> list[Path]:
    """Draw the pictures of a run into another folder, or into its own unless they are there; the files."""
    from anisoscope.report.figures.style import FORMATS, save

    own = run.folder / "figures"
    written: list[Path] = []
    for name, make in figures_of(run).items():
        paths = [own / f"{name}.{kind}" for kind in FORMATS]
        there = folder is None and all(path.exists() for path in paths)
        written += paths if there else save(make(run), folder or own, name)
    return written
