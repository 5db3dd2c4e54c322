"""Arrays as they lie in a file.

A matrix is one run of bytes, so a block of rows is one `numpy.fromfile` into a fresh array, in the memory of a block,
or one ranged request to a store. A
memory map would keep its pages in the process, and would kill it if somebody shortened the file meanwhile. In Fortran
order each block is read column by column.

Types that float32 holds exactly become float32 (float16, bfloat16, integers of 8 and 16 bits), wider ones float64.
bfloat16 is the upper half of float32: bits << 16. numpy has no such type and stores it as two opaque bytes (`V2`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.files import Where, stamp
from anisoscope.inputs.stores.objects import StoredObject
from anisoscope.inputs.vectors.pieces import Labels, VectorFile, seekable


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
    if min(shape) < 1:
        raise InputError("the file holds no vectors", where=where, got=f"shape {shape}")
    return shape[0], shape[1]


def check_size(path: Where, expected: int) -> None:
    """Refuse a file that is shorter than its header says."""
    size = stamp(path).size
    if size < expected:
        raise InputError("the file is truncated", where=path, got=f"{size:,} bytes", expected=f"{expected:,} bytes")


def labels_of(values: np.ndarray, length: int, *, where: object) -> list[str]:
    """One label per row, as text, from an array of text or integers."""
    if values.shape != (length,) or values.dtype.kind not in "iubUS":
        got = f"{values.dtype} of shape {values.shape}"
        expected = f"text or integers ({length},)"
        raise UsageError("the array of labels does not fit", where=where, got=got, expected=expected)
    try:
        labels = [value.decode() if isinstance(value, bytes) else str(value) for value in values.tolist()]
        "".join(labels).encode()
    except UnicodeError as problem:
        raise InputError("labels that are not UTF-8", where=where, got=problem) from problem
    return labels


@dataclass(frozen=True, slots=True)
class StoredArray:
    """Where an array lies in a file. `raw` is the type of its bytes, `dtype` the name of what they mean."""

    path: Where
    offset: int
    shape: tuple[int, ...]
    raw: np.dtype
    dtype: str
    fortran: bool = False

    def __post_init__(self) -> None:
        check_size(self.path, self.offset + math.prod(self.shape) * self.raw.itemsize)

    def whole(self) -> np.ndarray:
        """Everything, as stored."""
        return self._take(0, math.prod(self.shape)).reshape(self.shape)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows start…stop of a matrix, widened."""
        length, dim = self.shape
        if self.fortran:
            stored = np.stack([self._take(k * length + start, stop - start) for k in range(dim)], axis=1)
        else:
            stored = self._take(start * dim, (stop - start) * dim).reshape(-1, dim)
        return widen(stored, self.dtype)

    def _take(self, first: int, count: int) -> np.ndarray:
        try:
            start = self.offset + first * self.raw.itemsize
            if isinstance(self.path, StoredObject):
                values = np.frombuffer(self.path.read(start, count * self.raw.itemsize), self.raw).copy()
            else:
                values = np.fromfile(self.path, self.raw, count, offset=start)
        except OSError as problem:
            raise InputError("cannot continue reading", where=self.path, got=problem.strerror or problem) from problem
        if len(values) != count:
            raise InputError("the file became shorter while it was read", where=self.path)
        return values

    def vectors(self, labels: Labels) -> VectorFile:
        length, dim = check_shape(self.shape, where=self.path)
        return seekable(self.rows, labels, dim=dim, length=length, dtype=self.dtype)
