"""The figures of the papers, drawn from a folder that `anisoscope paper` filled, and one page that shows them all.

    page = write_paper_page(Path("paper"))      # draws what is not drawn yet

The folder holds `results.json` (what each paper says, what was seen) and the runs. The page is one file: figures are
inlined as images, there is no script, and nothing is requested from anywhere.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib import import_module, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anisoscope.report.figures.style import FORMATS, save, stand_in
from anisoscope.report.page.policy import policy
from anisoscope.runs.store import Run, open_run
from anisoscope.runs.writing import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INHERENT = "Anisotropy Is Inherent to Self-Attention in Transformers (Godey, de la Clergerie & Sagot 2024)"
NOT_INHERENT = "Anisotropy is Not Inherent to Transformers (Machina & Mercer 2024)"
_HOLDS = {True: ("holds", "it holds"), False: ("fails", "it does not hold"), None: ("unseen", "not seen")}
_CLASSES = {"reproduced": "holds", "not reproduced": "fails", "failed": "fails"}
_SCALES = {
    "demo": "Scale: demo. Models are small stand-ins, trained here or not at all: what is seen on them says that the "
    "instrument works, and nothing about the published models. Figures marked reproduced or not need no published "
    "model: they are computed at their true size or in closed form.",
    "hub": "Scale: hub. Published checkpoints.",
}


@dataclass(frozen=True)
class Entry:
    """One figure of `results.json`, with the folder that its runs are told from."""

    folder: Path
    about: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.about["name"])

    @cached_property
    def runs(self) -> list[Run]:
        return [open_run(self.folder / place) for place in self.about["runs"]]

    def pictures(self) -> Iterator[tuple[str, Callable[[], Figure]]]:
        """(file name, what draws it) for each picture: one a function, and one a run unless they go together."""
        options = self.about["options"]
        for index, path in enumerate(self.about["draw"]):
            module, _, name = path.partition(".")
            function = getattr(import_module(f"anisoscope.report.figures.{module}"), name)
            part = chr(ord("a") + index) if len(self.about["draw"]) > 1 else ""
            file = f"figure_{self.name}{part}"
            if self.about["together"]:
                yield file, lambda f=function: f(self.runs, **options)
                continue
            for run in self.runs:
                suffix = f"_{run.name.partition('-')[2]}" if len(self.runs) > 1 else ""
                yield (file + suffix).rstrip("_"), lambda f=function, r=run: f(r, **options)


def read_entries(folder: Path) -> tuple[str, list[Entry]]:
    """The scale of a folder, and its figures."""
    written = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return written["scale"], [Entry(folder, about) for about in written["figures"]]


def draw_entry(entry: Entry) -> list[Path]:
    """The SVG files of a figure; drawn unless they are there and newer than its runs."""
    if entry.about["failed"]:
        return []
    measured = max((run.folder / "manifest.json").stat().st_mtime for run in entry.runs)
    found = []
    for file, drawing in entry.pictures():
        paths = [entry.folder / "figures" / f"{file}.{kind}" for kind in FORMATS]
        if not all(path.exists() and path.stat().st_mtime >= measured for path in paths):
            made = drawing()
            if entry.about["stands_in"]:
                stand_in(made, entry.about["stands_in"])
            save(made, entry.folder / "figures", file)
        found += [path for path in paths if path.suffix == ".svg"]
    return found


def write_paper_page(folder: Path, *, advance: Callable[[], None] = lambda: None) -> tuple[Path, int]:
    """Draw what is to be drawn and write `index.html`; its path and the number of pictures."""
    scale, entries = read_entries(folder)
    sections, count = [], 0
    for entry in entries:
        pictures = draw_entry(entry)
        sections.append(_section(entry, pictures))
        count += len(pictures)
        advance()
    found = [entry.about["status"] for entry in entries]
    style = resources.files("anisoscope.report.page").joinpath("assets", "paper.css").read_text(encoding="utf-8")
    parts = {
        "policy": policy(styles=[style]),
        "style": style,
        "scale": _SCALES[scale],
        "counts": ", ".join(f"{found.count(word)} {word}" for word in dict.fromkeys(found)),
        "contents": "".join(map(_contents, entries)),
        "figures": "".join(sections),
    }
    path = folder / "index.html"
    with atomic(path) as partial:
        partial.write_text(_PAGE.format(**parts), encoding="utf-8")
    return path, count


def _contents(entry: Entry) -> str:
    name, title = escape(entry.name), escape(entry.about["title"])
    return f'<li><a href="#f{name}">{name}</a> {title} {_mark(entry)}</li>'


def _mark(entry: Entry) -> str:
    word = entry.about["status"]
    return f'<span class="status {_CLASSES.get(word, "unseen")}">{escape(word)}</span>'


def _section(entry: Entry, pictures: Sequence[Path]) -> str:
    about, name, title = entry.about, escape(entry.name), escape(entry.about["title"])
    images = "".join(f'<img alt="Figure {name}: {title}" src="{_inline(path)}">' for path in pictures)
    stands = f'<p class="mark">Stand-in: {escape(about["stands_in"])}.</p>' if about["stands_in"] else ""
    body = f'<p class="fails">{escape(about["failed"])}</p>' if about["failed"] else f"{images}{stands}"
    paper = NOT_INHERENT if entry.name.startswith("M") else INHERENT
    commands = [f"anisoscope paper {entry.name} --scale {read_entries(entry.folder)[0]}"]
    commands += [f"anisoscope run {place}/run.toml" for place in about["runs"]]
    return (
        f'<section id="f{name}"><h2>{name}&ensp;{title} {_mark(entry)}</h2>{body}<p>{escape(about["caption"])}</p>'
        f"{_statements(about)}<details><summary>Source and commands</summary><p>Of {escape(paper)}.</p>"
        f"<pre>{escape(chr(10).join(commands))}</pre></details></section>"
    )


def _statements(about: dict[str, Any]) -> str:
    if not about["statements"]:
        return ""
    rows = []
    for said in about["statements"]:
        kind, verdict = _HOLDS[said["holds"]]
        verdict += " on the stand-ins" if about["stands_in"] and said["holds"] is not None else ""
        rows.append(
            f'<tr><td>{escape(said["says"])}</td><td class="{kind}">{verdict}</td><td>{escape(said["seen"])}</td></tr>'
        )
    head = "<thead><tr><th>The paper says</th><th>here</th><th>seen</th></tr></thead>"
    return f"<table>{head}<tbody>{''.join(rows)}</tbody></table>"


def _inline(path: Path) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>The two papers, figure by figure</title><style>{style}</style></head>
<body><header><h1>The two papers, figure by figure</h1>
<p>{scale}</p><p class="counts">{counts}.</p></header>
<nav aria-label="Figures"><ol>{contents}</ol></nav>
<main>{figures}</main></body></html>
"""
