"""Vectors in files or arrays: how anisotropic, by drift or by spectrum.

One streaming pass, every metric from its sums, a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anisoscope.errors import InputError
from anisoscope.runs.job import Job
from anisoscope.runs.settings import Sample, option
from anisoscope.runs.story import Story, Table, interval, number
from anisoscope.runs.study import SHARED, Findings, Study, words_of
from anisoscope.runs.table import Row
from anisoscope.runs.work.collected import Collected

if TYPE_CHECKING:
    from anisoscope.inputs.vectors.source import VectorSource
    from anisoscope.runs.work.collected import Part

SITE = "vectors"


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
    rows_per_group_sample: float | None = option(
        "A first look: only this share of the rows (.parquet, .arrow), drawn by row group, which intervals go by.",
        None,
        gt=0,
        lt=1,
    )


def collect(job: Job) -> Collected:
    """One pass over the rows of the files."""
    source = job.vectors(column=job.settings.column, group=job.settings.group)
    return {"": sum_vectors(job, source, spectrum=job.settings.spectrum)}


def sum_vectors(job: Job, source: VectorSource, *, label: str = "", spectrum: bool = True) -> Part:
    """The moments of all vectors of a source, under the site `vectors`."""
    import numpy as np
    import torch

    from anisoscope.accumulate.moments import Moments
    from anisoscope.runs.work.observers import HiddenSums

    settings = job.settings

    def make() -> dict[str, Any]:
        sums = HiddenSums()
        sums.parts[SITE] = Moments(source.dim, spectrum=spectrum, reservoir=settings.sample, seed=settings.seed)
        return {"hidden": sums}

    def add(sums: dict[str, Any], block: Any) -> None:
        x = torch.from_numpy(np.ascontiguousarray(block.x))
        if block.keys is not None:  # shares of groups cut the rows otherwise: only float64 adds up to the last digits
            x = x.double()
        sums["hidden"].parts[SITE].update(x, sequences=block.keys, start=block.start)

    part = job.sum_vectors(label or source.name, source, make, add)
    part.about |= {"data": {"name": source.name, "fingerprint": source.fingerprint(), "dimension": source.dim}}
    drawn = getattr(source, "drawn", None)
    if drawn is not None:
        part.about["data"] |= {"drawn": drawn.words, "of": source.rows}
    return part


def conclude(settings: VectorsSettings, collected: Collected) -> Findings:
    """Rows and verdict from the sums; refuses a cloud with nothing to measure."""
    from anisoscope.inference.cloud import measure_cloud
    from anisoscope.runs.measurement import cloud_rows

    part = collected[""]
    moments = part.sums["hidden"].parts[SITE]
    check_something(moments.sums())
    cloud = measure_cloud(moments, spectra=settings.spectrum, neighbours=settings.neighbours, things="vectors")
    protocol = {
        "pairs": "all pairs of different vectors",
        "sequence": f"column {settings.group}" if settings.group else "every vector is its own sequence",
        "excluded": "zero and non-finite vectors",
        "sample": f"{len(moments.reservoir.sample())} vectors, seed {settings.seed}",
    }
    verdict, drawn = cloud.verdict, part.about["data"].get("drawn")
    if drawn is not None:
        protocol |= {"sequence": "a row group", "rows": f"{drawn}, seed {settings.seed}"}
        of = part.about["data"]["of"]
        seen = f"From {moments.sums().n:,} of {of:,} rows" if of else f"From {moments.sums().n:,} rows"
        verdict = replace(verdict, sentence=f"{seen} ({drawn}): {verdict.sentence}")
    rows = cloud_rows(cloud, site=SITE, protocol=words_of(protocol))
    data = {**part.about["data"], "rows": moments.sums().n}
    verdicts = [{"model": "", "site": SITE, **verdict.as_dict()}]
    return Findings(rows, verdict, notes=cloud.notes, protocol=protocol, data=data, verdicts=verdicts)


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
    from anisoscope.runs.work.observers import HiddenSums

    return {"hidden": HiddenSums}


_FIRST = ("mean_cosine", "drift_ratio", "participation_ratio_unbiased", "isoscore", "cosine_q95", "hubness")


def story(rows: Sequence[Row]) -> Story:
    """Six lines that matter; everything else on request, by group."""
    from anisoscope.inference.metrics import GROUPS, METRICS

    by_name = {row.metric: row for row in rows if row.positions == "all" and row.at is None}
    columns = ("", "value", "95 % interval", "isotropic")

    def line(name: str) -> list[str]:
        row = by_name[name]
        return [METRICS[name].label, number(row.value), interval(row), "" if row.null is None else number(row.null)]

    known = [name for name in METRICS if name in by_name and by_name[name].value is not None]
    more = [
        Table((group, *columns[1:]), [line(name) for name in known if METRICS[name].group == group]) for group in GROUPS
    ]
    shares = [row for row in rows if row.metric == "cosine_share" and row.positions == "all" and row.value is not None]
    if shares:
        cells = [[f"dimension {row.at:.0f}", f"{row.value:.1%}"] for row in shares[:3]]
        more.append(Table(("carries the cosine", "share"), cells))
    first = Table(columns, [line(name) for name in _FIRST if name in known])
    return Story([first], more=[table for table in more if table.cells])


def subject(settings: VectorsSettings) -> str:
    return Path(settings.files[0]).name


STUDY = Study(
    VectorsSettings,
    collect=collect,
    conclude=conclude,
    kinds=kinds,
    story=story,
    subject=subject,
    machine=("threads", *SHARED),
    help="""
Measure vectors in files: how anisotropic they are, by drift or by spectrum, with intervals and nulls.

One pass, exact over all pairs, in constant memory.

Examples:
  anisoscope vectors embeddings.npy
  anisoscope vectors 'shards/*.parquet' --column embedding --group document
  anisoscope vectors vectors.jsonl --json | jq .verdict
""",
)
