"""Vectors in files or arrays: how anisotropic, by drift or by spectrum.

One streaming pass, every metric from its sums, a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from anisoscope.errors import InputError, UsageError
from anisoscope.inference.verdict import Verdict
from anisoscope.runs.job import Job
from anisoscope.runs.settings import Sample, option
from anisoscope.runs.story import Story, Table, interval, number, percent, valued
from anisoscope.runs.study import SHARED, Findings, Study, words_of
from anisoscope.runs.table import Row
from anisoscope.runs.work.collected import Collected
from anisoscope.studies import two_clouds

if TYPE_CHECKING:
    from anisoscope.inputs.vectors.source import VectorSource
    from anisoscope.runs.work.collected import Part

SITE = "vectors"
PAIRED = 1024  # sampled vectors whose pairs make the histogram of similarities


class VectorFiles(Sample):
    """Files of vectors, and which of their columns are read."""

    files: list[str] = option(
        "Files, folders or globs: .npy .npz .safetensors .parquet .arrow .feather .csv .jsonl",
        argument=True,
        paths=True,
        min_length=1,
    )
    column: str | None = option("Column or array that holds the vectors.", None)
    group: str | None = option("Column that names each row's sequence (document, user, …).", None)


class VectorsSettings(VectorFiles):
    """What `anisoscope vectors` is asked."""

    spectrum: bool = option("Measure the covariance spectrum too.", True)
    neighbours: bool = option("Measure neighbourhoods too (on a sample).", True)
    ids: str | None = option("Column that names rows: hubs in the table, sampled rows on the page.", None)
    keep_text: bool = option("Keep the names (--ids) of the sampled rows, for hovering and neighbours.", False)
    against: list[str] = option("A second cloud to compare with: files or globs.", [], paths=True)
    aligned: bool = option("Row i of one cloud belongs to row i of the other: compare them up to rotation.", False)
    rows_per_group_sample: float | None = option(
        "A first look: only this share of the rows (.parquet, .arrow), drawn and grouped by row group.",
        None,
        gt=0,
        lt=1,
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.aligned and not self.against:
            raise UsageError("--aligned needs a second cloud", do="name it with --against")
        if self.keep_text and self.ids is None:
            raise UsageError("--keep-text needs a column", do="name it with --ids")
        return self


def collect(job: Job) -> Collected:
    """One pass over the rows of the files; with a second cloud one over that, and one over both if they are aligned."""
    settings = job.settings
    source = job.vectors(column=settings.column, group=settings.group, ids=settings.ids)
    found = {
        "": _named_hubs(job, source, sum_vectors(job, source, spectrum=settings.spectrum, texts=settings.keep_text))
    }
    if settings.against:
        second = two_clouds.second_cloud(job, source)
        found[two_clouds.AGAINST] = sum_vectors(job, second, label=two_clouds.AGAINST, spectrum=settings.spectrum)
        if settings.aligned:
            found[two_clouds.PAIR] = two_clouds.sum_aligned(job, source, job.vectors("against"))
    return found


def _named_hubs(job: Job, source: VectorSource, part: Part) -> Part:
    """The part with the names of the hubs among its sampled rows, where rows have names."""
    from anisoscope.studies.hubs import ids_of

    part.about["numbered"] = source.numbered
    if job.settings.ids is not None and source.numbered and job.settings.neighbours:
        sample = part.get("hidden", SITE).sample()
        part.about["names"] = ids_of(job, source, sample.x, sample.keys)
    return part


def sum_vectors(job: Job, source: VectorSource, *, label: str = "", spectrum: bool = True, texts: bool = False) -> Part:
    """The moments of all vectors of a source, under the site `vectors`; `texts` keeps the ids of sampled rows."""
    import numpy as np

    from anisoscope.accumulate.moments import Moments
    from anisoscope.runs.work.clouds import TOKENS, Clouds, KeptTexts, exact_rows, excerpt

    settings = job.settings

    def make() -> dict[str, Any]:
        sums = Clouds()
        sums.parts[SITE] = Moments(source.dim, spectrum=spectrum, reservoir=settings.sample, seed=settings.seed)
        kept = {"texts": KeptTexts(capacity=settings.sample, seed=settings.seed)} if texts else {}
        return {"hidden": sums, **kept}

    def add(sums: dict[str, Any], block: Any) -> None:
        x = exact_rows(block)
        moments, places = sums["hidden"].parts[SITE], None
        if texts:
            places = moments.arrivals(block.keys, len(x))
            known = block.numbers.astype(np.uint64) if block.keys is None else block.keys
            sums["texts"].texts(TOKENS).offer(known, places, lambda row: excerpt(block.ids[row]))
        moments.update(x, sequences=block.keys, positions=places, start=block.start)

    part = job.sum_vectors(label or source.name, source, make, add)
    part.about |= {"data": {"name": source.name, "fingerprint": source.fingerprint(), "dimension": source.dim}}
    part.about["sequence"] = source.sequences
    drawn = getattr(source, "drawn", None)
    if drawn is not None:
        part.about["data"] |= {"drawn": drawn.words, "of": source.rows}
    return part


def conclude(settings: VectorsSettings, collected: Collected) -> Findings:
    """Rows and verdict from the sums; refuses a cloud with nothing to measure."""
    from anisoscope.inference.cloud import measure_cloud
    from anisoscope.runs.measurement import cloud_rows
    from anisoscope.studies.hubs import hubs_among

    moments = {label: part.get("hidden", SITE) for label, part in collected.items() if label != two_clouds.PAIR}
    protocol = {
        "pairs": "all pairs of different vectors",
        "sequence": _sequence(settings, collected[""]),
        "excluded": "zero and non-finite vectors",
        "sample": f"{len(moments[''].sample())} vectors, seed {settings.seed}",
    }
    if settings.keep_text:
        protocol["text"] = f"column {settings.ids}, kept for the sample (--keep-text)"
    rows, notes, verdicts = [], {}, []
    drawn = collected[""].about["data"].get("drawn")
    if drawn is not None:
        protocol["rows"] = f"{drawn}, seed {settings.seed}"
    for label, one in moments.items():
        check_something(one.sums())
        cloud = measure_cloud(one, spectra=settings.spectrum, neighbours=settings.neighbours, things="vectors")
        if settings.neighbours:
            sample, about = one.sample(), collected[label].about
            numbered = bool(about.get("numbered", True))
            cloud.estimates["all"] += hubs_among(sample.x, sample.keys, about.get("names", {}), numbered=numbered)
        own = words_of({**protocol, "sequence": _sequence(settings, collected[label])})
        rows += cloud_rows(cloud, site=label or SITE, protocol=own)
        notes[label] = cloud.notes
        verdicts.append({"model": "", "site": label or SITE, **cloud.verdict.as_dict()})
    data = {**collected[""].about["data"], "rows": moments[""].sums().n}
    said: Any = Verdict.from_dict(verdicts[0])
    if drawn is not None:
        of = f" of {data['of']:,}" if data["of"] else ""
        said = replace(said, sentence=f"From {data['rows']:,}{of} rows ({drawn}): {said.sentence}")
        verdicts[0]["sentence"] = said.sentence
    if len(moments) > 1:
        found = two_clouds.pair_estimates(collected, moments)
        rows += [Row(site=two_clouds.PAIR, **asdict(one), protocol=words_of(protocol)) for one in found]
        cosines = [row.value for row in rows if (row.metric, row.positions) == ("mean_cosine", "all")]
        said = two_clouds.sentence(found, cosines)
    arrays = _similarities(moments) if settings.neighbours else {}
    return Findings(rows, said, arrays, notes_of=notes, protocol=protocol, data=data, verdicts=verdicts)


def _sequence(settings: VectorsSettings, part: Part) -> str:
    """What a sequence is in a cloud; shards of earlier versions know their setting alone."""
    return part.about.get("sequence") or f"column {settings.group}"


def _similarities(moments: Mapping[str, Any]) -> dict[str, Any]:
    """Histograms of the cosines of sampled pairs, of different sequences, by cloud."""
    from anisoscope.inference.floor import HeldOut, cosine_histograms, similarities

    samples = {label or SITE: one.sample() for label, one in moments.items()}
    held = {name: HeldOut(one.x[:PAIRED].astype(float), one.keys[:PAIRED]) for name, one in samples.items()}
    found = {name: similarities(rows, lambda x: x) for name, rows in held.items()}
    return cosine_histograms(
        {name: one.cosines[one.once] for name, one in found.items() if one.once.any()}, moments[""].d
    )


def check_something(sums: Any) -> None:
    """Refuse a cloud of one dimension, or of fewer than two usable vectors."""
    if sums.d < 2:
        raise InputError("vectors of one dimension have no directions to compare", got="d = 1", expected="d ≥ 2")
    if sums.n < 2:
        raise InputError(
            "there is nothing to measure",
            got=f"{sums.n} usable vectors, {sums.zero} zero, {sums.nonfinite} with NaN or infinite entries",
            expected="at least two finite vectors that are not zero",
        )


def kinds() -> Mapping[str, Any]:
    from anisoscope.runs.work.clouds import AlignedClouds, Clouds, KeptTexts

    return {"hidden": Clouds, two_clouds.OBSERVER: AlignedClouds, "texts": KeptTexts}


_FIRST = ("mean_cosine", "drift_ratio", "participation_ratio_unbiased", "isoscore", "cosine_q95", "hubness")


def story(rows: Sequence[Row]) -> Story:
    """Six lines that matter; everything else on request, by group."""
    from anisoscope.inference.metrics import GROUPS, METRICS
    from anisoscope.studies.hubs import told_hubs

    if any(row.site == two_clouds.PAIR for row in rows):
        return two_clouds.story(rows)
    by_name = {row.metric: row for row in rows if row.positions == "all" and row.at is None}
    columns = ("", "value", "95 % interval", "isotropic")

    def line(name: str) -> list[str]:
        row = by_name[name]
        return [METRICS[name].label, valued(row), interval(row), "" if row.null is None else number(row.null)]

    known = [name for name in METRICS if name in by_name and by_name[name].value is not None]
    more = [
        Table((group, *columns[1:]), [line(name) for name in known if METRICS[name].group == group]) for group in GROUPS
    ]
    shares = [row for row in rows if row.metric == "cosine_share" and row.positions == "all" and row.value is not None]
    if shares:
        cells = [[f"dimension {row.at:.0f}", percent(row.value)] for row in shares[:3]]
        more.append(Table(("carries the cosine", "share"), cells))
    first = Table(columns, [line(name) for name in _FIRST if name in known])
    hubs, others = told_hubs(rows)
    return Story([first, *hubs], more=[table for table in (*more, *others) if table.cells])


STUDY = Study(
    VectorsSettings,
    collect=collect,
    conclude=conclude,
    kinds=kinds,
    story=story,
    machine=("threads", *SHARED),
    help="""
Measure vectors in files: how anisotropic they are, by drift or by spectrum, with intervals and nulls.

One pass, exact over all pairs, in constant memory.

Examples:
  anisoscope vectors embeddings.npy
  anisoscope vectors 'shards/*.parquet' --column embedding --group document
  anisoscope vectors vectors.jsonl --json | jq .verdict
  anisoscope vectors images.npy --against captions.npy --aligned
""",
)
