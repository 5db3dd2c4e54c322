"""Data that is always there, so that every modality can be tried without any file.

- Text: the language topics that every Python carries for `help()` (`pydoc_data.topics`), real English prose with some
  code in it: one document per topic, without underlines, table walls and hard line breaks. Long topics repeat short
  ones; a passage stays in the shortest topic that has it, so that documents are independent. The text differs a little
  from one version of Python to the next, and the fingerprint says so.
- Speech and vision: synthesised, see `inputs.synthesis`; no substitute for real recordings, but the same everywhere.
"""

from __future__ import annotations

import re
from typing import Any

from anisoscope.inputs.sources import Document, MemorySource, Modality, Source
from anisoscope.inputs.synthesis import clips, pictures

PASSAGE = 60  # characters from which a repeated block is a repeated passage, not a title
DOCUMENT = 120  # characters below which what is left of a topic is none

_UNDERLINE = re.compile(r"([^\w\s])\1{2,}")
_TABLE_RULE = re.compile(r"[+|][-=+|]+")


def embedded(modality: Modality) -> Source[Any]:
    """What is embedded for a modality.

    >>> embedded("text").name, next(iter(embedded("text"))).key
    ('embedded text', 'assert')
    """
    return MemorySource(_ITEMS[modality](), modality=modality, name=f"embedded {modality}")


def documents() -> list[Document]:
    """Python's language topics, sorted by name, no passage twice."""
    from pydoc_data.topics import topics

    plain = {key: plain_prose(text) for key, text in topics.items()}
    seen: set[str] = set()
    for key in sorted(plain, key=lambda key: (len(plain[key]), key)):
        blocks = [block for block in plain[key].split("\n\n") if block not in seen]
        seen.update(block for block in blocks if len(block) >= PASSAGE)
        plain[key] = "\n\n".join(blocks)
    return [Document(key, text) for key, text in sorted(plain.items()) if len(text) >= DOCUMENT]


def plain_prose(text: str) -> str:
    """The text of a topic without its markup.

    >>> print(plain_prose('Title\\n*****\\n\\nOne sentence\\non two lines.\\n\\n   code = 1\\n   more = 2\\n'))
    Title
    <BLANKLINE>
    One sentence on two lines.
    <BLANKLINE>
       code = 1
       more = 2
    """
    return "\n\n".join(filter(None, map(_plain_block, re.split(r"\n\s*\n", text)))).strip()


def _plain_block(block: str) -> str:
    lines = [line for line in block.split("\n") if line.strip() and not _is_rule(line.strip())]
    if any(line.lstrip().startswith("|") for line in lines):
        return "\n".join(_row(line) for line in lines)
    indented = any(line.startswith(" ") for line in lines)
    return ("\n" if indented else " ").join(lines)


def _is_rule(line: str) -> bool:
    return bool(_UNDERLINE.fullmatch(line) or _TABLE_RULE.fullmatch(line))


def _row(line: str) -> str:
    return "  ".join(cell.strip() for cell in line.strip().strip("|").split("|") if cell.strip())


_ITEMS: dict[Modality, Any] = {"text": documents, "speech": clips, "vision": pictures}
