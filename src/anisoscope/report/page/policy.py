"""What a page may do: run its own scripts, use its own style, and nothing else.

The content security policy names each inline script and style by its SHA-256 hash, so that a script that got into the
page by way of a name or a note would not run, and forbids every request.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable

EMPTY = ""
"""Plotly appends an empty style element, then fills it through the style sheet's own interface."""


def digest(text: str) -> str:
    """The hash source of an inline element with this content.

    >>> digest("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy(*, scripts: Iterable[str] = (), styles: Iterable[str] = ()) -> str:
    """The policy of a page that holds these scripts and styles."""
    allowed = {
        "default-src": ["'none'"],
        "script-src": [digest(text) for text in scripts],
        "style-src": [digest(text) for text in styles],
        "img-src": ["data:", "blob:"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }
    return "; ".join(f"{name} {' '.join(sources)}" for name, sources in allowed.items() if sources)
