"""Arrays as they lie in a file, and what every reader of vectors makes of its file: a `VectorFile`.

A matrix is one run of bytes, so a block of rows is one seek and one read into a fresh array: nothing is mapped or
cached in the process, and memory is that of a block. In Fortran order each block is read column by column.

Types that float32 holds exactly become float32 (float16, bfloat16, integers of 8 and 16 bits), wider ones float64.
bfloat16 is the upper half of float32: bits << 16. numpy has no such type and stores it as two opaque bytes (`V2`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from anisoscope.errors import InputError, UsageError

Chunk = tuple[np.ndarray, list[str] | None]  # (b, d) float32 or float64; the sequence of each row


@dataclass(frozen=True, slots=True)
class VectorFile:
    """One opened file.

    `read(rows)` streams its vectors in chunks, of `rows` rows where the format leaves the choice. `rows` is None when
    only a pass can tell; `dtype` names the type that is stored.
    """

    dim: int
    rows: int | None
    dtype: str
    read: Callable[[int], Iterator[Chunk]]


def is_wide(dtype: str) -> bool:
    """Whether float32 cannot hold every value of the type."""
    if dtype == "bfloat16":
        return False
    kind = np.dtype(dtype)
    return kind.itemsize > (4 if kind.kind == "f" else 2)


def widen(x: np.ndarray, dtype: str) -> np.ndarray:
    """Stored values as float32, or as float64 where float32 would round.

    >>> widen(np.array([0x3FC0], dtype=np.uint16), "bfloat16")
    array([1.5], dtype=float32)
    """
    if dtype == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64 if is_wide(dtype) else np.float32, copy=False)


def name_dtype(raw: np.dtype, *, where: object) -> str:
    """The name of the numbers that a numpy type stores."""
    if raw == np.dtype("V2"):
        return "bfloat16"
    if raw.kind not in "fiub":
        raise UsageError("not an array of real numbers", where=where, got=f"dtype {raw}", expected="floats or integers")
    return raw.name


def bits(raw: np.dtype, dtype: str) -> np.dtype:
    """The numpy type to read the bytes of `dtype` with."""
    return np.dtype("<u2") if dtype == "bfloat16" else raw


def check_shape(shape: tuple[int, ...], *, where: object) -> tuple[int, int]:
    """(n, d), or an error."""
    if len(shape) != 2:
        raise UsageError(
            "not a matrix of vectors", where=where, got=f"shape {shape}", expected="(n, d)", do="reshape it"
        )
    if 0 in shape:
        raise InputError("the file holds no vectors", where=where, got=f"shape {shape}")
    return shape[0], shape[1]


def check_size(path: Path, expected: int) -> None:
    """Refuse a file that is shorter than its header says."""
    size = path.stat().st_size
    if size < expected:
        raise InputError("the file is truncated", where=path, got=f"{size:,} bytes", expected=f"{expected:,} bytes")


def keys_of(values: np.ndarray, length: int, *, where: object) -> list[str]:
    """The sequence of each row, as text."""
    if values.shape != (length,) or values.dtype.kind not in "iubUS":
        got = f"{values.dtype} of shape {values.shape}"
        raise UsageError("the group array does not fit", where=where, got=got, expected=f"text or integers ({length},)")
    return [value.decode() if isinstance(value, bytes) else str(value) for value in values.tolist()]


@dataclass(frozen=True, slots=True)
class StoredArray:
    """Where an array lies in a file. `raw` is the type of its bytes, `dtype` the name of what they mean."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    raw: np.dtype
    dtype: str
    fortran: bool = False

    def __post_init__(self) -> None:
        check_size(self.path, self.offset + math.prod(self.shape) * self.raw.itemsize)

    def whole(self) -> np.ndarray:
        """Everything, as stored."""
        with open(self.path, "rb", buffering=0) as stream:
            return self._take(stream, 0, math.prod(self.shape)).reshape(self.shape)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows start…stop of a matrix, as stored."""
        length, dim = self.shape
        with open(self.path, "rb", buffering=0) as stream:
            if not self.fortran:
                return self._take(stream, start * dim, (stop - start) * dim).reshape(-1, dim)
            return np.stack([self._take(stream, k * length + start, stop - start) for k in range(dim)], axis=1)

    def _take(self, stream: IO[bytes], first: int, count: int) -> np.ndarray:
        stream.seek(self.offset + first * self.raw.itemsize)
        values = np.fromfile(stream, dtype=self.raw, count=count)
        if len(values) != count:
            raise InputError("the file became shorter while it was read", where=self.path)
        return values

    def vectors(self, keys: list[str] | None) -> VectorFile:
        length, dim = check_shape(self.shape, where=self.path)

        def read(rows: int) -> Iterator[Chunk]:
            for start in range(0, length, rows):
                stop = min(start + rows, length)
                yield widen(self.rows(start, stop), self.dtype), None if keys is None else keys[start:stop]

        return VectorFile(dim, length, self.dtype, read)
