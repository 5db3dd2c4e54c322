"""How plain text splits into documents.

A document is the unit that is sampled independently: the jackknife leaves out groups of documents, and pairs "of
different sequences" are pairs of different documents. So a file should split into units as independent as it offers,
and into enough of them. The rules:

- `file`: the whole file is one document.
- `wikitext`: one document per article; an article starts at a level-one heading ` = Title = ` that is the first line or
  follows an empty one (` = = Section = = ` stays inside). What stands before the first heading is its own document.
- `blank`: one document per block of lines between empty lines.
- `paragraphs`: such blocks in order, gathered until they hold 1,000 characters, so that a title goes with its text and
  each document is long enough to have a context.
- `lines`: one document per line that is not empty.
- `auto`: `wikitext` if the first line of text is a level-one heading; otherwise `file` if the source has 32 files or
  more (as many as there are jackknife groups); otherwise `paragraphs` if an empty line separates lines of text;
  otherwise `lines`. It looks at the first MiB of each file, and what it chose goes into the notes of the source.

Outer white space is stripped; documents of white space alone do not count. In a table a row is a document, whatever the
rule, unless its rows are the lines of WikiText (`wikitext`, or `auto` when the first row with text is a heading).

>>> text = ["Title", "", "First line,", "second line.", "", "Another block."]
>>> list(split(text, "blank"))
['Title', 'First line,\\nsecond line.', 'Another block.']
>>> list(split([" = One = ", "", " text ", " = = Part = = ", "", " = Two = ", ""], "wikitext"))
['= One = \\n\\n text \\n = = Part = =', '= Two =']
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from anisoscope.errors import UsageError

RULES = ("auto", "file", "lines", "blank", "paragraphs", "wikitext")
PARAGRAPHS_HOLD = 1_000  # characters, about 200 tokens
ENOUGH_FILES = 32
PEEK = 1 << 20  # how much of a file `auto` looks at

_HEADING = re.compile(r"\s*= (?!= )\S.*(?<! =) =\s*")
_EMPTY_LINE = re.compile(r"\n[^\S\n]*\n")


def check_rule(rule: str) -> None:
    if rule not in RULES:
        raise UsageError("unknown way to split text into documents", got=repr(rule), expected=", ".join(RULES))


def is_title(line: str) -> bool:
    """Whether a line is a level-one WikiText heading.

    >>> is_title(" = Homarus gammarus = "), is_title(" = = Description = = "), is_title(" a = b = c ")
    (True, False, False)
    """
    return _HEADING.fullmatch(line) is not None


def choose_rule(head: str, *, files: int) -> str:
    """What `auto` means for a file that starts with `head`, in a source of so many files."""
    text = head.strip()
    if is_title(text.split("\n", 1)[0]):
        return "wikitext"
    if files >= ENOUGH_FILES:
        return "file"
    return "paragraphs" if _EMPTY_LINE.search(text) else "lines"


def split(lines: Iterable[str], rule: str) -> Iterator[str]:
    """The documents in lines of text (with or without their line ends), streamed: at most one document is held."""
    check_rule(rule)
    bare = (line.rstrip("\r\n") for line in lines)
    pieces = {
        "file": lambda: iter(["\n".join(bare)]),
        "lines": lambda: bare,
        "blank": lambda: _blocks(bare),
        "paragraphs": lambda: _paragraphs(bare),
        "wikitext": lambda: _articles(bare),
    }
    for piece in pieces[rule]():
        if document := piece.strip():
            yield document


def split_rows(rows: Iterable[str], rule: str) -> Iterator[str]:
    """The documents in the rows of a table: the rows as they are, or the articles whose lines they hold."""
    check_rule(rule)
    rows, head = iter(rows), []
    for row in rows:
        head.append(row)
        if row.strip():
            break
    rows = chain(head, rows)
    lines_of_articles = rule == "wikitext" or (rule == "auto" and bool(head) and is_title(head[-1]))
    return split(rows, "wikitext") if lines_of_articles else rows


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    block: list[str] = []
    for line in lines:
        if line.strip():
            block.append(line)
        elif block:
            yield "\n".join(block)
            block = []
    yield "\n".join(block)


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    gathered, held = [], 0
    for block in _blocks(lines):
        gathered.append(block)
        held += len(block)
        if held >= PARAGRAPHS_HOLD:
            yield "\n\n".join(gathered)
            gathered, held = [], 0
    yield "\n\n".join(gathered)


def _articles(lines: Iterable[str]) -> Iterator[str]:
    article: list[str] = []
    for line in lines:
        after_gap = not article or not article[-1].strip()
        if after_gap and is_title(line):
            yield "\n".join(article)
            article = []
        article.append(line)
    yield "\n".join(article)
