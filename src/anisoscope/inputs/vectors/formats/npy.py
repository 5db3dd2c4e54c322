"""Vectors in numpy's own files: `.npy` (one matrix) and `.npz` (a zip archive of named arrays).

An array that an `.npz` stores uncompressed is read like an `.npy`, from its place in the archive; its checksum is
verified before a pass over the whole of it, not when single chunks are read. A compressed array is unpacked as it
streams by; only one in Fortran order must be held whole. Arrays of Python objects are refused: they are pickles.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from tokenize import TokenError
from typing import IO

import numpy as np
from numpy.lib import format as npy_format

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.files import Where
from anisoscope.inputs.stores.objects import HEADER
from anisoscope.inputs.vectors.columns import Columns, choose
from anisoscope.inputs.vectors.formats.arrays import StoredArray, bits, check_shape, labels_of, name_dtype, widen
from anisoscope.inputs.vectors.pieces import Labels, Piece, Rows, VectorFile, Wanted, count_chunks, cut, steps

# What numpy's parser of headers and the zip library raise about bytes that mean nothing.
BAD_HEADER = (ValueError, TypeError, SyntaxError, TokenError, RecursionError, OverflowError, MemoryError, EOFError)
BAD_ARCHIVE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, RuntimeError, OverflowError)


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before the values of an array in `.npy` form; `size` is its own length in bytes."""

    shape: tuple[int, ...]
    fortran: bool
    raw: np.dtype
    size: int

    @property
    def total(self) -> int:
        """Bytes of header and values."""
        return self.size + math.prod(self.shape) * self.raw.itemsize


def read_header(stream: IO[bytes], *, where: object) -> Header:
    """Read the header; the stream then stands at the first value."""
    try:
        version = npy_format.read_magic(stream)
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        return Header(*read(stream), stream.tell())
    except BAD_HEADER as problem:
        raise InputError("not an array in .npy form, or a damaged one", where=where, got=str(problem)) from problem


def open_npy(path: Where, columns: Columns) -> VectorFile:
    """The matrix (n, d) of an `.npy` file."""
    if columns != Columns():
        do = "save an .npz with named arrays, or leave out `column`, `group` and `ids`"
        raise UsageError("an .npy file has neither columns nor groups", where=path, do=do)
    with path.open("rb", HEADER) as stream:
        header = read_header(stream, where=path)
    dtype = name_dtype(header.raw, where=path)
    stored = StoredArray(path, header.size, header.shape, bits(header.raw, dtype), dtype, header.fortran)
    return stored.vectors(Labels())


def open_npz(path: Where, columns: Columns) -> VectorFile:
    """The matrix named `column`, or the only one; `group` and `ids` name arrays (n,) of integers or text."""
    with _archive(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        headers = {name: _header(archive, info, path) for name, info in members.items()}
        matrices = [n for n, header in headers.items() if len(header.shape) == 2 and n not in columns.labels]
        name = choose(matrices, columns.vectors, where=path, what="matrix (n, d)")
        member, header, where = members[name], headers[name], f"{path}, {name}"
        length, dim = check_shape(header.shape, where=where)
        dtype = name_dtype(header.raw, where=where)
        if header.total != member.file_size:
            got = f"{member.file_size:,} bytes for shape {header.shape}"
            raise InputError("the array is not as long as its header says", where=where, got=got)
        keys, ids = (_labels(archive, members, headers, label, length, path) for label in (columns.group, columns.ids))
        labels, raw = Labels(keys, ids), bits(header.raw, dtype)
        if member.compress_type == zipfile.ZIP_STORED:
            place = _place(path, member) + header.size
            stored = StoredArray(path, place, header.shape, raw, dtype, header.fortran).vectors(labels)
            return replace(stored, read=lambda rows, wanted: _verified(path, member, stored, rows, wanted))

    def read(rows: int, wanted: Wanted) -> Iterator[Piece]:
        return cut(_stream(path, member, replace(header, raw=raw), dtype, labels, rows), rows, wanted)

    return VectorFile(dim, length, count_chunks(length), dtype, read)


@contextmanager
def _archive(path: Where) -> Iterator[zipfile.ZipFile]:
    try:
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            yield archive
    except BAD_ARCHIVE as problem:
        raise InputError("not an .npz archive, or a damaged one", where=path, got=str(problem)) from problem
    except OSError as problem:
        raise InputError("cannot read the file", where=path, got=problem.strerror or problem) from problem


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Where) -> Header:
    with archive.open(member) as stream:
        return read_header(stream, where=f"{path}, {member.filename}")


def _labels(
    archive: zipfile.ZipFile,
    members: dict[str, zipfile.ZipInfo],
    headers: dict[str, Header],
    name: str | None,
    length: int,
    path: Where,
) -> list[str] | None:
    if name is None:
        return None
    choose(list(headers), name, where=path, what="array")
    where = f"{path}, {name}"
    if headers[name].raw.hasobject:
        raise UsageError("the array of labels holds Python objects", where=where, expected="text or integers")
    if headers[name].total != members[name].file_size:
        raise InputError("the array is not as long as its header says", where=where)
    with archive.open(members[name]) as stream:
        return labels_of(npy_format.read_array(stream, allow_pickle=False), length, where=where)


def _place(path: Where, member: zipfile.ZipInfo) -> int:
    """Where the bytes of a stored member begin: behind its local header of 30 bytes, name and extra field."""
    with path.open("rb", HEADER) as stream:
        stream.seek(member.header_offset + 26)
        return member.header_offset + 30 + sum(struct.unpack("<HH", stream.read(4)))


def _verified(path: Where, member: zipfile.ZipInfo, stored: VectorFile, rows: int, wanted: Wanted) -> Iterator[Piece]:
    """The pieces of a stored array, after a check of its checksum where all of it is wanted."""
    if all(map(wanted, range(stored.chunks or 0))):
        with _archive(path) as archive, archive.open(member) as stream:
            while stream.read(1 << 20):
                pass
    yield from stored.read(rows, wanted)


def _stream(
    path: Where, member: zipfile.ZipInfo, header: Header, dtype: str, labels: Labels, rows: int
) -> Iterator[Rows]:
    """The rows of a compressed matrix."""
    where = f"{path}, {member.filename}"
    with _archive(path) as archive, archive.open(member) as stream:
        stream.seek(header.size)
        length, dim = header.shape
        held = _fill(stream, (dim, length), header.raw, where=where) if header.fortran else None
        for start, stop in steps(length, rows):
            if held is not None:
                x = np.ascontiguousarray(held[:, start:stop].T)
            else:
                x = _fill(stream, (stop - start, dim), header.raw, where=where)
            yield labels.beside(widen(x, dtype), start)


def _fill(stream: IO[bytes], shape: tuple[int, int], raw: np.dtype, *, where: object) -> np.ndarray:
    try:
        out = np.empty(shape, dtype=raw)
    except (MemoryError, ValueError) as problem:
        do = "save it in C order: `numpy.ascontiguousarray`"
        raise InputError("the array does not fit into memory", where=where, got=f"shape {shape}", do=do) from problem
    view = out.view(np.uint8).reshape(-1)
    if stream.readinto(view) != len(view):  # pyright: ignore[reportAttributeAccessIssue] every zip member has it
        raise InputError("the array ends before its header says", where=where)
    return out
