"""One style for every figure: readable in print at column width, safe for colour-blind readers.

The palette is Okabe & Ito's (2008) with three more colours, ordered so that neighbours differ in lightness too. None is
grey, which is for nulls and for what is switched off. A model keeps its colour in every figure of a run because colours
go by the order of the models, not by what a panel happens to show.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from anisoscope.errors import StoreError
from anisoscope.runs.writing import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from anisoscope.runs.store import Run

Side = Literal["right", "left", "center"]

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B4B9A", "#882255", "#8C510A")
INK, FAINT, NULL = "#222222", "#8A8A8A", "#444444"
COLUMN, WIDE = 3.4, 7.0  # inches: one and two columns of print
MARKERS = ("o", "s", "^", "D", "v", "P", "<", "X", ">")  # no two neighbours alike: they share a colour
GLYPHS = "●■▲◆▼✚◀✖▶"
FORMATS = ("svg", "pdf", "png")
_DRAWING = {"GlyphOrder", "head", "hhea", "hmtx", "maxp", "loca", "glyf", "cmap", "cvt ", "fpgm", "prep"}  # of a font

_SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.2,
    "figure.dpi": 110,
    "savefig.dpi": 200,
    "savefig.pad_inches": 0.04,
    "svg.fonttype": "none",
    "svg.hashsalt": "anisoscope",  # the same run gives the same bytes
    "pdf.fonttype": 42,
}


@contextmanager
def style() -> Iterator[None]:
    """Draw inside this: `with style(): fig = figure_1(run)`."""
    import matplotlib

    matplotlib.use("agg", force=False)
    from matplotlib import rc_context

    with rc_context(_SETTINGS), _names_as_they_are():
        yield


@contextmanager
def _names_as_they_are() -> Iterator[None]:
    """A name with two dollar signs is no formula unless it reads as one; letters that the font lacks, and names that
    leave no room for the drawing, are nothing to warn of."""
    from matplotlib import cbook

    is_math = cbook.is_math_text
    cbook.is_math_text = lambda text: is_math(text) and _is_formula(str(text))  # what every text asks when it is drawn
    try:
        with warnings.catch_warnings():
            for words in ("Glyph .* missing", "constrained_layout not applied"):
                warnings.filterwarnings("ignore", words, UserWarning)
            yield
    finally:
        cbook.is_math_text = is_math


@cache
def _is_formula(text: str) -> bool:
    from matplotlib.mathtext import MathTextParser

    try:
        MathTextParser("path").parse(text)
    except ValueError:
        return False
    return True


def colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def marker(index: int) -> str:
    """The marker that goes with `colour(index)`: the pair is unique for 81 lines."""
    return MARKERS[_shape(index)]


def glyph(index: int) -> str:
    """The same marker as a letter, for labels."""
    return GLYPHS[_shape(index)]


def _shape(index: int) -> int:
    return (index + index // len(PALETTE)) % len(MARKERS)


def heading(figure: Figure, text: str) -> None:
    """The title of a whole figure; it begins with the paper's number where the figure is one of the paper's."""
    figure.suptitle(text, fontsize=8.5, fontweight="bold", x=0.01, ha="left")


def null_line(axes: Axes, value: float, text: str, *, side: Side = "right", above: bool = True) -> None:
    """A null or another reference, dotted and named, as every figure has it."""
    axes.axhline(value, color=NULL, linestyle=":", linewidth=1)
    beside(axes, text, value, side=side, above=above)


def beside(axes: Axes, text: str, value: float, *, side: Side = "right", above: bool = True, **more: Any) -> None:
    """Small words over or under a height of the vertical axis."""
    at, shift = {"right": (1.0, -2), "left": (0.0, 2), "center": (0.5, 0)}[side]
    axes.annotate(
        text,
        (at, value),
        xycoords=("axes fraction", "data"),
        xytext=(shift, 2 if above else -2),
        textcoords="offset points",
        ha=side,
        va="bottom" if above else "top",
        **{"fontsize": 6, "color": NULL, **more},
    )


def subplots(rows: int = 1, columns: int = 1, *, size: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    """A figure of this size (inches) and its panels, as `plt.subplots` gives them."""
    import matplotlib.pyplot as plt

    return plt.subplots(rows, columns, figsize=size, layout="constrained", **options)


def side_by_side(count: int, height: float, width: float | None = None) -> tuple[Figure, list[Axes]]:
    """Panels in a row that share their vertical axis; a single one is a column wide."""
    size = (width or (WIDE if count > 1 else COLUMN), height)
    figure, panels = subplots(1, count, size=size, sharey=True, squeeze=False)
    return figure, list(panels[0])


def missing(run: Run, got: str, command: str) -> StoreError:
    """What to raise where a run does not hold what a figure shows."""
    what = "this run does not hold what the figure shows"
    return StoreError(what, where=run.folder, got=got, expected=f"a run of `anisoscope {command}`")


def stand_in(figure: Figure, what: str = "stand-in models, not the published checkpoints") -> None:
    """Mark a figure whose models are stand-ins."""
    footnote(figure, f"STAND-IN: {what}", shade="#B00020")


def bars_told(ends: Iterable[tuple[float | None, float | None]]) -> str:
    """What bars are, said only where some interval is known and so drawn.

    >>> bars_told([(None, None), (0.1, 0.3)]), bars_told([(None, None)])
    ('; bars: 95 % intervals', '')
    """
    return "; bars: 95 % intervals" if any(None not in pair for pair in ends) else ""


def footnote(figure: Figure, text: str, *, shade: str = NULL) -> None:
    """Write a line below everything else (files are cut to what is drawn)."""
    words = textwrap.fill(text, width=int(20 * figure.get_figwidth()))  # no wider than the figure
    figure.draw_without_rendering()  # now it is known how far down the drawing reaches, in inches
    lowest = min(0.0, figure.get_tightbbox().y0 / figure.get_figheight())
    figure.text(0.995, lowest - 0.01, words, ha="right", va="top", fontsize=6, color=shade, fontweight="bold")


def save(figure: Figure, folder: Path | str, name: str, *, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the figure as SVG, PDF and PNG; the file names of what was written."""
    import matplotlib.pyplot as plt

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with style(), _glyphs_alone():
        if engine := figure.get_layout_engine():  # the layout is found once, for all formats
            engine.execute(figure)
            figure.set_layout_engine(None)
        edge = figure.get_tightbbox().padded(_SETTINGS["savefig.pad_inches"])
        for kind in formats:
            path = folder / f"{name}.{kind}"
            metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
            with atomic(path) as partial:  # an existing picture is whole, and not drawn again
                figure.savefig(partial, format=kind, metadata=metadata, bbox_inches=edge)
            written.append(path)
    plt.close(figure)
    return written


@contextmanager
def _glyphs_alone() -> Iterator[None]:
    """Keep only what draws of the fonts of a PDF: cutting down names and typesetting rules takes most of the time.

    A PDF itself says which glyph stands where and which letter it is, so readers do not look at them.
    """
    from fontTools import subset

    load = subset.load_font

    def load_outlines(path: Any, options: Any) -> Any:
        font = load(path, options)
        font.setGlyphOrder([str(place) for place in range(font["maxp"].numGlyphs)])
        for tag in {*font.keys()} - _DRAWING:
            del font[tag]
        return font

    subset.load_font = load_outlines
    try:
        yield
    finally:
        subset.load_font = load
