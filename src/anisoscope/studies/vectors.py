"""Vectors in files or in memory: one streaming pass, every metric, a verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anisoscope.errors import InputError, UsageError
from anisoscope.runs.measurement import Measurement, cloud_rows
from anisoscope.runs.plan import Settings, default_folder, reuse_or_begin
from anisoscope.runs.progress import track
from anisoscope.runs.store import Existing

if TYPE_CHECKING:
    from anisoscope.accumulate.moments import Moments

SITE = "vectors"
_ROWS_PER_BLOCK = 8192
_BLOCK_BYTES = 64 * 2**20


class VectorsSettings(Settings):
    """What `anisoscope vectors` does; the same fields make its run.toml."""

    command = "vectors"

    files: list[str]
    column: str | None = None
    group: str | None = None
    spectrum: bool = True
    neighbours: bool = True
    sample: int = 4096
    seed: int = 0


def measure_files(settings: VectorsSettings, *, out: Path | None = None, existing: Existing = "resume") -> Measurement:
    """Measure the vectors of files and keep the run; a finished run of the same settings is used again."""
    from anisoscope.inputs.vectors.source import open_vectors

    source = open_vectors(settings.files, column=settings.column, group=settings.group)
    fingerprint = source.fingerprint()
    folder = out or default_folder(settings, name=source.name, data=fingerprint)
    finished = reuse_or_begin(folder, settings, existing=existing, data=fingerprint)
    if finished is not None:
        return Measurement.of_run(finished)
    started = time.monotonic()
    moments = sum_vectors(source, settings)
    found = measure_moments(moments, settings, grouped=settings.group)
    data = {"name": source.name, "fingerprint": fingerprint, "rows": moments.sums().n, "dimension": moments.d}
    data |= {"unreadable": [f"{path}: {reason}" for path, reason in source.unreadable]}
    found_notes = (*found.notes, *(f"{path}: {words}" for path, words in source.notes))
    notes = (*found_notes, *(f"unreadable: {line}" for line in data["unreadable"]))
    run = Measurement(
        found.rows, found.verdict, notes, None, settings.command, settings.as_dict(), found.protocol, data,
        state=moments.state(),
    ).save(folder, seconds=time.monotonic() - started)  # fmt: skip
    return Measurement.of_run(run)


def sum_vectors(source: Any, settings: VectorsSettings) -> Moments:
    """One pass over the blocks of a source."""
    import torch

    from anisoscope.accumulate.keys import sequence_keys
    from anisoscope.accumulate.moments import Moments

    moments = Moments(source.dim, spectrum=settings.spectrum, reservoir=settings.sample, seed=settings.seed)
    rows = max(1, min(_ROWS_PER_BLOCK, _BLOCK_BYTES // (8 * source.dim)))
    with track("measuring", total=source.rows, unit="vectors") as bar:
        for block in source.blocks(rows):
            keys = None if block.keys is None else sequence_keys(block.keys)
            moments.update(torch.from_numpy(np.ascontiguousarray(block.x)), sequences=keys)
            bar.advance(len(block.x))
    return moments


def measure_moments(moments: Moments, settings: VectorsSettings, *, grouped: str | None) -> Measurement:
    """Rows and verdict from the sums; refuses a cloud with nothing to measure."""
    from anisoscope.inference.cloud import measure_cloud

    sums = moments.sums()
    if sums.d < 2:
        raise InputError("vectors of one dimension have no directions to compare", got="d = 1", expected="d ≥ 2")
    if sums.n < 2:
        raise InputError(
            "there is nothing to measure",
            got=f"{sums.n} usable vectors, {sums.zero} zero, {sums.nonfinite} with NaN or infinite entries",
            expected="at least two finite vectors that are not zero",
        )
    cloud = measure_cloud(moments, spectra=settings.spectrum, neighbours=settings.neighbours)
    protocol = {
        "pairs": "all pairs of different vectors",
        "sequence": f"column {grouped}" if grouped else "every vector is its own sequence",
        "excluded": "zero and non-finite vectors",
        "sample": f"{len(moments.reservoir.sample())} vectors, seed {settings.seed}",
    }
    words = "; ".join(f"{name}: {value}" for name, value in protocol.items())
    rows = cloud_rows(cloud, site=SITE, protocol=words)
    return Measurement(tuple(rows), str(cloud.verdict), cloud.notes, protocol=protocol)


def measure_vectors(
    x: Any, groups: Sequence[Any] | None = None, *, spectrum: bool = True, neighbours: bool = True, seed: int = 0
) -> Measurement:
    """Measure an array or tensor of vectors (n, d); `groups` names the sequence (document, user, …) of each row.

    >>> rng = np.random.default_rng(0)
    >>> m = measure_vectors(rng.standard_normal((2000, 16)) + 1.0, neighbours=False)
    >>> m.verdict, round(m.value("mean_cosine"), 2)
    ('drifted', 0.51)
    """
    import torch

    from anisoscope.accumulate.keys import sequence_keys
    from anisoscope.accumulate.moments import Moments

    tensor = x.detach() if isinstance(x, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(x))
    if tensor.ndim != 2:
        raise UsageError("vectors come as the rows of a matrix", got=f"shape {tuple(tensor.shape)}", expected="(n, d)")
    settings = VectorsSettings(files=[], spectrum=spectrum, neighbours=neighbours, seed=seed)
    moments = Moments(tensor.shape[1], spectrum=spectrum, seed=seed)
    keys = None if groups is None else sequence_keys(str(group) for group in groups)
    for start in range(0, len(tensor), _ROWS_PER_BLOCK):
        rows = slice(start, start + _ROWS_PER_BLOCK)
        moments.update(tensor[rows], sequences=None if keys is None else keys[rows])
    found = measure_moments(moments, settings, grouped=None if groups is None else "groups")
    data = {"name": "array in memory", "rows": len(tensor), "dimension": tensor.shape[1]}
    return Measurement(
        found.rows, found.verdict, found.notes, None, "measure_vectors", settings.as_dict(), found.protocol, data,
        state=moments.state(),
    )  # fmt: skip
