"""Similarity floor and thresholds of embeddings, and what would help.

For people whose similarities are all above 0.7. The floor is the distribution of the cosine of unrelated pairs: two
rows of different groups (documents, topics; every row its own where there are none), or a query and a document. A
threshold at false-positive rate p is the floor's quantile 1 − p. Corrections are fitted on the groups of some folds and
judged on those of the others (`studies.folds`, `inference.floor`). With labelled pairs: nDCG, recall, and thresholds
that hold for new queries (`inference.retrieval`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from anisoscope.errors import InputError
from anisoscope.geometry import corrections
from anisoscope.geometry.hubs import find_hubs
from anisoscope.inference.estimates import Estimate
from anisoscope.inference.floor import HeldOut, cosine_histograms, measure_floor
from anisoscope.inference.hubs import answer_estimates
from anisoscope.inference.retrieval import Labelled, retrieval_estimates
from anisoscope.runs.job import Job
from anisoscope.runs.settings import option
from anisoscope.runs.study import Findings, Study
from anisoscope.runs.table import Row, row_of
from anisoscope.runs.work.collected import Collected, Part
from anisoscope.studies import folds
from anisoscope.studies.calibrate.advice import LEVELS, WORDS, advice, percentiles, story
from anisoscope.studies.hubs import hubs_among, ids_of, shortened, texts_of
from anisoscope.studies.pairs import (
    PairSettings,
    kinds,
    labelled,
    pick_rows,
    pick_texts,
    read_pairs,
    remember_pairs,
    search_maps,
)


class CalibrateSettings(PairSettings, folds.TwoSided):
    """What `anisoscope calibrate` is asked."""

    rate: list[Annotated[float, Field(gt=0, lt=1)]] = option(
        "False-positive rates of the thresholds.", [0.05, 0.01, 0.001], min_length=1
    )


def collect(job: Job) -> Collected:
    """One pass over the rows or the texts, one over the queries, and one over each side of the pairs."""
    settings = job.settings
    if folds.of_model(job):
        return _of_model(job)
    source = folds.open_rows(job)
    asked = folds.open_queries(job, source)
    parts = {"": folds.sum_folds(job, source)}
    parts[""].about["numbered"] = source.numbered
    if settings.ids is not None and source.numbered:
        name_hubs(job, parts[""], lambda held: ids_of(job, source, held.rows, held.keys))
    if asked is not None:
        parts["queries"] = folds.sum_folds(job, asked, label="queries")
    if settings.pairs is not None:
        parts |= pick_rows(job, remember_pairs(job), source, asked or source)
    return parts


def _of_model(job: Job) -> Collected:
    model = folds.open_encoder(job)
    parts = folds.embed_folds(job, model)
    name_hubs(job, parts[""], lambda held: texts_of(job, held.rows, _text_keys(held)))
    if job.settings.pairs is not None:
        parts |= pick_texts(job, model, remember_pairs(job))
    return parts


def name_hubs(job: Job, part: Part, look_up: Callable[[HeldOut], dict[str, str]]) -> None:
    """Look up the names of hubs; a share of the data has too little, and names none."""
    if job.machine.shard is None and job.engine.world == 1 and job.unit is None:
        part.about["names"] = look_up(folds.split_folds(part).held)


def _text_keys(held: HeldOut) -> NDArray[np.uint64]:
    """The keys of the texts, also where sequences are topics."""
    assert held.places is not None
    return held.places.view(np.uint64)


def _hubs(held: HeldOut, part: Part) -> list[Estimate]:
    numbered, names = part.about.get("numbered"), part.about.get("names", {})
    keys = held.keys if numbered is not None else _text_keys(held)
    return hubs_among(held.rows, keys, names, numbered=bool(numbered))


def _answers(data: Labelled) -> list[Estimate]:
    asked = data.judged
    hubs = find_hubs(data.documents, queries=data.queries[asked], own=data.itself[asked])
    return answer_estimates(hubs, [shortened(name) for name in data.names], len(asked))


def conclude(settings: CalibrateSettings, collected: Collected) -> Findings:
    """The floor, the thresholds and the nearest neighbours, raw and after each correction; search, where labelled."""
    part = collected[""]
    split = folds.split_folds(part)
    held = split.held
    hubs = _hubs(held, part)
    if "queries" in collected:
        held = with_queries(collected["queries"], held)
    names = [name for name, method in corrections.NAMES.items() if split.leaves(method)]
    correct = {name: partial(split.fitted.apply, name) for name in names}
    estimates, cosines = measure_floor(held, correct, rates=settings.rate)
    judged = f"held out, fitted on {split.n_fit} rows"
    rows = _rows(estimates, judged) + percentiles(cosines["raw"]) + _rows({"raw": hubs}, "held out")
    notes = list(split.left_out)
    notes += [f"{WORDS[name]} leaves nothing but rounding errors" for name in corrections.NAMES if name not in names]
    if settings.pairs is not None:
        data, said = labelled(read_pairs(settings.pairs), collected)
        notes += said
        if data is not None:
            words = f"{len(data.judged)} queries, {len(data.documents)} documents"
            rows += _rows(_searched(data, split.whole, settings, names), words) + _rows({"raw": _answers(data)}, words)
    d = held.rows.shape[1]
    if split.n_fit < 10 * d:
        notes.append(f"fitted on {split.n_fit} vectors in {d} dimensions: whitening needs ten times d")
    protocol = {**part.about.get("protocol", {}), **_protocol(settings, collected, len(held.rows), split.n_fit)}
    data_ = {**part.about.get("data", {}), "rows": split.n}
    arrays = cosine_histograms(cosines, d) | {
        "floor.levels": LEVELS,
        "floor.values": np.quantile(cosines["raw"], LEVELS),
    }
    return Findings(rows, advice(rows), arrays=arrays, protocol=protocol, data=data_, notes=notes)


def _searched(
    data: Labelled, fitted: corrections.Corrections, settings: CalibrateSettings, names: Sequence[str]
) -> dict[str, list[Estimate]]:
    """What every correction, fitted on all rows (which have no labels), does to search."""
    found = search_maps(data, {name: partial(fitted.apply, name) for name in names}, seed=settings.seed)
    return retrieval_estimates(found, data.labels, settings.rate)


def with_queries(asked: Any, documents: HeldOut) -> HeldOut:
    """Queries against the held-out documents."""
    samples = [asked.get(folds.OBSERVER, name).reservoir.sample() for name in asked.keys(folds.OBSERVER)]
    if not sum(map(len, samples)):
        raise InputError("there is no usable query", expected="finite vectors that are not zero")
    rows = np.concatenate([sample.x for sample in samples])[: folds.HELD_OUT].astype(float)
    keys = np.concatenate([sample.keys for sample in samples])[: folds.HELD_OUT]
    return HeldOut(rows, keys, against=documents.rows)


def _rows(estimates: Mapping[str, Sequence[Estimate]], protocol: str) -> list[Row]:
    return [row_of(one, site=name, protocol=protocol) for name, found in estimates.items() for one in found]


def _protocol(settings: CalibrateSettings, collected: Collected, held: int, fitted: int) -> dict[str, Any]:
    kind = "query and document" if "queries" in collected else "two rows"
    about = collected[""].about
    grouped = settings.group or "model" in about or about.get("numbered") is False  # topics, labels in memory
    apart = grouped and "queries" not in collected
    return {
        "pairs": f"{kind}, of different groups" if apart else f"{kind} at random",
        "held out": f"{held} rows, fitted on {fitted} others",
        "seed": settings.seed,
    }


STUDY = Study(
    CalibrateSettings,
    collect=collect,
    conclude=conclude,
    kinds=kinds,
    story=story,
    help="""
Similarity floor and thresholds of a set of embeddings, and what centring, all-but-the-top or whitening would do.

A model is calibrated on sentences that come with the package, grouped by topic, or on the texts of --data. With --pairs
the effect on search is measured, and thresholds hold for new queries. --all prints the percentile of every cosine, and
three lines of numpy that compute it.

Examples:
  anisoscope calibrate embeddings.npy
  anisoscope calibrate documents.parquet --queries queries.parquet --rate 0.01,0.001
  anisoscope calibrate sentence-transformers/all-MiniLM-L6-v2 --data texts/
  anisoscope calibrate documents.parquet --ids id --pairs judgements.csv
""",
)
