"""A run on the terminal: the sentence first, then the study's own story. Everything comes from the stored rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anisoscope.errors import printable
from anisoscope.inference.metrics import declared
from anisoscope.runs.measurement import sentence_of
from anisoscope.runs.story import Story, Table, interval, number, valued
from anisoscope.runs.table import Row

if TYPE_CHECKING:
    from rich.console import Console

    from anisoscope.runs.measurement import Measurement
    from anisoscope.runs.study import Study

_FEW = 24  # rows that a plain table shows before it asks for --all


def tell(study: Study | None, measurement: Measurement, *, everything: bool = False, console: Any = None) -> None:
    """Print a measurement: what it says, the tables, the notes, where it is."""
    from rich.console import Console

    out: Console = console or Console(highlight=False)
    story = story_of(study, measurement)
    _say(out, f"{measurement.command}: {sentence_of(measurement.verdict)}".removesuffix(": "), style="bold")
    for line in story.header:
        _say(out, line) if line else None
    for table in story.whole() if everything else story.tables:
        _say(out, "")
        out.print(drawn(table, out.width), crop=False)
    if story.tables:
        _say(out, "")
    for line in story.lines:
        _say(out, line)
    for note in measurement.notes:
        _say(out, f"note: {note}", style="yellow")
    if (hidden := story.left_out()) and not everything:
        _say(out, f"{hidden} more line{'s' * (hidden != 1)} with --all")
    if measurement.run is not None:
        _say(out, f"run: {measurement.run.folder}", prose=False)


def story_of(study: Study | None, found: Measurement) -> Story:
    """What a study says about its verdicts or its rows; a plain table where it has no story."""
    if study is not None and study.judged is not None and found.verdicts:
        return study.judged(found.verdicts)
    return (plain if study is None or study.story is None or not found.rows else study.story)(found.rows)


def _say(console: Console, text: str, style: str | None = None, *, prose: bool = True) -> None:
    """Sentences are folded between words on a screen, and stay whole in a pipe, as paths do anywhere."""
    folded = console.is_jupyter or (prose and console.is_terminal)
    console.print(printable(text), style=style, markup=False, highlight=False, soft_wrap=not folded)


def drawn(table: Table, width: int) -> Any:
    """A table of rich: where the screen is too narrow names are folded, and numbers reach beyond it, whole."""
    from rich import box
    from rich.console import Console
    from rich.measure import Measurement as Measured
    from rich.table import Table as RichTable
    from rich.text import Text

    title, caption = (Text(printable(text)) if text else None for text in (table.title, table.caption))
    shown = RichTable(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), title=title, caption=caption
    )
    shown.title_justify = shown.caption_justify = "left"
    for place, name in enumerate(table.columns):
        left = place < table.text
        shown.add_column(Text(printable(name)), justify="left" if left else "right", no_wrap=not left, overflow="fold")
    for cells in table.cells:
        shown.add_row(*(Text(printable(cell)) for cell in cells))
    endless = Console(width=10_000)
    needed = Measured.get(endless, endless.options, shown).minimum
    shown.width = needed if needed > width else None
    return shown


def plain(rows: Sequence[Row]) -> Story:
    """Whatever a study found: sites side by side where a few share their metrics, else line by line."""
    rows = [row for row in rows if row.value is not None or row.metric != "verdict"]
    sites, names = list(dict.fromkeys(row.site for row in rows)), list(dict.fromkeys(map(_name, rows)))
    cells = {(row.site, _name(row)): row for row in rows}
    if 1 < len(sites) <= 5 and len(cells) == len(rows) == len(sites) * len(names):
        return Story([Table(("", *sites), [[name, *(valued(cells[site, name]) for site in sites)] for name in names])])
    columns = ("site", "metric", "value", "95 % interval", "isotropic")
    body = [
        [row.site, _name(row), valued(row), interval(row), "" if row.null is None else number(row.null)] for row in rows
    ]
    told = [at for at in (3, 4) if any(line[at] not in ("", line[2]) for line in body)]  # more than the value does
    kept = [*([0] if len(sites) > 1 else []), 1, 2, *told]
    columns, body = [columns[at] for at in kept], [[line[at] for at in kept] for line in body]
    first, rest = (Table(columns, part, text=kept.index(2)) for part in (body[:_FEW], body[_FEW:]))
    return Story([first], more=[rest] if rest.cells else ())


def _name(row: Row) -> str:
    """The metric with whatever tells it from others of its site: step, seed, quantity, positions."""
    known = declared(row.metric)
    parts = [row.metric if known is None else known.label]
    parts += [f"step {row.step}"] if row.step is not None else []
    parts += [f"seed {row.seed}"] if row.seed is not None else []
    parts += [f"at {number(row.at)}"] if row.at is not None else []
    parts += [row.positions] if row.positions != "all" else []
    return ", ".join(parts)
