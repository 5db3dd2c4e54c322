"""How each run was made, with the plan that makes it again, as HTML that needs no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import tomli_w

from anisoscope.runs.measurement import verdict_of
from anisoscope.runs.store import Run


def provenance_html(runs: Sequence[Run], labels: Sequence[str]) -> str:
    return "".join(_run(run, label) for run, label in zip(runs, labels, strict=True))


def _run(run: Run, label: str) -> str:
    manifest = run.manifest
    settings = {name: value for name, value in (manifest.get("settings") or {}).items() if value is not None}
    plan = tomli_w.dumps({"command": run.command, "settings": settings})
    seconds = manifest.get("seconds")
    facts = {
        "folder": run.folder.name,
        "verdict": verdict_of(run),
        "notes": manifest.get("notes"),
        "measurements": f"{manifest.get('rows') or 0:,}",
        "time": None if seconds is None else f"{seconds:,.1f} s",
        "versions": ", ".join(f"{name} {version}" for name, version in (manifest.get("versions") or {}).items()),
    }
    tables = "".join(
        f"<h3>{name}</h3>{_definitions(manifest[name])}" for name in ("protocol", "data", "model") if manifest.get(name)
    )
    command = "" if label == run.command else f" <span>{escape(run.command)}</span>"
    return (
        f"<details class='run'><summary>{escape(label)}{command}</summary>"
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
