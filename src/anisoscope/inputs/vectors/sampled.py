"""A first look at files too large to read: a seeded share of their rows, by row group.

    source = SampledSource(open_vectors("s3://bucket/*.parquet"), 0.01, seed=0)

Parquet cannot read less than the column chunk of a row group, so row groups are drawn: a share f of them, but at least
32 (or all), so that there is something to compare; where that is more than f, a share of the rows of each is kept, by a
hash of their number. Every row has the same chance f. Rows of one group are rarely independent (files are written by
time or topic), so the group is their sequence: intervals come from leaving row groups out. With G row groups the cost
is a share max(f, 32/G) of the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from anisoscope.errors import UsageError
from anisoscope.inputs.files import digest
from anisoscope.inputs.vectors.pieces import Wanted
from anisoscope.inputs.vectors.source import VectorBlock, VectorSource

FEWEST = 32  # row groups


@dataclass(frozen=True)
class Drawn:
    """Which row groups are read, and which share of their rows is kept."""

    groups: frozenset[int]
    of: int
    rows: float

    @property
    def words(self) -> str:
        kept = "every row" if self.rows == 1 else f"{self.rows:.3g} of the rows"
        return f"{len(self.groups)} of {self.of} row groups, {kept} of each"


def draw(chunks: int, share: float, seed: int) -> Drawn:
    """The row groups of a sample.

    >>> drawn = draw(10_000, 0.01, seed=0)
    >>> len(drawn.groups), drawn.rows, draw(64, 0.1, seed=0).rows
    (100, 1.0, 0.2)
    """
    count = min(chunks, max(FEWEST, round(share * chunks)))
    chosen = np.random.default_rng(seed).choice(chunks, size=count, replace=False)
    return Drawn(frozenset(chosen.tolist()), chunks, min(1.0, share * chunks / count))


class SampledSource(VectorSource):
    """A source of which some row groups, or some of their rows, are read; its sequences are the row groups."""

    def __init__(self, whole: VectorSource, share: float, seed: int) -> None:
        vars(self).update(vars(whole))
        if not whole.own_groups or whole.chunks is None:
            raise UsageError(
                "only files with row groups can be sampled by them",
                where=whole.name,
                expected=".parquet or .arrow",
                do="leave out --rows-per-group-sample, or convert the file",
            )
        if whole.grouped:
            raise UsageError(
                "a sample of row groups takes them as sequences", got="a column of groups", do="leave it out"
            )
        self.drawn, self.share, self.seed = draw(whole.chunks, share, seed), share, seed

    @property
    def numbered(self) -> bool:
        return False

    @property
    def sequences(self) -> str:
        return "a row group"

    def blocks(self, rows_per_block: int = 8192, *, wanted: Wanted | None = None) -> Iterator[VectorBlock]:
        def choose(number: int) -> bool:
            return number in self.drawn.groups and (wanted is None or wanted(number))

        for block in super().blocks(rows_per_block, wanted=choose):
            kept = _chosen(block.numbers, self.drawn.rows, self.seed)
            keys = [f"row group {block.chunk}"] * int(kept.sum())
            ids = None if block.ids is None else [name for name, one in zip(block.ids, kept, strict=True) if one]
            yield VectorBlock(block.x[kept], keys, block.start, ids, block.chunk, kept)

    def fingerprint(self) -> str:
        """Of what identifies the files without reading them (the store's mark, size and time), and of the draw."""
        parts = [repr(part.stamp()).encode() for part in self._opened]
        return digest([repr((self._columns.vectors, self.share, self.seed)).encode(), *parts])


def _chosen(numbers: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Which rows are kept, by a hash of their number (splitmix64)."""
    if share >= 1:
        return np.ones(len(numbers), bool)
    with np.errstate(over="ignore"):
        z = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15) * np.uint64(seed + 1)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(float) * 2.0**-53 < share
