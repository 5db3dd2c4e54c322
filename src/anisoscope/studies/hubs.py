"""Hubs by name, for studies that keep a sample: by row number, by id, or by text.

A row of a file is known by its number; ids and texts are looked up for the hubs alone, where the sample is final (in
one process: shards name hubs by number). Rows of named groups have no number of their own, and only their group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anisoscope.geometry.hubs import find_hubs
from anisoscope.geometry.rows import distinct_rows
from anisoscope.inference.hubs import SHOWN, hub_estimates
from anisoscope.runs.job import Job
from anisoscope.runs.story import Table, number
from anisoscope.runs.table import Row

if TYPE_CHECKING:
    from anisoscope.inference.estimates import Estimate
    from anisoscope.inputs.vectors.source import VectorSource

FEWEST, SAMPLE = 32, 1024
KEY = "key"  # before the hash of a row that has no name
_TEXT = 60


BEYOND = 1.5  # times the skewness of an isotropic cloud: hubs that are worth naming first


def hubs_among(x: Any, keys: Any, names: Mapping[str, str], *, numbered: bool) -> list[Estimate]:
    """The hubs of a sample x (m, d) of the rows with these keys, at most 1,024; empty where there are too few."""
    x, keys, repeated = _distinct(x, keys)
    if len(x) < FEWEST:
        return []
    word = "row" if numbered else KEY
    named = [names.get(str(key), f"{word} {key}") for key in keys.tolist()]
    return hub_estimates(find_hubs(x), named, x.shape[1], repeated)


def _distinct(x: Any, keys: Any) -> tuple[Any, Any, int]:
    """The first 1,024 rows and their keys without those that repeat another, and how many these are.

    Copies are each other's nearest neighbours, and chance would make hubs of some.
    """
    x, keys = x[:SAMPLE], np.asarray(keys)[:SAMPLE]
    kept = distinct_rows(x)
    return x[kept], keys[kept], len(x) - len(kept)


def ids_of(job: Job, source: VectorSource, x: Any, keys: Any) -> dict[str, str]:
    """The ids of the hubs among sampled rows, which are known by number."""
    from anisoscope.runs.work.blocks import blocks_of
    from anisoscope.runs.work.units import Unit

    wanted = _wanted(job, x, keys)
    found: dict[str, str] = {}
    for _, block in blocks_of(source, Unit()) if wanted else ():
        for number_, name in zip(block.numbers.tolist(), block.names, strict=True):
            if str(number_) in wanted:
                found[str(number_)] = name
    return found


def texts_of(job: Job, x: Any, keys: Any) -> dict[str, str]:
    """The texts of the hubs among sampled documents, which are known by the keys of their names."""
    from anisoscope.accumulate.keys import sequence_key

    wanted = _wanted(job, x, keys)
    found: dict[str, str] = {}
    for document in job.source("text") if wanted else ():
        key = str(sequence_key(document.key))
        if key in wanted:
            found[key] = f"{document.key}: {shortened(document.text)}"
    return found


def shortened(text: str) -> str:
    """One line of at most sixty characters."""
    line = " ".join(text.split())
    return line if len(line) <= _TEXT else f"{line[: _TEXT - 1]}…"


def _wanted(job: Job, x: Any, keys: Any) -> set[str]:
    x, keys, _ = _distinct(x, keys)
    alone = job.machine.shard is None and job.unit is None and job.engine.world == 1
    if not alone or len(x) < FEWEST:
        return set()
    return set(map(str, keys[find_hubs(x).top(SHOWN)].tolist()))


def told_hubs(rows: Sequence[Row]) -> tuple[list[Table], list[Table]]:
    """The tables of hubs to show first, and those to show on request: hubs of an isotropic cloud are not news.

    Rows of named groups are known by their group alone, and a table of hashes would tell a reader nothing.
    """
    skewed = next((row for row in rows if row.metric == "hubness_cosine"), None)
    plain = skewed is not None and (skewed.value or 0.0) <= BEYOND * (skewed.null or 0.0)
    tables = hub_table(rows)
    nameless = all(row.note.startswith(f"{KEY} ") for row in rows if row.metric.endswith("hub_occurrence"))
    if nameless:
        return [], []
    return ([], tables) if plain else (tables, [])


def hub_table(rows: Sequence[Row]) -> list[Table]:
    """Who is a neighbour of too many, and which documents too many queries find."""
    tables = []
    for metric, told in (
        ("hub_occurrence", "hubs among {:,} rows"),
        ("query_hub_occurrence", "what {:,} queries find"),
    ):
        found = [row for row in rows if row.metric == metric]
        body = [[row.note, number(row.value), number(row.null)] for row in found]
        heads = (told.format(found[0].n), "in the ten nearest of", "on average") if found else ()
        left_out = next((row.note for row in rows if row.metric == "hubness_cosine"), "")
        tables += [Table(heads, body, caption=left_out if metric == "hub_occurrence" else "")] if found else []
    return tables
