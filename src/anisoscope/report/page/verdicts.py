"""The verdict of a run in words, however its manifest keeps it: as one line, or as words, numbers and a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anisoscope.runs.store import Run


def verdict_sentence(manifest: Mapping[str, Any]) -> str:
    """One sentence, empty where the run says nothing.

    >>> verdict_sentence({"verdict": "drifted"})
    'drifted'
    >>> verdict_sentence({"verdict": {"words": ["drifted"], "sentence": "The mean is far off.", "numbers": []}})
    'The mean is far off.'
    >>> verdict_sentence({"verdict": {"words": ["drifted", "few-dimensional"]}}), verdict_sentence({})
    ('drifted, few-dimensional', '')
    """
    found = manifest.get("verdict")
    if isinstance(found, Mapping):
        return str(found.get("sentence") or "") or ", ".join(map(str, found.get("words") or ()))
    return str(found or "")


def verdict_of(run: Run) -> str:
    return verdict_sentence(run.manifest)
