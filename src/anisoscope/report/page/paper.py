"""The figures of the papers, drawn from a folder that `anisoscope paper` filled, and one page that shows them all.

    page = write_paper_page(Path("paper"))      # draws what is missing

The folder holds `results.json` (what each paper says, what was seen) and the runs. The page is one file: figures are
inlined as images, there is no script, and nothing is requested from anywhere.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib import import_module, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anisoscope.report.figures.style import FORMATS, footnote, save, stand_in
from anisoscope.report.page.policy import policy
from anisoscope.runs.store import Run, open_run
from anisoscope.runs.writing import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INHERENT = "Anisotropy Is Inherent to Self-Attention in Transformers (Godey, de la Clergerie & Sagot 2024)"
NOT_INHERENT = "Anisotropy is Not Inherent to Transformers (Machina & Mercer 2024)"
_HOLDS = {True: ("holds", "holds"), False: ("fails", "fails"), None: ("unseen", "not testable here")}
_MANY = 4  # lines under a figure that are folded
_CLASSES = {"holds": "holds", "fails": "fails", "failed": "fails"}
_SCALES = {
    "demo": "Scale: demo. Models are small stand-ins, trained here or not at all: what is seen on them says that the "
    "instrument works, and nothing about the published models. Figures without stand-ins need no published model: they "
    "are computed at their true size or in closed form.",
    "local": "Scale: local. Real weights that were at hand, each under its own name: the paper's own model, or another "
    "model of the family. What fails on another model of the family limits the statement; it does not refute it.",
    "hub": "Scale: hub. Published checkpoints.",
}
_PROTOCOLS = {
    "ours": "Layers are the raw states of embeddings and blocks, with what a final norm makes of the last one apart; "
    "p-values are those of permutation tests.",
    "paper": "The papers' own protocol: layers as the library lists its hidden states, one text per sample, asymptotic "
    "p-values; published checkpoints at fixed commits, where the recipes know one.",
}


@dataclass(frozen=True)
class Entry:
    """One figure of `results.json`, with the folder that its runs lie in."""

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
                suffix = f"_{run.name}" if len(self.runs) > 1 else ""
                yield file + suffix, lambda f=function, r=run: f(r, **options)

    @property
    def fails(self) -> bool:
        """Whether a statement fails on something that is not a stand-in."""
        return not self.about["stands_in"] and any(said["holds"] is False for said in self.about["statements"])


def read_folder(folder: Path) -> dict[str, Any]:
    """What `results.json` of a folder says."""
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def draw_entry(entry: Entry) -> list[Path]:
    """The SVG files of a figure; drawn unless they are there and newer than its runs."""
    if entry.about["failed"] or not entry.runs:
        return []
    measured = max((run.folder / "manifest.json").stat().st_mtime for run in entry.runs)
    found = []
    for file, drawing in entry.pictures():
        paths = [entry.folder / "figures" / f"{file}.{kind}" for kind in FORMATS]
        if not all(path.exists() and path.stat().st_mtime >= measured for path in paths):
            made = drawing()
            mark(made, entry.about, file)
            save(made, entry.folder / "figures", file)
        found += [path for path in paths if path.suffix == ".svg"]
    return found


def mark(figure: Figure, about: dict[str, Any], file: str) -> None:
    """Say on the figure itself what stands under it; what each model is, the page says."""
    if about["stands_in"]:
        stand_in(figure, about["stands_in"])
    marks = {model.rpartition("/")[2]: one for model, one in about["marks"].items()}
    marks = {model: one for model, one in marks.items() if file.endswith(f"_{model}")} or marks  # one model alone
    drawn = {place.rpartition("/")[2] for place in about["runs"]}
    if marks and not drawn & marks.keys():  # models that a statement is held against, and the picture does not show
        return
    kinds: dict[str, list[str]] = {}
    for model, one in marks.items():
        kinds.setdefault(one["whose"], []).append(model)
    for kind, models in kinds.items():
        word = kind if len(models) == 1 else kind.replace("another", "other").replace("model", "models")
        footnote(figure, f"{word}: {marks[models[0]]['about'] if len(marks) == 1 else ', '.join(models)}")
    for words in about["data"]:
        footnote(figure, f"DATA: {words}")


def write_paper_page(folder: Path, *, advance: Callable[[], None] = lambda: None) -> tuple[Path, int]:
    """Draw what is to be drawn and write `index.html`, what fails first; its path and the number of pictures."""
    written = read_folder(folder)
    entries = [Entry(folder, about) for about in written["figures"]]
    entries.sort(key=lambda entry: not entry.fails)
    sections, count = [], 0
    for entry in entries:
        pictures = draw_entry(entry)
        sections.append(_section(entry, pictures, written))
        count += len(pictures)
        advance()
    found = [entry.about["status"] for entry in entries]
    style = resources.files("anisoscope.report.page").joinpath("assets", "paper.css").read_text(encoding="utf-8")
    parts = {
        "policy": policy(styles=[style]),
        "style": style,
        "scale": f"{_SCALES[written['scale']]} {_PROTOCOLS[written['protocol']]}",
        "counts": f"{len(found)} figures: {', '.join(_counted(found.count(one), one) for one in dict.fromkeys(found))}",
        "failing": _failing(entries),
        "contents": "".join(map(_contents, entries)),
        "figures": "".join(sections),
    }
    path = folder / "index.html"
    with atomic(path) as partial:
        partial.write_text(_PAGE.format(**parts), encoding="utf-8")
    return path, count


def _counted(count: int, word: str) -> str:
    """How many figures have a status, as a reader would say it.

    >>> _counted(8, "fails"), _counted(1, "holds"), _counted(2, "drawn")
    ('8 fail', '1 holds', '2 drawn')
    """
    return f"{count} {word.removesuffix('s') if count != 1 and word in ('fails', 'holds') else word}"


def _failing(entries: Sequence[Entry]) -> str:
    """What fails, before everything else."""
    rows = [
        f'<tr><td><a href="#f{escape(entry.name)}">{escape(entry.name)}</a></td>{_said(said)}</tr>'
        for entry in entries
        if entry.fails
        for said in entry.about["statements"]
        if said["holds"] is False
    ]
    if not rows:
        return ""
    head = "<thead><tr><th>Figure</th><th>The paper says</th><th>here</th><th>seen</th></tr></thead>"
    return f'<h2>What does not hold</h2><table class="failing">{head}<tbody>{"".join(rows)}</tbody></table>'


def _contents(entry: Entry) -> str:
    name, title = escape(entry.name), escape(_title(entry))
    return f'<li><a href="#f{name}">{name}</a> {title} {_mark(entry)}</li>'


def _title(entry: Entry) -> str:
    return f"{entry.about['title']} (stand-ins)" if entry.about["stands_in"] else str(entry.about["title"])


def _mark(entry: Entry) -> str:
    word = entry.about["status"]
    return f'<span class="status {_CLASSES.get(word, "unseen")}">{escape(word)}</span>'


def _section(entry: Entry, pictures: Sequence[Path], written: dict[str, Any]) -> str:
    about, name, title = entry.about, escape(entry.name), escape(_title(entry))
    images = "".join(f'<img alt="Figure {name}: {title}" src="{_inline(path)}">' for path in pictures)
    body = f'<p class="fails">{escape(about["failed"])}</p>' if about["failed"] else f"{images}{_marks(about)}"
    paper = NOT_INHERENT if entry.name.startswith("M") else INHERENT
    commands = [f"anisoscope paper {entry.name} --scale {written['scale']} --protocol {written['protocol']}"]
    commands += [f"anisoscope run {place}/run.toml" for place in about["runs"]]
    caption = f"<p>{_with_code(about['caption'])}</p>" if pictures else ""
    return (
        f'<section id="f{name}"><h2>{name}&ensp;{title} {_mark(entry)}</h2>{_statements(about)}{body}'
        f"{caption}<details><summary>Source and commands</summary>"
        f"<p>Of {escape(paper)}.</p>"
        f"<pre>{escape(chr(10).join(commands))}</pre></details></section>"
    )


def _with_code(text: str) -> str:
    """Text whose words between backticks are code.

    >>> _with_code("see `measure --maps positions` <here>")
    'see <code>measure --maps positions</code> &lt;here&gt;'
    """
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _marks(about: dict[str, Any]) -> str:
    """What stands under the figure: stand-ins, other models, other data, nothing at all."""
    stand_ins = f'<p class="mark">Stand-in: {escape(about["stands_in"])}.</p>' if about["stands_in"] else ""
    lines = [f"{model}: {one['whose']}: {one['about']}." for model, one in about["marks"].items()]
    lines += [f"Data: {words}." for words in about["data"] if about["runs"]]
    lines += [f"{about['not_testable']}."] if about["not_testable"] else []
    under = "".join(f'<p class="under">{escape(line)}</p>' for line in lines)
    if len(lines) > _MANY:
        under = f"<details><summary>{len(about['marks'])} models and their data</summary>{under}</details>"
    return stand_ins + under


def _statements(about: dict[str, Any]) -> str:
    if not about["statements"]:
        return ""
    ordered = sorted(about["statements"], key=lambda said: {False: 0, True: 1, None: 2}[said["holds"]])
    rows = [f"<tr>{_said(said, stand_ins=bool(about['stands_in']))}</tr>" for said in ordered]
    head = "<thead><tr><th>The paper says</th><th>here</th><th>seen</th></tr></thead>"
    return f"<table>{head}<tbody>{''.join(rows)}</tbody></table>{''.join(map(_by_input, ordered))}"


def _said(said: dict[str, Any], *, stand_ins: bool = False) -> str:
    """A statement: its words with their place, the verdict, and the numbers with how easily it would pass."""
    kind, verdict = _HOLDS[said["holds"]]
    verdict += " on the stand-ins" if stand_ins and said["holds"] is not None else ""
    quote = escape(said["quote"])
    words = f"<q>{quote}</q>" if said["said_by"] == "text" else f"{quote} <em>(our reading of a picture)</em>"
    about = f'<br><span class="about">{escape(said["about"])}</span>' if said["about"] else ""
    on = f" (on {', '.join(said['on'])}, another model of the family)" if said["on"] else ""
    chance = f'<br><span class="about">{escape(said["about_chance"])}</span>' if said["about_chance"] else ""
    mark = "§&nbsp;" if said["section"][:1].isdigit() else ""
    source = f'<span class="about">{mark}{escape(said["section"])}</span>'
    return (
        f'<td>{words} {source}{about}</td><td class="{kind}">{verdict}</td><td>{escape(said["seen"] + on)}{chance}</td>'
    )


def _by_input(said: dict[str, Any]) -> str:
    """Which experiments on the untrained block a statement holds in."""
    if not said["by_input"]:
        return ""
    rows = "".join(
        f'<tr><td>{escape(label)}</td><td class="{_HOLDS[seen["holds"]][0]}">{_HOLDS[seen["holds"]][1]}</td>'
        f"<td>{escape(seen['seen'])}</td></tr>"
        for label, seen in said["by_input"].items()
    )
    summary = f"Under every input: {escape(said['about'] or said['quote'])}"
    return f"<details open><summary>{summary}</summary><table><tbody>{rows}</tbody></table></details>"


def _inline(path: Path) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>The two papers, figure by figure</title><style>{style}</style></head>
<body><header><h1>The two papers, figure by figure</h1>
<p>{scale}</p><p class="counts">{counts}.</p></header>
{failing}
<nav aria-label="Figures"><ol>{contents}</ol></nav>
<main>{figures}</main></body></html>
"""
