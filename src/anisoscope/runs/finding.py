"""Which studies there are: read from their files, so that listing them imports nothing."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = "anisoscope.studies"


class Entry(NamedTuple):
    """A study by name: where it is, and its line of help."""

    name: str
    module: str
    summary: str


@cache
def entries() -> dict[str, Entry]:
    """All studies by name, read from their files: nothing is imported."""
    folder = Path(__file__).parent.parent / "studies"
    files = [*folder.glob("[!_]*.py"), *folder.glob("[!_]*/__init__.py")]
    found = {}
    for file in sorted(files):
        module = file.parent.name if file.name == "__init__.py" else file.stem
        text = file.read_text(encoding="utf-8")
        if "\nSTUDY = Study(" in text:
            name = module.replace("_", "-")
            found[name] = Entry(name, f"{PACKAGE}.{module}", first_line(text))
    return found


def first_line(source: str) -> str:
    """The first line of a module's docstring, without parsing the rest of it."""
    quoted = source.split('"""', 2)[1] if source.startswith('"""') else ""
    return ast.literal_eval(f'"""{quoted}"""').partition("\n")[0].strip()
