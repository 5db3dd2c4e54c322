"""One script from small modules, without any tool: the page is written wherever the library is installed.

The scripts in `assets/` are ECMAScript modules. A file that opens from disk cannot import modules, so they are joined:
each becomes a function that runs once, after what it imports, and gives back what it exports.

    import { element } from "./dom.js";      const { element } = modules["core/dom.js"];
    export function select() {}              function select() {} … return { select };

The subset is: named imports by relative path, `export` before a function, class or const, no cycles. Anything else is
an error here, not in the reader's browser.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from anisoscope.errors import UsageError

_IMPORT = re.compile(r'^import\s+(?:\{([^}]*)\}\s+from\s+)?"([^"]+)";\n?', re.MULTILINE)
_EXPORT = re.compile(r"^export\s+((?:async\s+)?function\*?|class|const)\s+(\w+)", re.MULTILINE)
_OTHER = re.compile(r"^(?:export|import)\b.*", re.MULTILINE)


def bundle(modules: Mapping[str, str], entries: list[str]) -> str:
    """The modules (path → text) that the entries reach, in the order in which they must run, as one script."""
    parts: dict[str, str] = {}
    for entry in entries:
        _add(entry, modules, parts, ())
    return '(() => {\n"use strict";\nconst modules = {};\n' + "".join(parts.values()) + "})();\n"


def _add(path: str, modules: Mapping[str, str], parts: dict[str, str], above: tuple[str, ...]) -> None:
    if path in parts:
        return
    if path not in modules or path in above:
        what = "these scripts import each other" if path in above else "a script imports a file that is not there"
        raise UsageError(what, where=" → ".join((*above, path)), got=path, do="look at the imports of this file")
    text = modules[path]
    for match in _IMPORT.finditer(text):
        _add(_resolved(path, match[2]), modules, parts, (*above, path))
    parts[path] = _wrapped(path, text)


def _resolved(path: str, relative: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), relative))


def _wrapped(path: str, text: str) -> str:
    def imported(match: re.Match[str]) -> str:
        names = ", ".join(
            re.sub(r"\s+as\s+", ": ", name.strip()) for name in (match[1] or "").split(",") if name.strip()
        )
        return f'const {{ {names} }} = modules["{_resolved(path, match[2])}"];\n' if names else ""

    exported = [match[2] for match in _EXPORT.finditer(text)]
    body = _EXPORT.sub(r"\1 \2", _IMPORT.sub(imported, text))
    if left := _OTHER.search(body):
        raise UsageError("this form of import or export is not understood", where=path, got=left[0])
    return f'modules["{path}"] = (() => {{\n{body}return {{ {", ".join(exported)} }};\n}})();\n'
