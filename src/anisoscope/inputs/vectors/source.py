"""Vectors from files, streamed: `.npy .npz .safetensors .parquet .arrow .feather .csv .jsonl`, folders and globs.

    source = open_vectors(["embeddings.parquet"], column="embedding", group="article")
    for block in source.blocks(8192):
        block.x  # (b, d), float32, or float64 where the stored type needs it
        block.keys  # the article of each row, or None without `group`

Memory is that of a block (with the exceptions that `npy` and `tables` state), whatever the size of the files, and what
the blocks hold does not depend on their size. Vectors of several files follow one another and must have the same
dimension. A file that is named must be good. Of files that a folder or a glob held, those that cannot be opened are
listed in `unreadable`; when none can, that is an error. A fault met inside a file is always an error: half a file is no
sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.files import FoundFile, digest, file_digests, find_files, name_of
from anisoscope.inputs.vectors.arrays import Chunk, VectorFile, is_wide
from anisoscope.inputs.vectors.npy import open_npy, open_npz
from anisoscope.inputs.vectors.numbers import open_csv_vectors, open_jsonl_vectors
from anisoscope.inputs.vectors.tables import open_arrow_vectors, open_parquet_vectors
from anisoscope.inputs.vectors.tensors import open_safetensors

READERS = {
    ".npy": open_npy,
    ".npz": open_npz,
    ".safetensors": open_safetensors,
    ".parquet": open_parquet_vectors,
    ".arrow": open_arrow_vectors,
    ".feather": open_arrow_vectors,
    ".csv": open_csv_vectors,
    ".jsonl": open_jsonl_vectors,
}


@dataclass(frozen=True, slots=True, eq=False)
class VectorBlock:
    """Consecutive vectors; `start` is the number of the first one in the whole source."""

    x: np.ndarray  # (b, d) float32 or float64
    keys: list[str] | None
    start: int


class VectorSource:
    """Vectors of one dimension from one or several files. Made by `open_vectors`.

    - `dim`; `rows`, or None when only a pass can tell; `dtype`, the stored type (or types) by name.
    - `unreadable`: (file, reason) of what a folder or a glob held and could not be opened.
    """

    def __init__(
        self,
        opened: Sequence[tuple[FoundFile, VectorFile]],
        *,
        name: str,
        unreadable: Sequence[tuple[str, str]],
        column: str | None,
        group: str | None,
    ) -> None:
        self.name, self.unreadable = name, list(unreadable)
        self._files = [file for file, _ in opened]
        self._vectors = [vectors for _, vectors in opened]
        self._column, self._group = column, group
        self.dim = self._vectors[0].dim
        counts = [vectors.rows for vectors in self._vectors]
        self.rows = None if None in counts else sum(count or 0 for count in counts)
        self.dtype = ", ".join(sorted({vectors.dtype for vectors in self._vectors}))
        self._as = np.float64 if any(is_wide(vectors.dtype) for vectors in self._vectors) else np.float32

    @property
    def grouped(self) -> bool:
        return self._group is not None

    def verify(self) -> None:
        return None

    def blocks(self, rows_per_block: int = 8192, *, wanted=None) -> Iterator[VectorBlock]:
        """All vectors in order, `rows_per_block` at a time (fewer in the last block)."""
        if rows_per_block < 1:
            raise UsageError("a block must hold at least one row", got=rows_per_block)
        chunks = (chunk for vectors in self._vectors for chunk in vectors.read(rows_per_block))
        start = 0
        for x, keys in _regroup(chunks, rows_per_block):
            if wanted is None or wanted(start // 8192):
                yield VectorBlock(x.astype(self._as, copy=False), keys, start)
            start += len(x)

    def fingerprint(self) -> str:
        """sha256 of the files' bytes and of what is read of them, wherever they lie and whatever they are called."""
        return digest([repr((self._column, self._group)).encode(), *file_digests(self._files)])


def open_vectors(
    paths: str | Path | Sequence[str | Path], *, column: str | None = None, group: str | None = None
) -> VectorSource:
    """Open files, folders (recursive) and globs of vectors; see the module for what is read and what is refused.

    `column` chooses the array, column or field that holds the vectors, where there are several; `group` names the one
    that holds the sequence of each row.
    """
    places = [paths] if isinstance(paths, str | Path) else list(paths)
    if not places:
        raise UsageError("no file of vectors is named")
    opened: list[tuple[FoundFile, VectorFile]] = []
    unreadable: list[tuple[str, str]] = []
    for file in find_files(places, suffixes=READERS, what="vectors"):
        try:
            opened.append((file, _open_file(file.path, column=column, group=group)))
        except InputError as problem:
            if file.named:
                raise
            unreadable.append((file.key, problem.what if problem.got is None else f"{problem.what}: {problem.got}"))
    name = name_of(places)
    if not opened:
        raise InputError(
            "no vectors could be read", where=name, got="; ".join(f"{f}: {why}" for f, why in unreadable[:3])
        )
    _check_dimensions(opened)
    return VectorSource(opened, name=name, unreadable=unreadable, column=column, group=group)


def _open_file(path: Path, *, column: str | None, group: str | None) -> VectorFile:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise UsageError(
            "not a file of vectors", where=path, got=path.suffix or "no suffix", expected=" ".join(READERS)
        )
    try:
        return reader(path, column=column, group=group)
    except OSError as problem:
        raise InputError("cannot open the file", where=path, got=problem.strerror or str(problem)) from problem


def _check_dimensions(opened: Sequence[tuple[FoundFile, VectorFile]]) -> None:
    first_file, first = opened[0]
    for file, vectors in opened[1:]:
        if vectors.dim != first.dim:
            expected = f"{first.dim}, as in {first_file.path}"
            raise UsageError("vectors of another dimension", where=file.path, got=vectors.dim, expected=expected)


def _regroup(chunks: Iterator[Chunk], rows: int) -> Iterator[Chunk]:
    """The same rows, exactly `rows` at a time but for the last ones. A chunk that fits is passed on uncopied."""
    held: list[Chunk] = []
    count = 0
    for x, keys in chunks:
        done = 0
        while done < len(x):
            take = min(rows - count, len(x) - done)
            part = slice(done, done + take)
            held.append((x[part], None if keys is None else keys[part]))
            count, done = count + take, done + take
            if count == rows:
                yield _join(held)
                held, count = [], 0
    if held:
        yield _join(held)


def _join(chunks: list[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    keys = None if chunks[0][1] is None else [key for _, part in chunks for key in part or ()]
    return np.concatenate([x for x, _ in chunks]), keys
