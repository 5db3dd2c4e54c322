"""What isotropy would look like in this many dimensions.

The cosine of two isotropic vectors in R^d is exactly Beta: (1 + cos)/2 ~ Beta((d−1)/2, (d−1)/2). Nothing is simulated
but the neighbourhood metrics and, for min(n − 1, d) < 16, the spectral ones; the note of each row says how its value
was found.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from anisoscope.geometry.nulls import isotropic as null
from anisoscope.inference.metrics import METRICS, lookup
from anisoscope.runs.job import Job
from anisoscope.runs.settings import Settings, option
from anisoscope.runs.study import Findings, Study
from anisoscope.runs.table import Row

LEVELS = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
OF_A_CLOUD = (
    *("mean_cosine", "resultant", "drift_ratio"),
    *("isoscore", "participation_ratio", "participation_ratio_unbiased", "effective_rank", "rankme", "stable_rank"),
    *("pc1_share", "condition_number", "explained_k", "uniformity"),
)


class NullSettings(Settings):
    """What `anisoscope null` is asked."""

    dim: list[Annotated[int, Field(ge=2, le=10**6)]] = option("Dimension; several to compare.", min_length=1)
    n: int = option("How many vectors.", 10_000, ge=2, le=10**15)
    runs: list[str] = option("Runs whose sites are drawn as points in figure 18.", [], paths=True)


def measure(job: Job) -> Findings:
    """The isotropic values for each dimension."""
    settings = job.settings
    for folder in settings.runs:
        job.open_run(folder)
    rows = [row for d in settings.dim for row in null_rows(d, settings.n)]
    edges = np.linspace(-1, 1, 2001)
    arrays = {"cosine": edges} | {f"density.{d}": np.asarray(null.cosine_density(edges, d)) for d in settings.dim}
    protocol = {"law": "independent vectors of uniform direction; Gaussian norms for the spectrum", "n": settings.n}
    quantiles = ", ".join(f"{row.value:.3f} ({row.site})" for row in rows if row.metric == "cosine_q95")
    sentence = f"If vectors are isotropic, 95 % of pairs have a cosine below {quantiles}."
    notes = [f"averages and spectra are those of {settings.n:,} vectors (--n)"]
    return Findings(rows, sentence, arrays=arrays, protocol=protocol, notes=notes)


def null_rows(d: int, n: int) -> list[Row]:
    """One pair's cosine, then n vectors' metrics: value, and two standard deviations where they are known."""
    site = f"d={d}"
    exact = {"site": site, "at": None, "note": "exact: Beta law"}
    rows = [Row(metric="dimension", value=float(d), site=site, n=n)]
    of_pair = [*(f"cosine_q{100 * level:g}" for level in LEVELS), "cosine_sd", "cosine_mean_absolute"]
    rows += [Row(metric=name, value=lookup(name).isotropic(2, d), n=2, **exact) for name in of_pair]
    for name in OF_A_CLOUD:
        expected = METRICS[name].null
        value = None if expected is None else expected(n, d)
        if value is None or value.value is None:
            continue
        reach = None if value.sd is None else 1.96 * value.sd
        low, high = (None, None) if reach is None else (value.value - reach, value.value + reach)
        rows.append(
            Row(metric=name, value=value.value, low=low, high=high, null=value.value, n=n, site=site, note=value.how)
        )
    return rows


STUDY = Study(
    NullSettings,
    measure=measure,
    subject=lambda settings: f"d{'-'.join(map(str, settings.dim[:4]))}",
    machine=(),
    help="""
What isotropy would look like in this many dimensions, at this many vectors.

Examples:
  anisoscope null --dim 768 --n 20000
  anisoscope null --dim 64,768,4096 --runs anisoscope-runs/measure-gpt2-1a2b3c4d
""",
)
