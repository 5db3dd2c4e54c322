"""GGUF files: quantised weights, config and tokenizer in one file, dequantised on opening.

transformers asks `gguf` to parse the whole file for the config, again for the weights and again for the tokenizer; most
of the time goes into the tens of thousands of strings of the vocabulary. It also makes the table of tensor names anew
for every submodule. `read_once` lets them share one reading and one table.

The header is walked before any of that: `gguf` believes the counts that it finds, and reads on past the end of a file
until memory is full.
"""

from __future__ import annotations

import functools
import importlib.util
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from anisoscope.errors import MissingExtra, ModelError

_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of a value, by its type
_STRING, _ARRAY = 8, 9


def check_file(file: Path) -> None:
    """Say what is missing or wrong before transformers does: a library, the first four bytes, the header."""
    for library in ("gguf", "accelerate"):
        if importlib.util.find_spec(library) is None:
            raise MissingExtra(library, needed_for="a GGUF model", extra="gguf")
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ModelError("not a GGUF file", where=file, do="download it again")
    held(file)


def held(file: Path) -> list[int]:
    """How many numbers each tensor holds, as the header says; refuses one that does not end within its file."""
    with file.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
        walk = _Walk(data, "<" if data[4:6] != b"\0\0" else ">")
        try:
            walk.take("I")  # the version
            tensors, keys = walk.take("Q"), walk.take("Q")
            for _ in range(keys):
                walk.skip(walk.take("Q"))
                walk.value(walk.take("I"))
            return [walk.tensor() for _ in range(tensors)]
        except (struct.error, KeyError, ValueError, RecursionError) as error:
            raise ModelError(
                "the header of this GGUF file is damaged or incomplete", where=file, do="download it again"
            ) from error


@dataclass
class _Walk:
    """A place in a header. Whatever is counted takes bytes, so no count leads beyond the end of the file."""

    data: mmap
    order: str
    at: int = 4

    def take(self, kind: str) -> int:
        (number,) = struct.unpack_from(self.order + kind, self.data, self.at)
        self.at += struct.calcsize(self.order + kind)
        return number

    def skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self.data):
            raise ValueError(self.at)

    def value(self, kind: int) -> None:
        if kind == _STRING:
            self.skip(self.take("Q"))
        elif kind != _ARRAY:
            self.skip(_BYTES[kind])
        else:
            kind, count = self.take("I"), self.take("Q")
            self.skip(count * _BYTES.get(kind, 0))
            for _ in range(0 if kind in _BYTES else count):
                self.value(kind)

    def tensor(self) -> int:
        self.skip(self.take("Q"))
        sizes = [self.take("Q") for _ in range(self.take("I"))]
        self.skip(12)  # type and offset
        return prod(sizes)


@contextmanager
def read_once() -> Iterator[None]:
    """Inside, a GGUF file is parsed only once, without a progress bar."""
    import gguf
    from transformers import modeling_gguf_pytorch_utils as loader

    before = gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm  # type: ignore[reportPrivateImportUsage]
    changed: Any = functools.cache(gguf.GGUFReader), functools.cache(gguf.get_tensor_name_map), _no_bar
    gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm = changed  # type: ignore[reportPrivateImportUsage]
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm = before  # type: ignore[reportPrivateImportUsage]


def _no_bar(tensors: Any, **_: Any) -> Any:
    return tensors
