"""Documents from the rows of a table: `.jsonl .csv .parquet .arrow .feather`.

`column` names the text, or lists of token ids. Without it the text is `text` if there is such a column, else the only
one with text; token ids are taken from `input_ids` where no column holds text. A line of `.jsonl` may also be a bare
JSON string. Token ids are whole numbers from 0; a row with anything else ends the file, named by its number.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, cast

from anisoscope.inputs.documents import split_rows
from anisoscope.inputs.files import Where
from anisoscope.inputs.sources import Document, Unreadable
from anisoscope.inputs.vectors.columns import (
    ArrowFile,
    arrow_errors,
    choose,
    csv_batches,
    csv_records,
    open_parquet,
    parquet_batches,
)
from anisoscope.inputs.vectors.formats.jsonl import unique

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 1024  # rows of a Parquet or Arrow file held at once
IDS = "input_ids"


def row_documents(rows: Iterable[Any], rule: str, key: str) -> Iterator[Document | None]:
    """The documents in rows of text or of token ids, `key#number` each; None stands for a row without any."""
    rows, head = iter(rows), []
    for row in rows:
        head.append(row)
        if row:
            break
    rows = chain(head, rows)
    if head and isinstance(head[-1], list):
        for number, ids in enumerate(_check_ids(rows)):
            yield Document(f"{key}#{number}", "", ids) if ids else None
        return
    for number, text in enumerate(split_rows(_check_texts(rows), rule)):
        yield Document(f"{key}#{number}", text) if text.strip() else None


def _check_texts(rows: Iterable[Any]) -> Iterator[str]:
    for number, row in enumerate(rows):
        if not isinstance(row, str | None):
            raise Unreadable(f"row {number} is not text: {str(row)[:40]!r}")
        yield row or ""


def _check_ids(rows: Iterable[Any]) -> Iterator[tuple[int, ...]]:
    for number, row in enumerate(rows):
        if not are_ids(row or []):
            raise Unreadable(f"row {number} is not a list of token ids (whole numbers from 0): {str(row)[:40]}")
        yield tuple(row or ())


def are_ids(value: Any) -> bool:
    """Whether this is a list of whole numbers from 0."""
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)


def choose_content(texts: Sequence[str], lists: Sequence[str], column: str | None, *, where: object) -> str:
    """The column to read: the one asked for, else `text`, else the only one with text, else `input_ids`.

    >>> choose_content([], ["labels", "input_ids"], None, where="x.parquet")
    'input_ids'
    """
    if column is None and "text" in texts:
        column = "text"
    if column is None and not texts and IDS in lists:
        column = IDS
    return choose([*texts, *(name for name in lists if name == column)], column, where=where, what="column of text")


def open_file(path: Where) -> IO[bytes]:
    """The bytes of a file, unpacked if its name ends in `.gz`."""
    stream = path.open("rb")
    return cast("IO[bytes]", gzip.open(stream)) if path.name.lower().endswith(".gz") else stream


def decode_lines(stream: IO[bytes]) -> Iterator[str]:
    """Lines of UTF-8, strictly; a byte-order mark at the beginning is left out."""
    for number, line in enumerate(stream, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as problem:
            byte = problem.object[problem.start]
            raise Unreadable(f"line {number} is not UTF-8: {problem.reason} 0x{byte:02x}") from problem


def _jsonl_rows(path: Where, column: str | None) -> Iterator[Any]:
    chosen = None
    with open_file(path) as stream:
        for number, line in enumerate(decode_lines(stream), start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line, object_pairs_hook=unique)
            except (ValueError, RecursionError) as problem:
                raise Unreadable(f"line {number} is not JSON: {problem}") from problem
            if not isinstance(record, dict):
                if not isinstance(record, str | None):
                    raise Unreadable(f"line {number} is not text: {line[:40].strip()!r}")
                yield record
                continue
            if chosen is None:
                chosen = _choose_field(record, column, where=f"{path}, line {number}")
            yield record.get(chosen)


def _choose_field(record: dict[str, Any], column: str | None, *, where: str) -> str:
    texts = [name for name, value in record.items() if isinstance(value, str | None)]
    lists = [name for name, value in record.items() if isinstance(value, list)]
    if IDS in lists and not any(isinstance(record[name], str) for name in texts):
        texts = []  # what is null may be anything
    return choose_content(texts, lists, column, where=where)


def _csv_rows(path: Where, column: str | None) -> Iterator[Any]:
    import pyarrow as pa

    with arrow_errors(path):
        with open_file(path) as stream:
            names = csv_records(stream, 1)[0]
        chosen = choose_content(names, [], column, where=path)
        with open_file(path) as stream:
            for batch in csv_batches(stream, names, header=True, types={chosen: pa.string()}):
                yield from batch.column(0).to_pylist()


def _parquet_rows(path: Where, column: str | None) -> Iterator[Any]:
    with open_parquet(path) as file:
        chosen = _choose_column(file.schema_arrow, column, path)
    with arrow_errors(path):
        for _, _, batch in parquet_batches(path, [chosen], BATCH):
            yield from () if batch is None else batch.column(chosen).to_pylist()


def _arrow_rows(path: Where, column: str | None) -> Iterator[Any]:
    file = ArrowFile(path)
    chosen = _choose_column(file.schema, column, path)
    with arrow_errors(path):
        for _, _, batch in file.batches([chosen], BATCH):
            yield from () if batch is None else batch.column(chosen).to_pylist()


def _choose_column(schema: pa.Schema, column: str | None, path: Where) -> str:
    with arrow_errors(path):  # names may be damaged
        names = schema.names
    texts = [name for name, kind in zip(names, schema.types, strict=True) if _is_text(kind)]
    lists = [name for name, kind in zip(names, schema.types, strict=True) if _is_list_of_integers(kind)]
    chosen = choose_content(texts, lists, column, where=path)
    return choose(names, chosen, where=path, what="column")  # a name that is given twice is refused


def _is_text(kind: pa.DataType) -> bool:
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(kind) or types.is_large_string(kind)


def _is_list_of_integers(kind: pa.DataType) -> bool:
    from pyarrow import types

    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and types.is_integer(kind.value_type)


TABLES = {
    ".jsonl": _jsonl_rows,
    ".csv": _csv_rows,
    ".parquet": _parquet_rows,
    ".arrow": _arrow_rows,
    ".feather": _arrow_rows,
}
