"""What isotropy would look like in d dimensions: the law of one pair's cosine, and every metric's value at n vectors.

The cosine of two isotropic vectors in R^d is exactly Beta: (1 + cos)/2 ~ Beta((d−1)/2, (d−1)/2). Nothing is simulated
but the neighbourhood metrics, and the note of each row says where its value comes from.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from anisoscope.errors import UsageError
from anisoscope.geometry.nulls import isotropic as null
from anisoscope.inference.metrics import METRICS, lookup
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.plan import Settings, default_folder, reuse_or_begin
from anisoscope.runs.store import Existing
from anisoscope.runs.table import Row

LEVELS = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
OF_A_CLOUD = (
    *("mean_cosine", "resultant", "drift_ratio"),
    *("isoscore", "participation_ratio", "participation_ratio_unbiased", "effective_rank", "rankme", "stable_rank"),
    *("pc1_share", "condition_number", "explained_k", "uniformity"),
)


class NullSettings(Settings):
    """What `anisoscope null` does."""

    command = "null"

    dim: list[int]
    n: int = 10_000


def null_study(settings: NullSettings, *, out: Path | None = None, existing: Existing = "resume") -> Measurement:
    """The isotropic values for each dimension, kept as a run."""
    if any(d < 2 for d in settings.dim) or settings.n < 2:
        raise UsageError(
            "a null needs at least two dimensions and two vectors", got=f"d = {settings.dim}, n = {settings.n}"
        )
    folder = out or default_folder(settings, name=f"d{'-'.join(map(str, settings.dim))}")
    finished = reuse_or_begin(folder, settings, existing=existing)
    if finished is not None:
        return Measurement.of_run(finished)
    started = time.monotonic()
    rows = [row for d in settings.dim for row in null_rows(d, settings.n)]
    edges = np.linspace(-1, 1, 2001)
    arrays = {"cosine": edges} | {f"density.{d}": np.asarray(null.cosine_density(edges, d)) for d in settings.dim}
    protocol = {"law": "independent vectors of uniform direction; Gaussian norms for the spectrum", "n": settings.n}
    found = Measurement(
        tuple(rows), "isotropic, by construction", (), None, settings.command, settings.as_dict(), protocol, {},
        arrays=arrays,
    )  # fmt: skip
    return Measurement.of_run(found.save(folder, seconds=time.monotonic() - started))


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
