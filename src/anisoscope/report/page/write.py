"""One HTML file from runs: what matters first, then everything to explore. It opens offline and can be mailed.

    write_page([open_run("runs/gpt2")], "report.html")

The file is put together from `assets/` (our own style and scripts), the plotting library of the plotly package, inlined
once, and the data as one JSON block. Summary and provenance are plain HTML and can be read without scripts; charts are
drawn when they come into view. Names come from models, files and people: text is escaped where it becomes HTML, `<`
never occurs in the JSON, and the content security policy lets only the scripts put here run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from anisoscope.errors import StoreError, UsageError
from anisoscope.report.page.bundle import bundle
from anisoscope.report.page.cards_html import LONG, cards_html, colour_rules
from anisoscope.report.page.data import Subject, find_subjects, page_data, run_labels
from anisoscope.report.page.lead import lead
from anisoscope.report.page.plotly_script import plotly_script
from anisoscope.report.page.policy import EMPTY, policy
from anisoscope.report.page.provenance import provenance_html
from anisoscope.report.page.summary import Card, cards
from anisoscope.runs.store import Run
from anisoscope.runs.writing import atomic


def write_page(runs: Sequence[Run], path: Path | str, *, title: str | None = None) -> Path:
    """Write the page of one or more runs; the path that was written."""
    if not runs:
        raise UsageError("a report needs at least one run", do="anisoscope report RUN -o report.html")
    path = Path(path)
    text = page_html(runs, title=title)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as partial:
            partial.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise StoreError("the page cannot be written", where=path, got=error, do="choose another -o") from error
    return path


def page_html(runs: Sequence[Run], *, title: str | None = None) -> str:
    """The page as text."""
    labels = run_labels(runs)
    subjects = find_subjects(runs, labels)
    found = cards(runs, labels, subjects)
    said, models = lead(runs, labels, subjects), len({subject.model for subject in subjects if subject.model})
    style, script, plotly = f"\n{_asset('page.css')}{colour_rules()}", f"\n{script_text()}", plotly_script()
    return _fill(
        _asset("page.html"),
        {
            "policy": policy(scripts=[script, plotly], styles=[style, EMPTY]),
            "title": escape(title or _title([subjects[card.subject] for card in found], labels, models)),
            "counts": escape(_counts(runs, models)),
            "lead": f'<p class="lead">{escape(said)}</p>' if said else "",
            "cards": cards_html(_told_once(found, said), subjects),
            "provenance": provenance_html(runs, labels),
            "style": style,
            "data": json_block(page_data(runs)),
            "script": script,
            "plotly": plotly,
        },
    )


def _told_once(found: Sequence[Card], said: str) -> Sequence[Card]:
    """A lone card does not repeat the sentence that opens the page, as long as it has numbers to show."""
    return [
        replace(card, verdict="") if len(found) == 1 and card.facts and _alike(card.verdict, said) else card
        for card in found
    ]


def _alike(one: str, other: str) -> bool:
    return len(one) <= LONG and one.rstrip(".").casefold() == other.rstrip(".").casefold()


def script_text() -> str:
    """The scripts of the page as one: every section registers itself, then the page starts."""
    modules = {
        f"{folder.name}/{file.name}": file
        for folder in (_ASSETS / "core", _ASSETS / "sections")
        for file in folder.iterdir()
        if file.name.endswith(".js")
    }
    sections = sorted(name for name in modules if name.startswith("sections/"))
    texts = {name: file.read_text(encoding="utf-8") for name, file in modules.items()}
    return bundle(texts, [*sections, "core/page.js"])


def json_block(value: Any) -> str:
    """JSON that may stand in a script element: no `<`, so that neither `</script>` nor `<!--` can end or open anything.

    >>> json_block("</script>")
    '"\\\\u003c/script>"'
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _fill(template: str, parts: Mapping[str, str]) -> str:
    """Put the parts in their places, in one pass: a part is never searched for places."""
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], template)


_ASSETS: Traversable = resources.files("anisoscope.report.page") / "assets"


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _title(subjects: Sequence[Subject], labels: Sequence[str], models: int) -> str:
    """The models, the most important first; the folders where the first has no model, or one run compares many."""
    if len(labels) == 1 and models > len(subjects) == 1:
        return labels[0]
    names = list(dict.fromkeys(subject.model for subject in subjects if subject.model))
    names, count = (names, models) if subjects and subjects[0].model else (list(labels), len(labels))
    if count <= min(2, len(names)):
        return " and ".join(names[:count])
    return f"{names[0]} and {count - 1} more"


def _counts(runs: Sequence[Run], models: int) -> str:
    rows = sum(int(run.manifest.get("rows") or 0) for run in runs)
    parts = ((models, "model"), (len(runs), "run"), (rows, "measurement"))
    return " · ".join(f"{count:,} {name}{'' if count == 1 else 's'}" for count, name in parts if count)
