"""A run as a short Markdown text, for a pull request or the summary of a build: the sentence, the tables, the notes.

## anisoscope gate
**Holds: all 3 rules are kept.**
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from anisoscope.errors import printable
from anisoscope.report.terminal import sentence, story_of
from anisoscope.runs.story import Table

if TYPE_CHECKING:
    from anisoscope.runs.measurement import Measurement
    from anisoscope.runs.study import Study


def markdown(study: Study | None, measurement: Measurement) -> str:
    """What the terminal prints, as Markdown."""
    story = story_of(study, measurement)
    parts = [f"## anisoscope {_plain(measurement.command)}", f"**{_plain(sentence(measurement))}**"]
    parts += [_plain(line) for line in story.header if line]
    parts += [table_markdown(table) for table in story.tables]
    parts += [f"- {_plain(note)}" for note in measurement.notes]
    return "\n\n".join(parts) + "\n"


def table_markdown(table: Table) -> str:
    r"""A table with its title above and its caption below.

    >>> print(table_markdown(Table(("site", "value"), [("a|b", "0.1")])))
    | site | value |
    |---|---:|
    | a\|b | 0.1 |
    """
    marks = ["---" if place < table.text else "---:" for place in range(len(table.columns))]
    lines = [table.columns, *table.cells]
    body = ["| " + " | ".join(map(_plain, line)) + " |" for line in lines]
    text = "\n".join([body[0], "|" + "|".join(marks) + "|", *body[1:]])
    return "\n\n".join(filter(None, (_plain(table.title), text, _plain(table.caption))))


def _plain(text: str) -> str:
    """Text that stays text: names in it make no markup, no links and no new lines."""
    return re.sub(r"([\\`*_<>\[\]|#])", r"\\\1", " ".join(printable(text).split()))
