"""Short names for models that appear together: `A/model` and `B/model` where both are called `model`.

A folder is called by its last part, with as many parents as it takes to distinguish it. A Hub id stays as it
is, with its revision. What is named twice is numbered.

>>> labels(["runs/a/checkpoint-10", "runs/b/checkpoint-10", "openai-community/gpt2"])
['a/checkpoint-10', 'b/checkpoint-10', 'openai-community/gpt2']
>>> labels(["gpt2", "gpt2", "EleutherAI/pythia-70m@step512"])
['gpt2', 'gpt2 (2)', 'EleutherAI/pythia-70m@step512']
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?(@[\w.-]+)?")


def labels(names: Sequence[str]) -> list[str]:
    """One label for each name, all of them different."""
    parts = [_parts(name) for name in names]
    depths = [1] * len(names)
    while True:
        found = ["/".join(part[-depth:]) for part, depth in zip(parts, depths, strict=True)]
        members: dict[str, set[tuple[str, ...]]] = {}
        for label, part in zip(found, parts, strict=True):
            members.setdefault(label, set()).add(part)
        deeper = [
            depth + (len(members[label]) > 1 and depth < len(part))
            for label, part, depth in zip(found, parts, depths, strict=True)
        ]
        if deeper == depths:
            return _numbered(found)
        depths = deeper


def _parts(name: str) -> tuple[str, ...]:
    """What a label is made of: the parts of a path; a Hub id is one part."""
    path = Path(os.path.expanduser(name))
    if _HUB_ID.fullmatch(name) and not path.exists():
        return (name,)
    return tuple(part for part in path.resolve().parts if part != path.anchor) or (name,)


def _numbered(found: Sequence[str]) -> list[str]:
    taken, seen, result = set(found), Counter[str](), list[str]()
    for label in found:
        seen[label] += 1
        numbered = label if seen[label] == 1 else f"{label} ({seen[label]})"
        while seen[label] > 1 and numbered in taken:
            seen[label] += 1
            numbered = f"{label} ({seen[label]})"
        taken.add(numbered)
        result.append(numbered)
    return result
