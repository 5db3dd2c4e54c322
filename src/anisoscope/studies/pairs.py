"""Labelled pairs: a table with the columns `query`, `document`, and `label` or `score` (without either, all related).

Judgements of retrieval sets are read as they come: BEIR's tables (`query-id`, `corpus-id`, `score`), and TREC's lines
of four words without a header (query, 0, document, label). These name queries and documents by id.

With a model, queries and documents are texts, and the model embeds them. With files of vectors they are ids: of the
column `--ids`, or the numbers of rows, of the files and, where `--queries` names some, of the queries.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.keys import sequence_key, sequence_keys
from anisoscope.errors import InputError, UsageError
from anisoscope.inference.retrieval import Found, Labelled, search
from anisoscope.inputs.vectors.formats.jsonl import parse_json
from anisoscope.runs.job import Job
from anisoscope.runs.settings import Settings, option
from anisoscope.runs.writing import file_sha256

if TYPE_CHECKING:
    from anisoscope.inputs.vectors.source import VectorSource
    from anisoscope.models.open import OpenModel
    from anisoscope.runs.work.collected import Collected, Part

QUERIES, DOCUMENTS = "pairs: queries", "pairs: documents"
_SCORES = ("label", "score", "relevance")
_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".txt", ".qrels", ".trec")
_BY_ID = {"query-id": "query", "query_id": "query", "qid": "query"}
_BY_ID |= dict.fromkeys(("corpus-id", "corpus_id", "document_id", "doc_id", "docid"), "document")
_TREC = ("query-id", "iteration", "corpus-id", "label")
_TRUTH = {"true": 1.0, "false": 0.0}


class PairSettings(Settings):
    """Labelled pairs, and how they name rows or texts."""

    pairs: str | None = option(
        "Labelled pairs: a table of query, document, and label or score, or qrels of BEIR or TREC.",
        None,
        short="--qrels",
        paths=True,
    )
    ids: str | None = option("Column of the ids that the pairs use (default: row numbers).", None)
    query_prompt: str | None = option(
        "Prompt of queries, by name or as words (default: --prompt, else the model's own for queries).", None
    )


class Pairs:
    """The rows of a table of pairs; `by_id` where its columns say that they name queries and documents by id."""

    def __init__(self, rows: list[tuple[str, str, float]], notes: Sequence[str] = (), *, by_id: bool = False) -> None:
        self.rows, self.notes, self.by_id = rows, list(notes), by_id
        self.queries = list(dict.fromkeys(query for query, _, _ in rows))
        self.documents = list(dict.fromkeys(document for _, document, _ in rows))


def read_pairs(path: Path | str) -> Pairs:
    """Read a table of pairs; refuses one without related pairs, or with scores that are not numbers."""
    path = Path(path)
    if path.suffix.lower() not in _SUFFIXES or not path.is_file():
        raise UsageError("no such table of pairs", where=path, expected=f"a file: {' '.join(_SUFFIXES)}")
    rows: dict[tuple[str, str], float] = {}
    given = list(_records(path))
    records = [{_BY_ID.get(name, name): value for name, value in record.items()} for record in given]
    by_id = any(name in _BY_ID for record in given[:1] for name in record)
    found = [name for name in _SCORES if any(name in record for record in records)]
    scored = found[0] if found else None
    for number, record in enumerate(records):
        query, document = record.get("query"), record.get("document")
        if query in (None, "") or document in (None, ""):
            got = ", ".join(map(str, record))
            expected = "columns query and document, and label or score"
            raise InputError(
                "a pair without query or document", where=f"{path}, row {number}", got=got, expected=expected
            )
        value = 1.0 if scored is None else _label(record.get(scored), scored, where=f"{path}, row {number}")
        if rows.setdefault((str(query), str(document)), value) != value:
            raise InputError(
                "a pair has two labels",
                where=f"{path}, row {number}",
                got=f"{query}, {document}",
                do="keep one of them",
            )
    if not any(score > 0 for score in rows.values()):
        raise InputError("no pair is related", where=path, expected="labels or scores above 0")
    notes = [f"relevance is read from {scored!r}; {', '.join(map(repr, found[1:]))} is not read"] if found[1:] else []
    return Pairs([(query, document, score) for (query, document), score in rows.items()], notes, by_id=by_id)


def _label(given: Any, name: str, *, where: str) -> float:
    if given in (None, ""):
        raise InputError("a pair without a label, where others have one", where=where, expected=f"a number in {name!r}")
    try:
        value = _TRUTH.get(str(given).lower()) if isinstance(given, str) else None
        value = float(given) if value is None else value
    except (TypeError, ValueError, OverflowError):
        value = float("nan")
    if not np.isfinite(value):
        raise InputError("a label that is not a number", where=where, got=repr(given))
    return value


def _records(path: Path) -> Iterator[Mapping[str, Any]]:
    kind = path.suffix.lower()
    try:
        if kind == ".parquet":
            import pyarrow.parquet as pq

            yield from pq.read_table(path).to_pylist()
            return
        with path.open(encoding="utf-8-sig", newline="") as stream:
            if kind == ".jsonl":
                yield from _objects(stream, path)
            elif kind in (".csv", ".tsv"):
                yield from _cells(csv.reader(stream, delimiter="\t" if kind == ".tsv" else ",", strict=True))
            else:
                yield from _cells(line.split() for line in stream)
    except (ValueError, csv.Error) as error:
        raise InputError("the table of pairs cannot be read", where=path, got=str(error).partition("\n")[0]) from error


def _objects(stream: TextIO, path: Path) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(stream, 1):
        if line.strip():
            where = f"{path}, line {number}"
            record = parse_json(line, where)
            if not isinstance(record, dict):
                raise InputError("a line that is not a JSON object", where=where, got=line[:60].strip())
            yield record


def _cells(lines: Iterable[list[str]]) -> Iterator[Mapping[str, Any]]:
    """The rows of a file by the names in its header; a row of another length has lost or gained a comma.

    TREC's judgements have no header: four cells, the last of which is a number.
    """
    records = filter(None, lines)
    header = next(records, [])
    if len(header) == len(_TREC) and re.fullmatch(r"[+-]?\d+", header[-1]):
        records, header = chain([header], records), list(_TREC)
    if len(set(header)) < len(header):
        raise ValueError("two columns have the same name")
    for number, record in enumerate(records):
        if len(record) != len(header):
            raise ValueError(f"row {number} has {len(record)} cells, the header {len(header)}")
        yield dict(zip(header, record, strict=True))


def remember_pairs(job: Job) -> Pairs:
    """Read the pairs of the settings, and record the file."""
    path = job.settings.pairs
    job.remember("pairs", kind="file", name=path, fingerprint=file_sha256(Path(path)) if Path(path).is_file() else "")
    return read_pairs(path)


def pick_rows(job: Job, pairs: Pairs, documents: VectorSource, queries: VectorSource) -> Collected:
    """The vectors of all queries and documents, by their ids."""
    from anisoscope.runs.work.observers.picks import Picks

    def picked(label: str, source: VectorSource, wanted: list[str]) -> Part:
        def add(sums: dict[str, Any], block: Any) -> None:
            sums["picks"].offer(block.x, block.names)

        part = job.sum_vectors(label, source, lambda: {"picks": Picks(wanted)}, add)
        part.about["share"] = job.machine.shard is not None
        return part

    found = {QUERIES: picked(QUERIES, queries, pairs.queries)}
    return found | {DOCUMENTS: picked(DOCUMENTS, documents, pairs.documents)}


def pick_texts(job: Job, model: OpenModel, pairs: Pairs) -> Collected:
    """The vectors of all queries and documents, by their texts."""
    from anisoscope.inputs.sources import Document, MemorySource
    from anisoscope.runs.work.observers.picks import TextPicks
    from anisoscope.studies.folds import for_queries

    if pairs.by_id:
        raise UsageError(
            "these pairs name queries and documents by id, and a model reads texts",
            where=job.settings.pairs,
            do="give files of vectors with --ids, or a table of texts with the columns query and document",
        )
    found: Collected = {}
    sides = ((QUERIES, for_queries(job, model), pairs.queries), (DOCUMENTS, model, pairs.documents))
    for label, led, texts in sides:
        job.use(MemorySource([Document(text, text) for text in texts], modality="text", name=label), field=label)
        make = lambda encoder=led.encoder: {"picks": TextPicks(encoder)}  # noqa: E731  # made anew for every unit
        found[label] = job.run(label, led, make, field=label, limit=None, first=True)
        found[label].about["share"] = job.machine.shard is not None
    return found


def labelled(pairs: Pairs, collected: Mapping[str, Part]) -> tuple[Labelled | None, list[str]]:
    """The pairs with their vectors, and notes on those that have none.

    A document of the query's name is the query itself, which is not searched for, unless queries are files of their
    own. A share of the data may hold no whole pair: then there is nothing to search yet.
    """
    x = {label: collected[label].get("picks", "rows").found for label in (QUERIES, DOCUMENTS)}
    queries, documents = _there(pairs.queries, x[QUERIES]), _there(pairs.documents, x[DOCUMENTS])
    apart = "queries" in collected
    asked = [(q, d, score) for q, d, score in pairs.rows if apart or q != d]
    kept = [(queries[q], documents[d], score) for q, d, score in asked if q in queries and d in documents]
    lost = len(asked) - len(kept)
    related = any(score > 0 for _, _, score in kept)
    if not related and collected[QUERIES].about.get("share"):
        return None, ["no related pair is in this share of the data: search is measured when the shares are merged"]
    if not related:
        raise InputError(
            "no related pair has vectors",
            got=f"{_pairs(lost)} without",
            do="name the column of ids with --ids; without it ids are row numbers",
        )
    absent = sum(sequence_key(q) not in x[QUERIES] or sequence_key(d) not in x[DOCUMENTS] for q, d, _ in asked)
    notes = list(pairs.notes)
    if absent:
        notes.append(f"{_pairs(absent)} left out: a query or a document has no vector")
    if lost > absent:
        notes.append(f"{_pairs(lost - absent)} left out: a vector is zero, not finite or too large to have a norm")
    if len(asked) < len(pairs.rows):
        notes.append(f"{_pairs(len(pairs.rows) - len(asked))} left out: the document is the query itself")
    table = np.array([(q, d) for q, d, _ in kept], dtype=np.int64)
    scores = np.array([score for _, _, score in kept])
    keys, itself = sequence_keys(queries), np.array([-1 if apart else documents.get(query, -1) for query in queries])
    vectors = _matrix(queries, x[QUERIES]), _matrix(documents, x[DOCUMENTS])
    return Labelled(*vectors, table, scores, keys, itself, tuple(documents)), notes


def _pairs(count: int) -> str:
    return "1 pair" if count == 1 else f"{count} pairs"


def kinds() -> dict[str, Any]:
    """An empty collection for each observer of a study on embeddings and pairs."""
    from anisoscope.runs.work.observers.picks import Picks
    from anisoscope.studies import folds

    return {**folds.kinds(), "picks": Picks}


def search_maps(
    data: Labelled,
    maps: Mapping[str, Callable[[Any], Any]],
    *,
    asked: Mapping[str, Callable[[Any], Any]] | None = None,
    seed: int,
) -> dict[str, Found]:
    """Search after every map; `asked` are the maps of queries, by the same names."""
    return {
        name: search(
            replace(data, queries=(asked or maps)[name](data.queries), documents=made(data.documents)), seed=seed
        )
        for name, made in maps.items()
    }


def _there(names: list[str], found: Mapping[int, NDArray[Any]]) -> dict[str, int]:
    """The number of each name that has a finite vector that is not zero."""
    keys = dict(zip(names, sequence_keys(names).tolist(), strict=True))
    good = [name for name in names if keys[name] in found and 0 < np.linalg.norm(found[keys[name]]) < np.inf]
    return {name: number for number, name in enumerate(good)}


def _matrix(names: Mapping[str, int], found: Mapping[int, NDArray[Any]]) -> NDArray[np.float64]:
    return np.stack([found[key] for key in sequence_keys(names).tolist()]).astype(float)
