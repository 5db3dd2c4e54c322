"""Bring a model from the hub into its cache, whole or not at all, and find it there when there is no network.

Only what is needed comes: config, tokenizer and processor files, and one set of weights (safetensors if there are any,
else PyTorch's pickles, which are read as tensors only). Downloading compares lengths only, so the client is asked to
compare what arrived with the Hub's digests. A file that differs is removed and the error says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from anisoscope.errors import ModelError
from anisoscope.models.locate import in_cache

_SMALL = re.compile(r"[^/]+\.(json|txt|model|tiktoken|jinja|bpe)")
_SAFE = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
_PICKLED = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")
_PART = re.compile(r"\d+_\w+/")  # Pooling, Dense and the like of a sentence-transformers model


def fetch(name: str, *, revision: str | None = None, code: bool = False) -> Path:
    """The folder in the cache that holds the model, brought up to date if the hub can be reached.

    With `code` the Python files of the repository come too.
    """
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")  # no conversion request in the background
    from huggingface_hub import errors, snapshot_download

    unreachable = errors.HTTPError, errors.OfflineModeIsEnabled  # type: ignore[reportPrivateImportUsage]
    try:
        files = _listing(name, revision)
    except unreachable as error:
        return _from_cache(name, revision, error)
    before = _blobs(name)
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=wanted(files, code=code)))
        _verify(name, folder, _blobs(name) - before)
    except (*unreachable, OSError) as error:
        for blob in _blobs(name) - before:
            (_repository(name) / "blobs" / blob).unlink()  # nobody compared it
        raise ModelError(
            "the download broke off, and nothing of it is used", where=name, got=first_line(error), do="try again"
        ) from error
    return folder


def fetch_tokenizer(name: str) -> Path:
    """The folder in the cache that holds the small files of a model: config and tokenizer, no weights."""
    from huggingface_hub import errors, snapshot_download

    unreachable = errors.HTTPError, errors.OfflineModeIsEnabled  # type: ignore[reportPrivateImportUsage]
    try:
        files = [file for file in _listing(name, None) if _SMALL.fullmatch(file)]
        return Path(snapshot_download(name, allow_patterns=files))
    except (*unreachable, OSError) as error:
        try:
            return Path(snapshot_download(name, local_files_only=True))
        except OSError:
            raise ModelError(
                "the hub cannot be reached and the tokenizer is not in the cache",
                where=name,
                got=first_line(error),
                do="name a folder, or connect once",
            ) from error


def _listing(name: str, revision: str | None) -> list[str]:
    """The files of the repository at the revision, from the hub."""
    from huggingface_hub import HfApi, errors

    try:
        info = HfApi().model_info(name, revision=revision)
    except errors.RevisionNotFoundError as error:
        raise ModelError(
            "the model has no such revision on the hub", where=name, got=revision, do="see its branches and tags"
        ) from error
    except errors.GatedRepoError as error:
        raise ModelError("the model requires permission", where=name, do="ask for it on its page") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError("no such model", where=name, do=_suggestion(name)) from error
    except errors.HFValidationError as error:
        raise ModelError("not the name of a model", where=name, expected="owner/name") from error
    return [sibling.rfilename for sibling in info.siblings or ()]


def wanted(files: Iterable[str], *, code: bool = False) -> list[str]:
    """The files of a repository that opening it takes.

    >>> wanted(["config.json", "model.safetensors", "pytorch_model.bin", "tf_model.h5", "onnx/model.onnx"])
    ['config.json', 'model.safetensors']
    >>> wanted(["modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin"])
    ['modules.json', '1_Pooling/config.json', '2_Dense/model.safetensors']
    """
    listed = sorted(files)
    if "modules.json" in listed:
        folders = sorted({found[0] for file in listed if (found := _PART.match(file))})
        rest = [file for file in listed if not _PART.match(file)]
        inner = [part + one for part in folders for one in wanted(_inside(listed, part), code=code)]
        return [*wanted([file for file in rest if file != "modules.json"], code=code), "modules.json", *inner]
    weights = [file for file in listed if _SAFE.fullmatch(file)] or [f for f in listed if _PICKLED.fullmatch(f)]
    small = [file for file in listed if _SMALL.fullmatch(file)]
    return small + weights + ([file for file in listed if file.endswith(".py")] if code else [])


def _inside(files: Iterable[str], folder: str) -> list[str]:
    return [file.removeprefix(folder) for file in files if file.startswith(folder)]


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _from_cache(name: str, revision: str | None, error: Exception) -> Path:
    """What an earlier download left, since the hub does not answer."""
    from anisoscope.models.catalogue import same_model

    folders = (in_cache(each, revision=revision) for each in same_model(name))
    folder = next((folder for folder in folders if folder is not None), None)
    if folder is None:
        asked = name if revision is None else f"{name} at {revision}"
        raise ModelError(
            "the hub cannot be reached and the model is not in the cache",
            where=asked,
            got=first_line(error),
            do="name a folder, or a mirror of models laid out as owner/name (--models-dir), or connect once",
        ) from error
    return folder


def _suggestion(name: str) -> str:
    from anisoscope.models.catalogue import suggest

    close = suggest(name)
    return f"did you mean {' or '.join(close)}?" if close else "check its owner and name (private models need a login)"


def _repository(name: str) -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"


def _blobs(name: str) -> set[str]:
    folder = _repository(name) / "blobs"
    return {file.name for file in folder.iterdir()} if folder.is_dir() else set()


def _verify(name: str, folder: Path, new: set[str]) -> None:
    """Let the client compare what arrived with the Hub's digests; remove what differs."""
    from huggingface_hub import HfApi

    found = HfApi().verify_repo_checksums(name, revision=folder.name) if new else None
    damaged = [folder / mismatch["path"] for mismatch in found.mismatches] if found else []
    for link in damaged:
        link.resolve().unlink(missing_ok=True)
        link.unlink(missing_ok=True)
    if damaged:
        raise ModelError(
            "what arrived is not what the hub holds, and was removed",
            where=name,
            got=f"{len(damaged)} damaged file(s)",
            do="try again",
        )
