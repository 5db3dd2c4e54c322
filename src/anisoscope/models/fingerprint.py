"""What a model is, by its bytes: a sha256 of every file that can change a number, and one digest over all of them.

A name does not identify a model: a branch of the Hub moves, a folder is trained further, a tokenizer is edited. Two
runs are of one model if `ModelFiles.digest` is the same. The files that count are the config, the weights that would be
read, the tokenizer's or the processor's files, the parts of a sentence-transformers model and the repository's own
code; a README, an optimizer state and other checkpoints do not.

Hashing costs no more than reading: files are hashed side by side (hashlib releases the GIL), and `start_fingerprint`
does it in the background while the model loads. `unchanged` reads nothing as long as size and modification time are
unchanged.

    files = fingerprint("models/bert")
    files.digest, files.record()                    # the record is JSON: {name: {size, mtime_ns, sha256}}
    unchanged(files.record(), "models/bert")        # [] or the names of the files that differ
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from anisoscope.errors import ModelError
from anisoscope.models.locate import Place, in_cache, locate

if TYPE_CHECKING:
    from torch import nn

CHUNK = 1 << 22
_STAMP = ("size", "mtime_ns", "ctime_ns")
_SAFE = re.compile(r".*\.safetensors(\.index\.json)?")
_PREFERRED = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = re.compile(r"pytorch_model.*\.bin(\.index\.json)?")
_TOKENIZER = re.compile(
    r"(tokenizer|merges).*|.*vocab.*|dict\.txt|.*\.(model|spm|tiktoken|bpe|codes|tokenizer)"
    r"|(special_tokens_map|added_tokens|normalizer|emoji|byte_maps|word_shape|word_pronunciation)\.json"
)
_CONFIG = re.compile(
    r"config\.json|.*(processor|feature_extractor|extraction)_config\.json|modules\.json|.*sentence.*\.json|.*\.py"
)


@dataclass(frozen=True)
class ModelFile:
    size: int
    mtime_ns: int
    ctime_ns: int  # nobody can set it back, as `cp -p` and `rsync -t` do with mtime
    sha256: str


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model by their names, relative to its folder."""

    files: Mapping[str, ModelFile]

    @property
    def digest(self) -> str:
        """One sha256 over names and contents: the same wherever the files lie and whenever they were written."""
        lines = "".join(f"{name} {file.sha256}\n" for name, file in sorted(self.files.items()))
        return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()

    def record(self) -> dict[str, dict[str, Any]]:
        """As JSON keeps it; `unchanged` takes it back."""
        return {name: asdict(file) for name, file in self.files.items()}


Where = Place | str | Path


def fingerprint(where: Where, *, tokenizer: Path | None = None) -> ModelFiles:
    """Hash the files of a model, and of its tokenizer where that lies elsewhere."""
    return _hash_all(_paths(where, tokenizer), Event())


class Fingerprinting:
    """A fingerprint in the making. `result()` waits for it; `stop()` gives it up."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths, self._stopped = paths, Event()
        self._before = {name: _stamp(path) for name, path in paths.items()}
        self._future: Future[ModelFiles] = Future()
        Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._future.set_result(_hash_all(self._paths, self._stopped))
        except BaseException as error:
            self._future.set_exception(error)

    def result(self) -> ModelFiles:
        return self._future.result()

    def stop(self) -> None:
        self._stopped.set()

    def check(self) -> None:
        """An error if a file is no longer what it was when this began: the model may be a mixture of two."""
        for name, path in self._paths.items():
            if _stamp(path) != self._before[name]:
                raise _changed(path)


def start_fingerprint(where: Where, *, tokenizer: Path | None = None) -> Fingerprinting:
    """Begin to hash the files of a model in the background."""
    return Fingerprinting(_paths(where, tokenizer))


def unchanged(recorded: Mapping[str, Mapping[str, Any]], where: Where, *, tokenizer: Path | None = None) -> list[str]:
    """The names of the files that differ from a record, also those that are gone or new; empty if none does.

    A file of the recorded size and times is not read.
    """
    try:
        paths = _paths(where, tokenizer)
    except ModelError:  # not there any more
        return sorted(recorded)
    suspects = {
        name: path
        for name, path in paths.items()
        if name in recorded and _stamp(path) != tuple(recorded[name].get(part) for part in _STAMP)
    }
    found = _hash_all(suspects, Event()).files
    differ = {name for name, file in found.items() if file.sha256 != recorded[name]["sha256"]}
    return sorted(differ | (recorded.keys() ^ paths.keys()))


def module_fingerprint(module: nn.Module) -> str:
    """sha256 over names, types, shapes and bytes of all weights and buffers: equal for equal checkpoints.

    The order in which the module declares them does not matter.
    """
    import torch

    digest = hashlib.sha256()
    for name, weight in sorted(module.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        flat = weight.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _paths(where: Where, tokenizer: Path | None) -> dict[str, Path]:
    """The files that count, by name. A tokenizer of another folder has names of its own."""
    place = where if isinstance(where, Place) else locate(where)
    if place.kind == "gguf":
        assert place.path is not None
        found = {place.path.name: place.path}
    else:
        folder = place.path or in_cache(place.name, revision=place.revision)
        if folder is None:
            raise ModelError("the model is not on this machine", where=place.name, do="open it once")
        found = _in_folder(folder)
    if tokenizer is None:
        return found
    elsewhere = {f"tokenizer/{file.name}": file for file in _files(tokenizer) if _TOKENIZER.fullmatch(file.name)}
    return {name: path for name, path in found.items() if not _TOKENIZER.fullmatch(name)} | elsewhere


def _in_folder(folder: Path) -> dict[str, Path]:
    """Files of the folder and of the parts that `modules.json` names (Pooling, Dense)."""
    found: dict[str, Path] = {}
    for part in (folder, *(folder / name for name in _module_folders(folder))):
        files = _files(part)
        pickled = not any(file.name in _PREFERRED for file in files)  # they are read where both are there
        kinds, listed = (_SAFE, _TOKENIZER, _CONFIG, *([_PICKLED] if pickled else [])), _listed_weights(files)
        matching = (file for file in files if file.name in listed or any(kind.fullmatch(file.name) for kind in kinds))
        found |= {file.relative_to(folder).as_posix(): file for file in matching}
    return found


def _listed_weights(files: Iterable[Path]) -> set[str]:
    """The names that the indexes of weights give, whatever they end with."""
    found: set[str] = set()
    for index in (file for file in files if file.name.endswith(".index.json")):
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            found |= {str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
    return found


def _module_folders(folder: Path) -> list[str]:
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        paths = {str(module["path"]) for module in modules}
    except (OSError, ValueError, TypeError, KeyError):  # none, or not in this form: then it is a file like any other
        return []
    return sorted(path for path in paths if path and Path(path).name == path and (folder / path).is_dir())


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.is_file()) if folder.is_dir() else []


def _hash_all(paths: Mapping[str, Path], stopped: Event) -> ModelFiles:
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1), thread_name_prefix="fingerprint") as pool:
        hashed = pool.map(lambda path: _hash(path, stopped), paths.values())
        return ModelFiles(dict(zip(paths, hashed, strict=True)))


def _hash(path: Path, stopped: Event) -> ModelFile:
    before, digest = _stamp(path), hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as stream:
            while chunk := stream.read(CHUNK):
                if stopped.is_set():
                    raise ModelError("the fingerprint was given up", where=path)
                digest.update(chunk)
    except OSError as error:
        raise ModelError("a file of the model cannot be read", where=path, got=error.strerror) from error
    if _stamp(path) != before:
        raise _changed(path)
    return ModelFile(*before, digest.hexdigest())


def _stamp(path: Path) -> tuple[int, int, int]:
    """Size, modification time and time of the last change of any kind; of a file that is gone, values that no file
    has."""
    try:
        found = path.stat()
    except OSError:
        return -1, -1, -1
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _changed(path: Path) -> ModelError:
    return ModelError("a file of the model changed while it was being read", where=path, do="wait until it is complete")
