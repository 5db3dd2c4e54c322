"""The vectors that are advised on: sums of all, a sample by row number, and the rows again, block by block.

Files are read twice in constant memory: once for the sums and the sample, once to be searched. A model embeds its texts
once, and the vectors are kept: at most 256 MB of them, a uniform sample where there are more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.moments import Moments
from anisoscope.accumulate.reservoir import Reservoir
from anisoscope.accumulate.sums import Sample, Sums
from anisoscope.runs.job import Job
from anisoscope.runs.work.blocks import Rows, blocks_of
from anisoscope.runs.work.clouds import exact_rows
from anisoscope.runs.work.collected import Accumulator, Collection, Part
from anisoscope.runs.work.units import Unit
from anisoscope.studies import folds

if TYPE_CHECKING:
    from anisoscope.inputs.vectors.source import VectorSource
    from anisoscope.models.open import OpenModel

_EVERY = 2**24  # as many as the memory of a sample holds
_BLOCK = 8192
Block = tuple[int, tuple[NDArray[Any], NDArray[np.int64]]]  # (the place after it, (rows, their numbers))


@dataclass(frozen=True)
class Cloud:
    """`sample`: some rows, of which `positions` are the numbers and `keys` the groups; `blocks()`: all rows."""

    sums: Sums
    sample: Sample
    rows: int | None
    blocks: Callable[[], Iterator[Block]]
    part: Part
    notes: tuple[str, ...] = ()


class NumberedSums(Collection):
    """Moments of rows, and a sample of them by number."""

    def __init__(self, d: int = 1, *, sample: int = 1, seed: int = 0) -> None:
        super().__init__()
        self.parts = {"moments": Moments(d, reservoir=0, seed=seed), "rows": Reservoir(d, capacity=sample, seed=seed)}

    def read(self, key: str, state: Mapping[str, NDArray]) -> Accumulator:
        return Moments.from_state(state) if key == "moments" else Reservoir.from_state(state)

    def add_block(self, block: Rows) -> None:
        self.parts["moments"].update(exact_rows(block), sequences=block.keys, start=block.start)
        good = usable(block.x)
        keys = block.numbers.astype(np.uint64) if block.keys is None else block.keys
        self.parts["rows"].offer(block.x[good], keys[good], block.numbers[good])


def usable(x: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows are finite and not zero."""
    return np.asarray(np.isfinite(x).all(1) & x.any(1))


def of_files(job: Job, source: VectorSource) -> Cloud:
    """The rows of files."""
    settings = job.settings
    made = {"sample": settings.sample, "seed": settings.seed}
    add = lambda sums, block: sums["rows"].add_block(block)  # noqa: E731
    part = job.sum_vectors(source.name, source, lambda: {"rows": NumberedSums(source.dim, **made)}, add)
    part.about |= {"data": {"name": source.name, "fingerprint": source.fingerprint(), "dimension": source.dim}}

    def blocks() -> Iterator[Block]:
        for following, block in blocks_of(source, Unit()):
            good = usable(block.x)
            yield following, (block.x[good], block.numbers[good])

    sums = part.get("rows", "moments").sums()
    return Cloud(sums, part.get("rows", "rows").sample(), source.rows, blocks, part)


def of_model(job: Job, model: OpenModel) -> Cloud:
    """The texts that a model embeds; a row's number is its place in the sample that holds them."""
    from anisoscope.runs.work.observers.embeddings import EmbeddingSums

    group = folds.grouping(job)
    made = {"sample": _EVERY, "seed": job.settings.seed, "group": group}
    part = job.run(model.name, model, lambda: {"rows": EmbeddingSums(model.encoder, **made)}, first=True)
    (moments,) = (part.get("rows", key) for key in part.keys("rows"))
    sums, kept = moments.sums(), moments.reservoir.sample()
    numbers = np.arange(len(kept), dtype=np.int64)

    def blocks() -> Iterator[Block]:
        for at in range(0, len(kept), _BLOCK):
            some = slice(at, min(at + _BLOCK, len(kept)))
            yield some.stop, (kept.x[some], numbers[some])

    most = job.settings.sample
    sample = Sample(kept.x[:most], kept.keys[:most], numbers[:most], kept.first[:most])
    cut = f"{sums.n} texts, of which a sample of {len(kept)} is searched: the memory for vectors is full"
    return Cloud(sums, sample, len(kept), blocks, part, (cut,) if len(kept) < sums.n else ())
