"""Fit a correction of embeddings, to apply and to export.

`remedy fit` is this study: sums of the vectors in four folds, candidates fitted on some and judged on the others, the
chosen one fitted on everything. Its run holds the map; `apply` and `export` take it from there. Queries that are given
apart have a mean of their own in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from anisoscope.runs.job import Job
from anisoscope.runs.settings import option
from anisoscope.runs.story import Story, Table, interval
from anisoscope.runs.study import Findings, Study, words_of
from anisoscope.runs.table import Row, row_of
from anisoscope.runs.work.collected import Collected
from anisoscope.studies import folds, pairs

_COLUMNS = ("floor_mean", "threshold", "nearest_gap", "nearest_gap_difference", "neighbour_overlap")
_SEARCH = ("ndcg", "ndcg_difference")


class RemedySettings(pairs.PairSettings, folds.TwoSided):
    """What `anisoscope remedy fit` is asked."""

    method: Literal["best", "centre", "standardise", "all-but-the-top", "whiten", "whiten-k", "soft-zca"] = option(
        "The correction; best is chosen on held-out groups.", "best", short="-m"
    )
    dims: int | None = option("Dimensions to reduce to (default: all; whiten-k: 256).", None, ge=2)


def collect(job: Job) -> Collected:
    """One pass over the vectors, or over the texts of a model."""
    wanted = None if job.settings.pairs is None else pairs.remember_pairs(job)
    if folds.of_model(job):
        model = folds.open_encoder(job)
        return {**folds.embed_folds(job, model), **({} if wanted is None else pairs.pick_texts(job, model, wanted))}
    source = folds.open_rows(job)
    asked = folds.open_queries(job, source)
    found = {
        "": folds.sum_folds(job, source),
        **({} if asked is None else {"queries": folds.sum_folds(job, asked, label="queries")}),
    }
    return found if wanted is None else {**found, **pairs.pick_rows(job, wanted, source, asked or source)}


def conclude(settings: RemedySettings, collected: Collected) -> Findings:
    """The map, what it does to held-out pairs, and what the other methods would do."""
    import numpy as np

    from anisoscope.studies.remedy.choice import choose
    from anisoscope.studies.remedy.estimator import LEVELS

    part = collected[""]
    split = folds.split_folds(part)
    data, said = (None, []) if settings.pairs is None else pairs.labelled(pairs.read_pairs(settings.pairs), collected)
    asked = folds.split_folds(collected["queries"]) if "queries" in collected else None
    found = choose(split, settings.method, settings.dims, pairs=data, queries=asked, seed=settings.seed)
    d, k = found.map.dims
    protocol = {
        "method": found.method,
        "map": f"y = (x − mean)·matrix, then y/‖y‖; {d} to {k} dimensions",
        "judged on": f"{len(split.held.rows)} rows of groups apart, fitted on {split.n_fit} others",
        "fitted on": f"all {split.n} rows" + ("" if asked is None else f"; the mean of queries on all {asked.n}"),
        **part.about.get("protocol", {}),
    }
    words = words_of(protocol)
    rows = [row_of(one, site=name, protocol=words) for name, ones in found.estimates.items() for one in ones]
    arrays = {**found.map.arrays, "floor.levels": LEVELS, "floor.values": found.floor}
    if found.length is not None:
        arrays["length"] = np.array([found.length])
    if found.query_mean is not None:
        arrays["mean.query"] = found.query_mean
    few = [] if split.n_fit >= 10 * d else [f"{split.n_fit} vectors in {d} dimensions: whitening needs ten times d"]
    notes = [*split.left_out, *said, *few]
    data = {**part.about.get("data", {}), "rows": split.n}
    return Findings(rows, found.sentence, arrays=arrays, notes=notes, protocol=protocol, data=data)


def story(rows: Sequence[Row]) -> Story:
    """One line for each method."""
    cells = {(row.site, row.metric): row for row in rows if row.at is None or row.at == 0.01}
    body = []
    for site in dict.fromkeys(row.site for row in rows):
        found = [cells.get((site, metric)) for metric in _COLUMNS]
        values = ["–" if row is None or row.value is None else f"{row.value:.3f}" for row in found]
        body.append([site, *values[:4], interval(found[3]), values[4]])
    searched = [_search_line(site, cells) for site in dict.fromkeys(row.site for row in rows)]
    search = Table(("search", "nDCG@10", "change", "95 % interval"), [line for line in searched if line])
    columns = ("", "floor", "threshold", "gap", "gain", "95 % interval", "kept")
    caption = (
        "Threshold: 1 % of unrelated pairs lie above it. Gap: the best match above the floor, in sds of the floor. "
        "Kept: share of the ten nearest neighbours."
    )
    return Story([Table(columns, body, caption=caption), *([search] if search.cells else [])])


def _search_line(site: str, cells: Mapping[tuple[str, str], Row]) -> list[str]:
    after, moved = (cells.get((site, metric)) for metric in _SEARCH)
    if after is None:
        return []
    change = "" if moved is None or moved.value is None else f"{moved.value:+.3f}"
    return [site, f"{after.value:.3f}", change, interval(moved)]


STUDY = Study(
    RemedySettings,
    collect=collect,
    conclude=conclude,
    kinds=pairs.kinds,
    story=story,
    help="""
Fit a correction of embeddings: one affine map and a norm, from one pass in constant memory.

Without --method the best one is chosen on groups that none was fitted on; where nothing is worth doing, it says so.
With --queries each side is centred on its own mean, and `apply --side query` is for queries.

Examples:
  anisoscope remedy fit embeddings.npy -o remedy/
  anisoscope remedy fit documents.parquet --column embedding --method whiten-k --dims 128 -o remedy/
  anisoscope remedy fit documents.npy --queries queries.npy -o remedy/
  anisoscope remedy fit sentence-transformers/all-MiniLM-L6-v2 --data texts/ -o remedy/
  anisoscope remedy fit encoder/ --data texts/ --queries questions.txt --query-prompt 'query: ' -o remedy/
""",
)
