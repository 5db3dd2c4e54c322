"""Vectors in numpy's own files: `.npy` (one matrix) and `.npz` (a zip archive of named arrays).

An array in an `.npz`, compressed or not, is unpacked as it streams by; only one in Fortran order must be held whole.
Arrays of Python objects are refused: they are pickles.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy_format

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.vectors.arrays import (
    Chunk,
    StoredArray,
    VectorFile,
    bits,
    check_shape,
    keys_of,
    name_dtype,
    widen,
)
from anisoscope.inputs.vectors.columns import choose


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before the values of an array in `.npy` form."""

    shape: tuple[int, ...]
    fortran: bool
    raw: np.dtype


def read_header(stream: IO[bytes], *, where: object) -> Header:
    """Read the header; the stream then stands at the first value."""
    try:
        version = npy_format.read_magic(stream)
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        return Header(*read(stream))
    except ValueError as problem:
        raise InputError("not an array in .npy form, or a damaged one", where=where, got=str(problem)) from problem


def open_npy(path: Path, *, column: str | None, group: str | None) -> VectorFile:
    """The matrix (n, d) of an `.npy` file."""
    if column is not None or group is not None:
        do = "save an .npz with named arrays, or leave `column` and `group` out"
        raise UsageError("an .npy file has neither columns nor groups", where=path, do=do)
    with open(path, "rb") as stream:
        header = read_header(stream, where=path)
        offset = stream.tell()
    dtype = name_dtype(header.raw, where=path)
    return StoredArray(path, offset, header.shape, bits(header.raw, dtype), dtype, header.fortran).vectors(keys=None)


def open_npz(path: Path, *, column: str | None, group: str | None) -> VectorFile:
    """The matrix named `column`, or the only one; `group` names an array (n,) of integers or text."""
    with _archive(path) as archive:
        headers = _headers(archive, path)
        matrices = [name for name, header in headers.items() if len(header.shape) == 2 and name != group]
        name = choose(matrices, column, where=path, what="matrix (n, d)")
        header, where = headers[name], f"{path}, {name}"
        length, dim = check_shape(header.shape, where=where)
        dtype = name_dtype(header.raw, where=where)
        keys = None if group is None else _keys(archive, headers, group, length, path)

    def read(rows: int) -> Iterator[Chunk]:
        with _archive(path) as archive, archive.open(f"{name}.npy") as stream:
            start = 0
            for x in _stream_rows(stream, bits(header.raw, dtype), rows, where=where):
                yield widen(x, dtype), None if keys is None else keys[start : start + len(x)]
                start += len(x)

    return VectorFile(dim, length, dtype, read)


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError) as problem:
        raise InputError("not an .npz archive, or a damaged one", where=path, got=str(problem)) from problem


def _headers(archive: zipfile.ZipFile, path: Path) -> dict[str, Header]:
    headers = {}
    for member in archive.namelist():
        with archive.open(member) as stream:
            headers[member.removesuffix(".npy")] = read_header(stream, where=f"{path}, {member}")
    return headers


def _keys(archive: zipfile.ZipFile, headers: dict[str, Header], group: str, length: int, path: Path) -> list[str]:
    choose(list(headers), group, where=path, what="array")
    where = f"{path}, {group}"
    with archive.open(f"{group}.npy") as stream:
        if headers[group].raw.hasobject:
            raise UsageError("the group array holds Python objects", where=where, expected="text or integers")
        return keys_of(npy_format.read_array(stream, allow_pickle=False), length, where=where)


def _stream_rows(stream: IO[bytes], raw: np.dtype, rows: int, *, where: object) -> Iterator[np.ndarray]:
    """Blocks (b, d) of the matrix in a stream that cannot seek."""
    header = read_header(stream, where=where)
    length, dim = header.shape
    if header.fortran:
        columns = _fill(stream, np.empty((dim, length), dtype=raw), where=where)
        yield from (np.ascontiguousarray(columns[:, start : start + rows].T) for start in range(0, length, rows))
        return
    for start in range(0, length, rows):
        yield _fill(stream, np.empty((min(rows, length - start), dim), dtype=raw), where=where)


def _fill(stream: IO[bytes], out: np.ndarray, *, where: object) -> np.ndarray:
    view = out.view(np.uint8).reshape(-1)
    if stream.readinto(view) != len(view):  # pyright: ignore[reportAttributeAccessIssue] every zip member has it
        raise InputError("the array ends before its header says", where=where)
    return out
