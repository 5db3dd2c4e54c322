"""Runs as Markdown for a model card: what was found, under which protocol, how to repeat it, what to cite.

Names of models, data and sites are foreign text: in running text every character that Markdown or HTML could read is
escaped, and blocks of code are fenced with more backticks than they hold.

>>> escaped("a|b <i> [x](y) *z*\\n# no")
'a\\\\|b &lt;i&gt; \\\\[x\\\\](y) \\\\*z\\\\* # no'
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from anisoscope import __version__
from anisoscope.errors import printable
from anisoscope.report.page.data import run_labels
from anisoscope.report.terminal import story_of
from anisoscope.runs.measurement import Measurement, sentence_of
from anisoscope.runs.store import Run
from anisoscope.runs.story import Table
from anisoscope.runs.study import Study, study_of

BEGINS = "<!-- anisoscope"  # a file that begins like this may be written again
LONGEST = 40  # lines of a table
_INVISIBLE = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
CITATION = f"""\
@software{{anisoscope,
  title = {{anisoscope: an instrument for the geometry of neural representations}},
  author = {{{{The anisoscope developers}}}},
  version = {{{__version__}}}
}}
@inproceedings{{godey-etal-2024-anisotropy,
  title = {{Anisotropy Is Inherent to Self-Attention in Transformers}},
  author = {{Godey, Nathan and de la Clergerie, Éric and Sagot, Benoît}},
  booktitle = {{Proceedings of EACL 2024}},
  year = {{2024}}
}}"""


def markdown(runs: Sequence[Run]) -> str:
    """A section for a model card."""
    labels = run_labels(runs)
    parts = [line for run, label in zip(runs, labels, strict=True) for line in _run(run, label)]
    head = [f"{BEGINS} {__version__} -->", "## Geometry of the representations"]
    words = f"Measured with anisoscope {__version__}. Intervals are 95 %; *isotropic* is what an isotropic cloud gives."
    return "\n\n".join([*head, words, *parts, "### Citation", _fenced(CITATION, "bibtex")]) + "\n"


def summary(study: Study | None, measurement: Measurement) -> str:
    """What the terminal prints, for a pull request or the summary of a build."""
    story = story_of(study, measurement)
    parts = [f"{BEGINS} {__version__} -->", f"## anisoscope {escaped(measurement.command)}"]
    parts += [f"**{escaped(sentence_of(measurement.verdict))}**", *(escaped(line) for line in story.header if line)]
    parts += [_table(table) for table in story.tables]
    parts += [f"- {escaped(note)}" for note in measurement.notes]
    return "\n\n".join(parts) + "\n"


def escaped(text: object) -> str:
    """Foreign text on one line, read as text."""
    line = printable(" ".join(str(text).split()))
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", line)


def _run(run: Run, label: str) -> list[str]:
    manifest, found = run.manifest, Measurement.of_run(run)
    story = story_of(study_of(run), found)
    name = label if label == run.command else f"{label} ({run.command})"
    notes = [f"- {escaped(note)}" for note in manifest.get("notes") or ()]
    settings = {key: value for key, value in (manifest.get("settings") or {}).items() if value is not None}
    plan = tomli_w.dumps({"command": run.command, "settings": settings})
    plan = _INVISIBLE.sub(lambda sign: f"\\u{ord(sign[0]):04x}", plan)  # as TOML may write them, too
    parts = [
        f"### {escaped(name)}",
        escaped(sentence_of(found.verdict)),
        *(_table(table) for table in story.tables if table.cells),
        "\n".join(notes),
        _words("Protocol", manifest.get("protocol") or {}),
        _words("Data", manifest.get("data") or {}),
        "<details><summary>Settings, for <code>anisoscope run</code></summary>",
        _fenced(plan, "toml"),
        "</details>",
    ]
    return [part for part in parts if part]


def _table(table: Table) -> str:
    marks = ["---" if place < table.text else "---:" for place in range(len(table.columns))]
    lines = [[escaped(cell) for cell in cells] for cells in (table.columns, *table.cells[:LONGEST])]
    lines.insert(1, marks)
    left_out = len(table.cells) - LONGEST
    more = f"\n\n{left_out} more lines are in the run." if left_out > 0 else ""
    title = f"**{escaped(table.title)}**\n\n" if table.title else ""
    return title + "\n".join(f"| {' | '.join(line)} |" for line in lines) + more


def _words(title: str, values: Mapping[str, Any]) -> str:
    """`**Data.** name: embedded text; tokens: 33421`; a line for each model where there are several."""
    inner = [(name, value) for name, value in values.items() if isinstance(value, Mapping)]
    told = [_joined(value) for _, value in inner] if inner else [_joined(values)]
    if len(set(told)) > 1:
        told = [f"{escaped(name)}: {words}" for (name, _), words in zip(inner, told, strict=True)]
    return "\n".join(f"**{title}.** {words}" for words in dict.fromkeys(told) if words)


def _joined(values: Mapping[str, Any]) -> str:
    return "; ".join(f"{escaped(name)}: {escaped(value)}" for name, value in values.items() if value not in (None, 0))


def _fenced(text: str, language: str) -> str:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
