"""Where a model is: a folder, a GGUF file, a local mirror, the hub's cache, or the hub.

A name such as `owner/name` is looked for in the mirror first (`models_dir`, or the environment variable
ANISOSCOPE_MODELS), laid out as `owner/name` and `owner/name@revision`; then as a path; only then on the hub. A name
that begins with `/`, `.` or `~` is a path and nothing else. A folder in an object store (`s3://bucket/bert`) is brought
into the cache first, and so is a model of a mirror that lies in one.

Nothing here imports torch or transformers: the same functions answer tab completion.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from anisoscope.errors import ModelError, UsageError
from anisoscope.inputs.stores.clients import is_url

MIRROR_VARIABLE = "ANISOSCOPE_MODELS"
LONGEST_NAME, LONGEST_PART = 4096, 255  # what file systems allow
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class Place:
    """One place of a model. `path` is missing for the hub; `revision` is what was asked for."""

    kind: Literal["folder", "gguf", "hub"]
    name: str
    revision: str | None = None
    path: Path | None = None


def locate(where: str | Path, *, revision: str | None = None, models_dir: str | Path | None = None) -> Place:
    """The place that `where` means, or an error that says where it was looked for."""
    text = os.fspath(where)
    _check_name(text)
    if is_url(text):
        return _in_store(text, revision)
    if models_dir is not None and not is_url(models_dir) and not Path(os.path.expanduser(models_dir)).is_dir():
        raise UsageError("no such mirror of models", where=models_dir, expected="a folder laid out as owner/name")
    path = Path(os.path.expanduser(text))
    if isinstance(where, Path) or text.startswith(("/", ".", "~")):
        return _on_disk(path, revision)
    from anisoscope.models.catalogue import same_model  # late: the catalogue looks into the mirror with this module

    for name in same_model(text):
        mirrored = in_mirror(name, revision=revision, models_dir=models_dir)
        if mirrored is not None:
            return _on_disk(mirrored, None, name=text, mirrored_revision=revision)
    if path.exists() or path.suffix == ".gguf":
        return _on_disk(path, revision)
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", text):
        raise ModelError("no such model", where=text, expected="a folder, a GGUF file, or a hub id such as owner/name")
    return Place("hub", text, revision)


def _check_name(text: str) -> None:
    """Refuse what no file system and no hub could have."""
    if not text.strip():
        raise UsageError("the model has no name", expected="a hub id, a folder or a GGUF file")
    if "\0" in text or not text.isprintable():
        raise UsageError("the model's name has a character that no name can have", where=ascii(text[:80]))
    longest = max(len(part.encode("utf-8", "surrogateescape")) for part in re.split(r"[/\\]", text))
    if len(text) > LONGEST_NAME or longest > LONGEST_PART:
        raise UsageError(
            "the model's name is too long to be one",
            where=f"{text[:40]}…",
            got=f"{len(text)} characters",
            expected=f"at most {LONGEST_PART} between two slashes",
            do="name a hub id, a folder or a GGUF file",
        )


def in_mirror(name: str, *, revision: str | None = None, models_dir: str | Path | None = None) -> Path | None:
    """The folder of `name` in the mirror, or None. A revision has its own folder, `owner/name@revision`."""
    root = models_dir if models_dir is not None else os.environ.get(MIRROR_VARIABLE)
    if not root:
        return None
    if is_url(root):
        from anisoscope.models.mirrors import fetch_folder, has_model

        url = f"{str(root).rstrip('/')}/{name if revision is None else f'{name}@{revision}'}"
        return fetch_folder(url) if has_model(url) else None
    folder = Path(os.path.expanduser(root)) / (name if revision is None else f"{name}@{revision}")
    return folder if folder.is_dir() else None


def in_cache(name: str, *, revision: str | None = None) -> Path | None:
    """The snapshot of `name` in the hub's cache, if it holds a config and weights, or None."""
    from huggingface_hub.constants import HF_HUB_CACHE

    repository = Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    reference = repository / "refs" / (revision or "main")
    commit = reference.read_text().strip() if reference.is_file() else revision
    if commit is None:
        return None
    snapshot = repository / "snapshots" / commit
    return snapshot if (snapshot / "config.json").is_file() and has_weights(snapshot) else None


def has_weights(folder: Path) -> bool:
    """Whether the folder holds PyTorch weights under a name that transformers reads, or a GGUF file."""
    return any((folder / name).is_file() for name in WEIGHTS) or any(folder.glob("*.gguf"))


def read_json(file: Path) -> Any:
    """What a JSON file of a model holds; an empty object where there is no such file."""
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (ValueError, RecursionError, OSError) as error:
        got = str(error).partition("\n")[0]
        raise ModelError(f"{file.name} is not JSON", where=file.parent, got=got) from error


def listed_modules(folder: Path) -> list[dict[str, Any]]:
    """The parts of a sentence-transformers model, in order; empty for any other folder."""
    file = folder / "modules.json"
    listed = read_json(file) if file.is_file() else []
    if not isinstance(listed, list) or not all(isinstance(part, dict) for part in listed):
        raise ModelError("modules.json does not list the parts of a model", where=folder, got=type(listed).__name__)
    check_beside((str(part.get("path") or "") for part in listed), file)
    return sorted(listed, key=lambda part: part.get("idx", 0))


def check_beside(names: Iterable[str], file: Path) -> None:
    """Refuse a file that names others elsewhere than beside it: they would be read and not fingerprinted."""
    strange = sorted(name for name in names if Path(name).name != name)
    if strange:
        raise ModelError(
            f"{file.name} names a file that does not lie beside it",
            where=file.parent,
            got=strange[0],
            expected="a name without a path",
            do="put it into the folder, and its name into the file",
        )


def transformer_folder(folder: Path) -> Path:
    """Where the transformer of a model lies: its folder, or the part of it that `modules.json` names."""
    if (folder / "config.json").is_file():
        return folder
    return folder / next((str(part.get("path") or "") for part in listed_modules(folder)), "")


def _in_store(url: str, revision: str | None) -> Place:
    """A folder of an object store, in the cache by now."""
    from anisoscope.models.mirrors import fetch_folder

    name = url.rstrip("/").rpartition("/")[2]
    return _on_disk(fetch_folder(url), revision, name=name)


def _on_disk(
    path: Path, revision: str | None, *, name: str | None = None, mirrored_revision: str | None = None
) -> Place:
    """A folder or a GGUF file. A folder has no revisions: transformers would ignore one silently."""
    if not path.exists():
        raise ModelError("no such folder or file", where=path, do="name a folder with config.json, or a hub id")
    if revision is not None:
        raise UsageError(
            "a folder or file has no revisions",
            where=path,
            got=f"revision={revision!r}",
            do="name the folder of that revision, or a hub id with the revision",
        )
    name = name or path.resolve().name
    if not path.is_dir():
        if path.suffix != ".gguf" or not path.is_file():
            raise ModelError("not a model", where=path, expected="a folder, or a file that ends with .gguf")
        return Place("gguf", name, mirrored_revision, path)
    quantised = sorted(path.glob("*.gguf"))
    if quantised and not (path / "config.json").is_file():
        if len(quantised) > 1:
            names = ", ".join(file.name for file in quantised)
            raise UsageError("the folder holds several GGUF files", where=path, got=names, do="name one of them")
        return Place("gguf", name, mirrored_revision, quantised[0])
    return Place("folder", name, mirrored_revision, path)
