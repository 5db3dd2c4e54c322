"""Two sources of vectors read side by side: row i of the one belongs to row i of the other.

    joined = Joined(open_vectors("images.npy"), open_vectors("captions.npy"))
    for block in joined.blocks(8192):
        block.x                             # (b, d + k)

Chunks are 8,192 rows, whatever those of the files are; workers that share the work read both files.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

import numpy as np

from anisoscope.errors import InputError
from anisoscope.inputs.files import digest
from anisoscope.inputs.vectors.pieces import Wanted
from anisoscope.inputs.vectors.source import VectorBlock, VectorSource

CHUNK = 8192


class Joined(VectorSource):
    """Vectors of two sources, one behind the other in each row; sequences are those of the first."""

    def __init__(self, first: VectorSource, second: VectorSource) -> None:
        super().__init__([*first._opened, *second._opened], name="", columns=first._columns)
        self.first, self.second = first, second
        self.dim, self.grouped = first.dim + second.dim, first.grouped
        self.rows, self.name = first.rows, f"{first.name} with {second.name}"
        if first.rows is not None and second.rows is not None and first.rows != second.rows:
            raise _apart(f"{first.rows:,} and {second.rows:,} rows")

    def blocks(self, rows_per_block: int = CHUNK, *, wanted: Wanted | None = None) -> Iterator[VectorBlock]:
        """All rows in order, never of two chunks; `wanted` says which chunks."""
        others = _taken(self.second, rows_per_block)
        next(others)
        for block in self.first.blocks(rows_per_block):
            y, numbers = others.send(len(block.x))
            if not np.array_equal(numbers, block.numbers[: len(y)]):
                raise _apart("row groups of other rows", do="leave --rows-per-group-sample out")
            if len(y) < len(block.x):
                raise _apart(f"{self.second.name} ends at row {block.start + len(y):,}")
            x = np.concatenate([block.x, y], axis=1)
            stop = block.start + len(x)
            for number in range(block.start // CHUNK, -(-stop // CHUNK)):
                if wanted is None or wanted(number):
                    begin = max(number * CHUNK, block.start)
                    part = slice(begin - block.start, min((number + 1) * CHUNK, stop) - block.start)
                    yield VectorBlock(x[part], None if block.keys is None else block.keys[part], begin)
        if len(others.send(1)[0]):
            raise _apart(f"{self.second.name} has more rows")

    def fingerprint(self) -> str:
        return digest([self.first.fingerprint().encode(), self.second.fingerprint().encode()])


class Partners(Joined):
    """The vectors of the second source, in the sequences of the first: those of their partners."""

    def __init__(self, first: VectorSource, second: VectorSource) -> None:
        super().__init__(first, second)
        self.dim, self.rows, self.name = second.dim, second.rows, second.name

    def blocks(self, rows_per_block: int = CHUNK, *, wanted: Wanted | None = None) -> Iterator[VectorBlock]:
        for block in super().blocks(rows_per_block, wanted=wanted):
            yield replace(block, x=np.ascontiguousarray(block.x[:, self.first.dim :], dtype=self.second._as))

    @property
    def sequences(self) -> str:
        return f"that of the partner: {self.first.sequences}"

    def fingerprint(self) -> str:
        return self.second.fingerprint()


def _taken(source: VectorSource, rows: int) -> Generator[tuple[np.ndarray, np.ndarray], int, None]:
    """A generator that is sent a number of rows and yields so many of the source's next, or what is left.

    With them come their numbers.
    """
    blocks = ((block.x, block.numbers) for block in source.blocks(rows))
    held = np.zeros((0, source.dim), np.float32), np.zeros(0, np.int64)
    wanted = yield held
    while True:
        parts, have = [held], len(held[0])
        while have < wanted and (more := next(blocks, None)) is not None:
            parts.append(more)
            have += len(more[0])
        x, numbers = (np.concatenate(part) for part in zip(*parts, strict=True)) if len(parts) > 1 else held
        held = x[wanted:], numbers[wanted:]
        wanted = yield x[:wanted], numbers[:wanted]


def _apart(got: str, *, do: str = "leave out --aligned") -> InputError:
    return InputError("rows that are partners come in equal numbers", got=got, do=do)
