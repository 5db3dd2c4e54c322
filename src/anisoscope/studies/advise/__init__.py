"""How few dimensions and bits embeddings can be stored in, and whether to centre them first.

Each variant (`variants`) keeps some of a row's ten nearest neighbours, found among all rows for a sample of queries
(`neighbours`). Beside it stand what it costs in memory, nDCG@10 where pairs are labelled, and a forecast of the same
number from the mean and the covariance alone (`forecast`), with how far off it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from anisoscope.errors import InputError
from anisoscope.runs.job import Job
from anisoscope.runs.settings import option
from anisoscope.runs.story import percent
from anisoscope.runs.study import RUNS_MODEL, Findings, Study, lost, words_of
from anisoscope.runs.table import Row
from anisoscope.studies import folds
from anisoscope.studies.advise.story import advice, story
from anisoscope.studies.pairs import PairSettings, labelled, pick_rows, pick_texts, read_pairs, remember_pairs

if TYPE_CHECKING:
    from anisoscope.geometry.corrections import Corrections
    from anisoscope.studies.advise.cloud import Cloud
    from anisoscope.studies.advise.neighbours import Search
    from anisoscope.studies.advise.variants import Variant

SEARCH_NAMES = ("ndcg", "ndcg_difference")


class AdviseSettings(PairSettings, folds.Embeddings):
    """What `anisoscope advise` is asked."""

    dims: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = option(
        "Dimensions to keep: shares of all of them, or numbers above 1.", [1.0, 0.75, 0.5, 0.25, 0.125], min_length=1
    )
    probes: int = option("How many rows, drawn at random, to find neighbours for.", 1000, ge=16, le=2**20)


def measure(job: Job) -> Findings:
    """Sums and a sample, then one search through all rows."""
    from anisoscope.geometry.corrections import fit_sums
    from anisoscope.studies.advise.neighbours import NEIGHBOURS
    from anisoscope.studies.advise.variants import kept_dims, variants

    cloud, pairs = _cloud(job)
    n, d = cloud.sums.n, cloud.sums.d
    if n < folds.FEWEST or cloud.sums.second is None:
        got = f"{n} vectors" if n < folds.FEWEST else f"{d} dimensions"
        raise InputError(
            "too little, or too wide, to advise on", got=got, expected=f"{folds.FEWEST} vectors, 4096 dimensions"
        )
    fitted = fit_sums(cloud.sums.sum_x, cloud.sums.second, n)
    folds.check_directions(fitted, cloud.sample.x)
    groups = variants(fitted, cloud.sample.x, kept_dims(job.settings.dims, d))
    search = _searched(cloud, groups, job.settings.probes, k=min(NEIGHBOURS, n - 2))
    protocol = _protocol(cloud, search, job.settings.seed)
    rows = [replace(row, protocol=words_of(protocol)) for row in _rows(cloud, search, fitted, job.settings.seed)]
    notes = [*cloud.part.about.get("notes", ()), *cloud.notes, *folds.without_direction([cloud.sums])]
    if pairs is not None:
        found, said = _labelled_rows(job, pairs, groups)
        rows, notes = rows + found, notes + said
    if (tied := search.tied()) > 0.01:
        notes.append(f"{percent(tied)} of the rows have tenth and eleventh neighbours alike: either may count as lost")
    if small := [f"{share:g}" for share in job.settings.dims if share <= 1 and round(share * d) < 2]:
        notes.append(f"shares of less than two of {d} dimensions left out: {', '.join(small)}")
    if n < 10 * d:
        notes.append(f"{n} vectors in {d} dimensions: whitening needs ten times d")
    data = {**cloud.part.about.get("data", {}), "rows": n}
    return Findings(rows, advice(rows), notes=notes, protocol=protocol, data=data)


def _cloud(job: Job) -> tuple[Cloud, Any]:
    """What is advised on, and the vectors of labelled pairs where there are any."""
    from anisoscope.studies.advise import cloud

    settings = job.settings
    pairs = None if settings.pairs is None else remember_pairs(job)
    if folds.of_model(job):
        model = folds.open_encoder(job)
        found = cloud.of_model(job, model)
        found.part.about["notes"] = [*found.part.about.get("notes", ()), *lost(_report(found))]
        return found, None if pairs is None else pick_texts(job, model, pairs)
    source = folds.open_rows(job)
    return cloud.of_files(job, source), None if pairs is None else pick_rows(job, pairs, source, source)


def _report(cloud: Cloud) -> Mapping[str, int]:
    from anisoscope.runs.work.collected import report_of

    return report_of(cloud.part.about)


def _searched(cloud: Cloud, groups: Sequence[Sequence[Variant]], probes: int, *, k: int) -> Search:
    """One pass over all rows."""
    from anisoscope.runs.work.passes import follow
    from anisoscope.studies.advise.neighbours import Search

    some = slice(0, min(probes, len(cloud.sample)))
    search = Search(groups, cloud.sample.x[some], cloud.sample.positions[some], k=k)
    told: dict[str, Any] = {"total": cloud.rows, "unit": "vectors", "what": "searching"}
    follow(
        cloud.blocks(), lambda rows: search.add(*rows), {}, size=lambda rows: len(rows[0]), saved=None, start=0, **told
    )
    return search


def _rows(cloud: Cloud, search: Search, fitted: Corrections, seed: int) -> list[Row]:
    """Overlap, its forecast and the memory of every variant, and how far the forecasts were off."""
    from scipy.stats import spearmanr

    from anisoscope.inference.bootstrap import bootstrap, sequence_draws
    from anisoscope.studies.advise.forecast import forecast

    n, queries, k = cloud.sums.n, len(search.own), search.k
    draws = sequence_draws(cloud.sample.keys[:queries], seed=seed)
    foretold = forecast(fitted, search.groups, n=n, k=k, seed=seed)
    whole = search.groups[0][0]
    rows = []
    for variant, shares in search.overlap().items():
        value = float(shares.mean())
        low, high = bootstrap(lambda draws, shares=shares: draws.sums(shares) / draws.weights.sum(1), draws, value)
        like = Row(site=variant.site, at=float(variant.dims))
        ends = {"low": None if low is None else max(low, 0.0), "high": None if high is None else min(high, 1.0)}
        kept = replace(like, metric="neighbour_overlap", value=value, null=k / (n - 1), n=queries, **ends)
        rows += [
            kept,
            replace(like, metric="overlap_forecast", value=foretold[variant], n=n),
            replace(like, metric="memory_per_million", value=variant.bytes / 1000),
            replace(like, metric="bytes_saved", value=whole.bytes / variant.bytes),
        ]
    truth = np.array([shares.mean() for shares in search.overlap().values()][1:])
    missed = np.array(list(foretold.values())[1:]) - truth
    named = {"forecast_bias": missed.mean(), "forecast_error": np.abs(missed).mean()}
    named["forecast_worst"] = np.abs(missed).max()
    named["forecast_rank"] = spearmanr(missed + truth, truth)[0]
    return rows + [Row(site="forecast", metric=name, value=float(v), n=len(missed)) for name, v in named.items()]


def _labelled_rows(job: Job, parts: Any, groups: Sequence[Sequence[Variant]]) -> tuple[list[Row], list[str]]:
    """nDCG@10 of every variant, where pairs have vectors."""
    from anisoscope.inference.retrieval import retrieval_estimates, search
    from anisoscope.studies.advise.variants import mapped

    data, notes = labelled(read_pairs(job.settings.pairs), parts)
    if data is None:
        return [], notes
    found, names = {}, {}
    for group in groups:
        asked, documents = mapped(data.queries, group[0]), mapped(data.documents, group[0])
        for variant in group:
            stored = replace(data, queries=variant.asked(asked), documents=variant.coded(documents))
            names[variant.site, variant.dims] = variant
            found[variant.site, variant.dims] = search(stored, seed=job.settings.seed)
    estimates = retrieval_estimates(found, data.labels, ())
    rows = [
        Row(site=site, at=float(dims), metric=one.metric, value=one.value, low=one.low, high=one.high, n=one.n)
        for (site, dims), ones in estimates.items()
        for one in ones
        if one.metric in SEARCH_NAMES
    ]
    return rows, notes


def _protocol(cloud: Cloud, search: Search, seed: int) -> dict[str, Any]:
    return {
        **cloud.part.about.get("protocol", {}),
        "neighbours": f"the {search.k} of highest cosine among all {cloud.sums.n} rows, for {len(search.own)} of them",
        "beside": "the vectors as they are, in float32",
        "dimensions": "raw: the leading ones; centred, whitened: the principal ones",
        "codes": "int8, int4: one range per dimension, queries in float32; binary: signs on both sides",
        "seed": seed,
    }


STUDY = Study(
    AdviseSettings,
    measure=measure,
    story=story,
    machine=RUNS_MODEL,
    help="""
How few dimensions and bits embeddings can be stored in, and whether centring or whitening helps: the share of the ten
nearest neighbours that stays, the memory, and a forecast of it from the mean and the covariance alone.

Files are read twice, in constant memory. With --pairs nDCG@10 stands beside the overlap.

Examples:
  anisoscope advise embeddings.npy
  anisoscope advise documents.parquet --column embedding --group document --dims 1,0.5,128
  anisoscope advise sentence-transformers/all-MiniLM-L6-v2 --data texts/
  anisoscope advise documents.parquet --ids id --pairs judgements.csv
""",
)
