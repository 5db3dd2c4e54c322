"""Vectors in `.safetensors`: 8 bytes of header length (little-endian), a JSON header, then the bytes of all tensors.

The header says type, shape and place of each tensor, so a block of rows is one seek and one read, and torch is not
needed, not even for bfloat16. Format: https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.vectors.arrays import StoredArray, VectorFile, bits, keys_of
from anisoscope.inputs.vectors.columns import choose

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


def open_safetensors(path: Path, *, column: str | None, group: str | None) -> VectorFile:
    """The matrix named `column`, or the only one; `group` names a tensor (n,) of integers."""
    header, data = _read_header(path)
    matrices = [name for name, entry in header.items() if len(entry["shape"]) == 2 and name != group]
    vectors = _locate(path, header, choose(matrices, column, where=path, what="matrix (n, d)"), data)
    if group is None:
        return vectors.vectors(keys=None)
    groups = _locate(path, header, choose(list(header), group, where=path, what="tensor"), data)
    return vectors.vectors(keys_of(groups.whole(), vectors.shape[0], where=f"{path}, {group}"))


def _read_header(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """What is known of each tensor, and where in the file the data begin."""
    with open(path, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= path.stat().st_size - 8:
            raise InputError("not a .safetensors file, or a truncated one", where=path)
        try:
            entries = dict(json.loads(stream.read(length)))
        except (ValueError, TypeError) as problem:
            raise InputError("the header of the file is damaged", where=path, got=str(problem)) from problem
    entries.pop("__metadata__", None)
    for name, entry in entries.items():
        if not (isinstance(entry, dict) and {"dtype", "shape", "data_offsets"} <= entry.keys()):
            raise InputError("the header of the file is damaged", where=f"{path}, {name}", got=entry)
    return entries, 8 + length


def _locate(path: Path, header: dict[str, dict[str, Any]], name: str, data: int) -> StoredArray:
    entry, where = header[name], f"{path}, {name}"
    if entry["dtype"] not in DTYPES:
        expected = ", ".join(DTYPES)
        raise UsageError("a type of tensor that cannot be read", where=where, got=entry["dtype"], expected=expected)
    dtype = DTYPES[entry["dtype"]]
    raw = bits(np.dtype("V2") if dtype == "bfloat16" else np.dtype(dtype).newbyteorder("<"), dtype)
    shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
    if end - begin != math.prod(shape) * raw.itemsize:
        raise InputError("the header of the file is damaged", where=where, got=f"{end - begin} bytes for shape {shape}")
    return StoredArray(path, data + begin, shape, raw, dtype)
