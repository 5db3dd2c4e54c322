"""Text from a dataset of the Hugging Face hub, through the optional library `datasets`.

The name is `hf:owner/name[/config][:split[:column]]`; the split is `validation` and the column `text` unless said
otherwise (`input_ids` where there is no `text`). A dataset from before owners were required is `hf:name/config`, which
is tried when there is no `owner/name` of that spelling. The library downloads once and reads from its cache, so passes
can be repeated offline.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anisoscope.errors import InputError, MissingExtra, UsageError
from anisoscope.inputs.files import digest
from anisoscope.inputs.sources import Document, Modality, Unreadable
from anisoscope.inputs.tables import IDS, choose_content, row_documents


class HubText:
    """The rows of one split, each a document unless they are the lines of WikiText (see `inputs.documents`)."""

    modality: Modality = "text"

    def __init__(self, name: str, *, documents: str = "auto", column: str | None = None) -> None:
        self.name, self.documents, self.count = name, documents, None
        self.unreadable: list[tuple[str, str]] = []
        self._skipped = 0
        dataset, split, spelled = parse_name(name)
        self._rows = _load(dataset, split)
        names = self._rows.column_names
        texts = names if "text" in names or IDS not in names else []
        lists = [other for other in names if other not in texts]
        self.column = choose_content(texts, lists, column or spelled, where=name)

    @property
    def notes(self) -> list[tuple[str, str]]:
        return [(self.name, f"{self._skipped} rows without text skipped")] if self._skipped else []

    def __iter__(self) -> Iterator[Document]:
        rows = (row[self.column] for row in self._rows.select_columns([self.column]))
        empty = 0
        try:
            for document in row_documents(rows, self.documents, self.name):
                if document is not None:
                    yield document
                else:
                    empty += 1
        except Unreadable as problem:
            raise InputError("cannot read the dataset", where=self.name, got=problem) from problem
        self._skipped = empty

    def fingerprint(self) -> str:
        return digest(part for document in self for part in document.content())


def parse_name(name: str) -> tuple[list[str], str, str | None]:
    """(the parts of the dataset's name, split, column).

    >>> parse_name("hf:Salesforce/wikitext/wikitext-103-raw-v1:test")
    (['Salesforce', 'wikitext', 'wikitext-103-raw-v1'], 'test', None)
    """
    dataset, *rest = name.removeprefix("hf:").split(":")
    parts = dataset.split("/")
    if len(parts) > 3 or len(rest) > 2 or not all([*parts, *rest]):
        raise UsageError("not the name of a dataset", got=name, expected="hf:owner/name[/config][:split[:column]]")
    return parts, rest[0] if rest else "validation", rest[1] if len(rest) == 2 else None


def _load(parts: list[str], split: str) -> Any:
    try:
        import datasets  # pyright: ignore[reportMissingImports] an optional extra
    except ImportError as problem:
        raise MissingExtra("datasets", needed_for="a dataset of the hub", extra="hub") from problem

    attempts = [("/".join(parts[:2]), parts[2] if len(parts) == 3 else None)]
    attempts += [(parts[0], parts[1])] if len(parts) == 2 else []
    problems = []
    for path, config in attempts:
        try:
            return datasets.load_dataset(path, config, split=split)
        # Not reachable, no such config or split, or the library's own: not found, cannot be prepared.
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as problem:
            problems.append(f"{path}: {problem}")
    raise InputError(
        "cannot open the dataset", where="/".join(parts), got="; ".join(problems), do="check name and split"
    )
