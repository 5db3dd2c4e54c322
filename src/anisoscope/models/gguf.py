"""GGUF files: quantised weights, config and tokenizer in one file, dequantised on opening.

transformers asks `gguf` to parse the whole file for the config, again for the weights and again for the tokenizer; most
of the time goes into the tens of thousands of strings of the vocabulary. It also makes the table of tensor names anew
for every submodule. `read_once` lets them share one reading and one table.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anisoscope.errors import MissingExtra, ModelError


def check_file(file: Path) -> None:
    """Say what is missing before transformers does: a library, or the file's first four bytes."""
    for library in ("gguf", "accelerate"):
        if importlib.util.find_spec(library) is None:
            raise MissingExtra(library, needed_for="a GGUF model", extra="gguf")
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ModelError("not a GGUF file", where=file, do="download it again")


@contextmanager
def read_once() -> Iterator[None]:
    """Inside, a GGUF file is parsed once, and no progress bar is drawn over it."""
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
