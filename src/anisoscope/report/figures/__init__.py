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
    """Draw the pictures of a run into its folder (or another), unless they are there; the files."""
    from anisoscope.report.figures.style import FORMATS, save

    folder = run.folder / "figures" if folder is None else folder
    written: list[Path] = []
    for name, make in figures_of(run).items():
        paths = [folder / f"{name}.{kind}" for kind in FORMATS]
        written += paths if all(path.exists() for path in paths) else save(make(run), folder, name)
    return written
