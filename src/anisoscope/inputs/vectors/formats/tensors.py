"""Vectors in `.safetensors`: 8 bytes of header length (little-endian), a JSON header, then the bytes of all tensors.

The library checks the header and the length of a local file. The bytes are read from where the header says: the library
maps the whole file, and hands out bfloat16 only through torch. Format: https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.files import Where
from anisoscope.inputs.stores.objects import HEADER
from anisoscope.inputs.vectors.columns import Columns, choose
from anisoscope.inputs.vectors.formats.arrays import StoredArray, VectorFile, bits, labels_of
from anisoscope.inputs.vectors.pieces import Labels

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}


def open_safetensors(path: Where, columns: Columns) -> VectorFile:
    """The matrix named `column`, or the only one; `group` and `ids` name tensors (n,) of integers."""
    header, data, _ = read_header(path)
    vectors = _locate(path, header, vector_tensor(path, header, columns), data)

    def labels(name: str | None) -> list[str] | None:
        if name is None:
            return None
        stored = _locate(path, header, choose(list(header), name, where=path, what="tensor"), data)
        return labels_of(stored.whole(), vectors.shape[0], where=f"{path}, {name}")

    return vectors.vectors(Labels(labels(columns.group), labels(columns.ids)))


def vector_tensor(path: Where, header: dict[str, dict[str, Any]], columns: Columns) -> str:
    """The name of the matrix that holds the vectors."""
    matrices = [name for name, entry in header.items() if len(entry["shape"]) == 2 and name not in columns.labels]
    return choose(matrices, columns.vectors, where=path, what="matrix (n, d)")


def read_header(path: Where) -> tuple[dict[str, dict[str, Any]], int, dict[str, str] | None]:
    """What is known of each tensor, where in the file the data begin, and what the file says of itself."""
    from safetensors import SafetensorError, safe_open

    try:
        if isinstance(path, Path):
            with safe_open(path, framework="numpy"):
                pass
        with path.open("rb", HEADER) as stream:
            length = int.from_bytes(stream.read(8), "little")
            header: dict[str, Any] = json.loads(stream.read(length))
    except (SafetensorError, ValueError) as problem:
        got = str(problem)
        raise InputError("not a .safetensors file, or a truncated or damaged one", where=path, got=got) from problem
    metadata = header.pop("__metadata__", None)
    return header, 8 + length, metadata


def _locate(path: Where, header: dict[str, dict[str, Any]], name: str, data: int) -> StoredArray:
    entry = header[name]
    if entry["dtype"] not in DTYPES:
        got, expected = entry["dtype"], ", ".join(DTYPES)
        raise UsageError("a type of tensor that cannot be read", where=f"{path}, {name}", got=got, expected=expected)
    dtype = DTYPES[entry["dtype"]]
    raw = bits(np.dtype("V2") if dtype == "bfloat16" else np.dtype(dtype).newbyteorder("<"), dtype)
    return StoredArray(path, data + entry["data_offsets"][0], tuple(entry["shape"]), raw, dtype)
