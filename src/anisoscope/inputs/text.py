"""Text: plain (`.txt .md`) and tables (`.jsonl .csv .parquet .arrow .feather`), standard input, lists, hub.

Plain text splits into documents by the rules of `inputs.documents`; a file with another suffix that is named is plain
text. All but Parquet and Arrow may end in `.gz`. A row of a table is a document, of text or of token ids: see
`inputs.tables`. Rows without any are skipped and counted in the notes.

Everything is UTF-8 (with or without a byte-order mark) and strictly so: a replaced character would be measured as if
someone had written it. A fault in a file lists it in `unreadable` with its line; documents before the fault are kept.
Keys are `file` or `file#number`, numbered from 0 within the file.
"""

from __future__ import annotations

import glob
import io
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.documents import PEEK, check_rule, choose_rule, split
from anisoscope.inputs.files import FoundFile, Where, find_files, name_of
from anisoscope.inputs.sources import (
    Document,
    FileSource,
    MemorySource,
    Modality,
    Source,
    Unreadable,
    names_dataset,
    open_places,
)
from anisoscope.inputs.stores.objects import is_url
from anisoscope.inputs.tables import TABLES, decode_lines, open_file, row_documents

SUFFIXES = (".txt", ".md", *TABLES, ".txt.gz", ".md.gz", ".jsonl.gz", ".csv.gz")
LOOK_AT = 100  # strings of a list in which names of files are looked for


def open_text(
    where: str | Path | Sequence[Any], *, documents: str = "auto", column: str | None = None
) -> Source[Document]:
    """The text that `where` names; see `open_source` for what it may be."""
    check_rule(documents)
    if where == "-":
        return _standard_input(documents)
    if isinstance(where, str) and names_dataset(where):
        from anisoscope.inputs.hub import HubText

        return HubText(where, documents=documents, column=column)
    if isinstance(where, str | Path):
        return _text_files([where], documents, column)
    items = list(where)
    if items and all(isinstance(item, Path) or is_url(item) for item in items):
        return _text_files(items, documents, column)
    places = [item for item in items[:LOOK_AT] if isinstance(item, str) and _is_place(item)]
    if places and all(isinstance(item, str) and _is_place(item) for item in items):
        return cast("Source[Document]", open_places(items, "text", documents=documents, column=column))
    if places and not _are_words(places, items):
        do = "name files with `Path`, give texts as (key, text) pairs"
        raise UsageError("texts and names of files in one list", got=items[:3], do=do)
    return _listed(items)


def _are_words(places: Sequence[str], items: Sequence[Any]) -> bool:
    """Whether what exists under these names is a coincidence: plain words in a list that has sentences too."""
    sentences = any(isinstance(item, str) and " " in item.strip() and item not in places for item in items)
    return sentences and all(place.isalnum() for place in places)


def _is_place(text: str) -> bool:
    """Whether a string from a list of texts names data that exists: nobody measures the names of files."""
    if text == "-" or text.startswith("hf:") or is_url(text):
        return True
    short = 0 < len(text) < 256 and "\n" not in text and "\0" not in text
    return short and (Path(text).exists() or (glob.has_magic(text) and bool(glob.glob(text, recursive=True))))


def _text_files(places: Sequence[str | Path], documents: str, column: str | None) -> TextFiles:
    files = find_files(places, suffixes=SUFFIXES, what="text")
    if column is not None and not any(_kind(file.path) in TABLES for file in files):
        raise UsageError("`column` is for tables", where=name_of(places), got=column, expected=" ".join(TABLES))
    return TextFiles(files, name=name_of(places), documents=documents, column=column)


def _listed(items: Sequence[Any]) -> MemorySource[Document]:
    """Documents from a Python list of texts, of (key, text) pairs or of documents."""
    listed = [_document(number, item) for number, item in enumerate(items)]
    full = [document for document in listed if document.ids or document.text.strip()]
    source = MemorySource(full, modality="text", name="list")
    if empty := len(listed) - len(source.items):
        source.notes.append(("list", f"{empty} without text skipped"))
    return source


def _document(number: int, item: Any) -> Document:
    if isinstance(item, Document):
        return item
    if isinstance(item, str):
        return Document(str(number), item)
    if isinstance(item, tuple | list) and len(item) == 2 and all(isinstance(part, str) for part in item):
        return Document(*item)
    expected = "texts, (key, text) pairs, `Document` objects, or `Path` objects alone"
    raise UsageError("not a text", where=f"item {number} of the list", got=type(item).__name__, expected=expected)


def _standard_input(documents: str) -> MemorySource[Document]:
    data = sys.stdin.buffer.read()
    rule = _rule(documents, data[:PEEK], files=1)
    try:
        texts = list(split(decode_lines(io.BytesIO(data)), rule))
    except Unreadable as problem:
        raise InputError("cannot read the text", where="standard input", got=problem) from problem
    items = [Document(f"stdin#{number}", text) for number, text in enumerate(texts)]
    source = MemorySource(items, modality="text", name="stdin")
    if documents == "auto":
        source.notes.append(("stdin", f"split into documents by the rule {rule!r}"))
    return source


class TextFiles(FileSource[Document]):
    """Documents from files of plain text and from tables."""

    modality: Modality = "text"

    def __init__(self, files: Sequence[FoundFile], *, name: str, documents: str, column: str | None) -> None:
        super().__init__(files, name=name)
        self.count = None
        self.documents, self.column = documents, column

    def settings(self) -> tuple[str, ...]:
        return self.documents, repr(self.column)

    def read(self, file: FoundFile) -> Iterator[Document]:
        read = self._read_table if _kind(file.path) in TABLES else self._read_plain
        try:
            yield from read(file)
        except InputError as problem:
            raise Unreadable(problem.got or problem.what) from problem
        except (EOFError, zlib.error) as problem:
            raise Unreadable(f"damaged compression: {problem}") from problem

    def _read_plain(self, file: FoundFile) -> Iterator[Document]:
        with open_file(file.path) as stream:
            rule = _rule(self.documents, stream.read(PEEK), files=len(self.files))
        if self.documents == "auto" and rule != "file":
            self.note(file, f"split into documents by the rule {rule!r}")
        with open_file(file.path) as stream:
            for number, text in enumerate(split(decode_lines(stream), rule)):
                yield Document(file.key if rule == "file" else f"{file.key}#{number}", text)

    def _read_table(self, file: FoundFile) -> Iterator[Document]:
        rows = TABLES[_kind(file.path)](file.path, self.column)
        skipped = 0
        for document in row_documents(rows, self.documents, file.key):
            if document is not None:
                yield document
            else:
                skipped += 1
        if skipped:
            self.note(file, f"{skipped} rows without text skipped")


def _kind(path: Where) -> str:
    """The suffix that says how to read the file, without `.gz`."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _rule(documents: str, head: bytes, *, files: int) -> str:
    return choose_rule(head.decode("utf-8-sig", "replace"), files=files) if documents == "auto" else documents
