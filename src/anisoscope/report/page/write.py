"""One HTML file from runs: verdicts first, then everything to explore. It opens offline and can be mailed.

    write_page([open_run("runs/gpt2")], "report.html")

The file is put together from `assets/` (our own style and scripts), the plotting library of the plotly package, inlined
once, and the data as one JSON block. Summary and provenance are plain HTML and can be read without scripts; charts are
drawn when they come into view. A content security policy forbids every request, so nothing leaves the reader's machine.
Names come from models, files and people: text is escaped where it becomes HTML, and `<` never occurs in the JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from anisoscope.errors import StoreError, UsageError
from anisoscope.report.page.data import find_subjects, page_data, run_labels
from anisoscope.report.page.summary import cards, lead, summary_html
from anisoscope.runs import toml
from anisoscope.runs.store import Run, atomic

SCRIPTS = ("data.js", "chart.js", "layers.js", "heads.js", "series.js", "studies.js", "table.js", "page.js")


def write_page(runs: Sequence[Run], path: Path | str, *, title: str | None = None) -> Path:
    """Write the page of one or more runs; the path that was written."""
    if not runs:
        raise UsageError("a report needs at least one run", do="anisoscope report RUN -o report.html")
    path = Path(path)
    text = page_html(runs, title=title)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError("the page cannot be written", where=path, got=error, do="choose another -o") from error
    return path


def page_html(runs: Sequence[Run], *, title: str | None = None) -> str:
    """The page as text."""
    labels = run_labels(runs)
    subjects = find_subjects(runs, labels)
    found = cards(runs, labels, subjects)
    said = lead(found)
    return _fill(
        _asset("page.html"),
        {
            "title": escape(title or _title([subject.model for subject in subjects if subject.model], labels)),
            "counts": escape(_counts(runs, len({subject.model for subject in subjects if subject.model}))),
            "lead": f'<p class="lead">{escape(said)}</p>' if said else "",
            "cards": summary_html(found, subjects),
            "provenance": "".join(_provenance(run, label) for run, label in zip(runs, labels, strict=True)),
            "style": _asset("page.css"),
            "data": json_block(page_data(runs)),
            "script": "\n".join(_asset(name) for name in SCRIPTS),
            "plotly": _plotly(),
        },
    )


def json_block(value: Any) -> str:
    """JSON that may stand in a script element: no `<`, so that neither `</script>` nor `<!--` can end or open anything.

    >>> json_block("</script>")
    '"\\\\u003c/script>"'
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _fill(template: str, parts: Mapping[str, str]) -> str:
    """Put the parts in their places, in one pass: a part is never searched for places."""
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], template)


def _asset(name: str) -> str:
    return (resources.files("anisoscope.report.page") / "assets" / name).read_text(encoding="utf-8")


def _plotly() -> str:
    text = (resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    return text.replace("</script", "<\\/script")


def _title(models: Sequence[str], labels: Sequence[str]) -> str:
    names = list(dict.fromkeys(models)) or list(labels)
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _counts(runs: Sequence[Run], models: int) -> str:
    rows = sum(int(run.manifest.get("rows") or 0) for run in runs)
    parts = ((models, "model"), (len(runs), "run"), (rows, "measurement"))
    return " · ".join(f"{count:,} {name}{'' if count == 1 else 's'}" for count, name in parts if count)


def _provenance(run: Run, label: str) -> str:
    """How a run was made, with the plan that makes it again."""
    manifest = run.manifest
    plan = toml.dumps({"command": run.command, "settings": manifest.get("settings") or {}})
    seconds = manifest.get("seconds")
    facts = {
        "verdict": manifest.get("verdict"),
        "notes": manifest.get("notes"),
        "command": run.command,
        "measurements": f"{manifest.get('rows') or 0:,}",
        "time": None if seconds is None else f"{seconds:,.1f} s",
        "versions": ", ".join(f"{name} {version}" for name, version in (manifest.get("versions") or {}).items()),
    }
    tables = "".join(
        f"<h3>{name}</h3>{_definitions(manifest[name])}" for name in ("protocol", "data", "model") if manifest.get(name)
    )
    return (
        f"<details class='run'><summary>{escape(label)} <span>{escape(run.command)}</span></summary>"
        f"{_definitions({name: value for name, value in facts.items() if value})}{tables}"
        f"<h3>run.toml</h3><pre tabindex='0'>{escape(plan)}</pre></details>"
    )


def _definitions(values: Mapping[str, Any]) -> str:
    """A mapping as a definition list; mappings inside it as lists of their own."""
    told = {
        name: _definitions(value) if isinstance(value, Mapping) else _plain(value) for name, value in values.items()
    }
    items = "".join(f"<div><dt>{escape(str(name))}</dt><dd>{value}</dd></div>" for name, value in told.items())
    return f"<dl class='facts'>{items}</dl>"


def _plain(value: Any) -> str:
    if value is None or value == []:
        return "–"
    return escape("; ".join(map(str, value)) if isinstance(value, list) else str(value))
