"""Blocks of rows of a file of vectors, for one unit of work.

Rows that belong to named groups (documents, users) are dealt out by group, so that a sequence is never split. Rows
without groups are dealt out by chunk (a row group of Parquet, 8,192 rows of anything else), and chunks of other units
are not even read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.keys import Keys, sequence_keys
from anisoscope.runs.work.units import VIRTUAL, Unit, virtual_shard

if TYPE_CHECKING:
    from anisoscope.inputs.vectors.source import VectorSource

_ROWS = 8192
_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Rows:
    """Some rows, their numbers in the source, and the keys of their sequences.

    Without keys every row is a sequence of its own, known by its number; then the numbers follow one another.
    """

    x: NDArray[np.floating]
    numbers: NDArray[np.int64]
    keys: Keys | None = None
    ids: list[str] | None = None

    @property
    def start(self) -> int | None:
        return int(self.numbers[0]) if self.keys is None else None

    @property
    def names(self) -> list[str]:
        """The id of each row, or its number where the source has no ids."""
        return self.numbers.astype(str).tolist() if self.ids is None else self.ids


def blocks_of(source: VectorSource, unit: Unit, start: int = 0) -> Iterator[tuple[int, Rows]]:
    """(the row after the block, the block), from row `start` on, of what the unit has to do."""
    size = max(1, min(_ROWS, _BYTES // (8 * source.dim)))
    wanted = None if unit.whole and not unit.filters else lambda chunk: unit.wants(chunk % VIRTUAL)
    for block in source.blocks(size, wanted=None if source.grouped else wanted):
        first, after = block.start, block.stop
        if after <= start:
            continue
        kept = slice(max(0, start - first) if block.kept is None else 0, None)  # sampled blocks are never cut
        x, numbers = block.x[kept], block.numbers[kept]
        ids = None if block.ids is None else block.ids[kept]
        if block.keys is None:
            yield after, Rows(x, numbers, ids=ids)
            continue
        names = block.keys[kept]
        if wanted is not None and source.grouped:
            mine = np.array([unit.wants(virtual_shard(name)) for name in names], dtype=bool)
            x, names = x[mine], [name for name, ours in zip(names, mine, strict=True) if ours]
            numbers, ids = numbers[mine], None if ids is None else [ids[k] for k in np.flatnonzero(mine)]
        if len(x):
            yield after, Rows(x, numbers, sequence_keys(names), ids)
