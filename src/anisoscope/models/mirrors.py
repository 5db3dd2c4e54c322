"""A model that lies in an object store: its folder is brought into the cache, whole or not at all.

    anisoscope measure s3://bucket/models/bert
    anisoscope measure gpt2 --models-dir s3://bucket/mirror          # laid out as owner/name[@revision]

The cache is `~/.cache/anisoscope/models` (ANISOSCOPE_CACHE, XDG_CACHE_HOME). A folder there is named by a hash of the
names, sizes and marks (ETag) of the objects, so that a model that changes in the store is fetched anew and one that did
not is not. Every file is compared with its object: its size always, its MD5 where the mark is one, and the mark once
more at the end.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from anisoscope.errors import ModelError, UsageError
from anisoscope.inputs.stores.objects import Mark, StoredObject, is_object, listed, store_errors
from anisoscope.models.hub import wanted

CONFIGS = ("config.json", "modules.json")
_PIECE = 8 << 20
_MD5 = re.compile(r'ETag="?([0-9a-f]{32})"?$')


def has_model(url: str) -> bool:
    """Whether a folder of a store holds a model."""
    return any(is_object(f"{url.rstrip('/')}/{name}") for name in CONFIGS)


def fetch_folder(url: str) -> Path:
    """The folder in the cache that holds the model of this URL."""
    url = url.rstrip("/")
    try:
        root, found = listed(f"{url}/")
    except UsageError as problem:
        raise ModelError("no such folder in the store", where=url, do="check bucket and key") from problem
    objects = {one.url.removeprefix(f"{root}/"): one for one in found}
    names = wanted(objects, code=True)
    if not any(name in CONFIGS for name in names):
        got = ", ".join(sorted(objects)[:6]) or "nothing"
        raise ModelError("no model in this folder of the store", where=url, got=got, expected="config.json")
    marks = {name: objects[name].stamp() for name in names}
    folder = cache() / re.sub(r"[^\w.-]+", "-", url) / _digest(marks)
    if not folder.is_dir():
        _fetch(url, objects, marks, folder)
    return folder


def cache() -> Path:
    """Where models of stores are kept."""
    base = os.environ.get("ANISOSCOPE_CACHE")
    if base is None:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anisoscope"
    return Path(base) / "models"


def _digest(marks: Mapping[str, Mark]) -> str:
    lines = (f"{name} {mark.size} {mark.tag or mark.changed}\n" for name, mark in sorted(marks.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def _fetch(url: str, objects: Mapping[str, StoredObject], marks: Mapping[str, Mark], folder: Path) -> None:
    """Copy the objects beside the folder, compare them, and put them in place at once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as held:
        partial = Path(held) / "model"
        for name, mark in marks.items():
            _copy(objects[name], partial / name, mark)
        changed = [name for name, mark in marks.items() if objects[name].stamp() != mark]
        if changed:
            raise ModelError("the model changed while it was fetched", where=url, got=changed[0], do="try again")
        try:
            partial.rename(folder)
        except OSError:  # another process was faster: its copy has the same marks
            if not folder.is_dir():
                raise


def _copy(source: StoredObject, target: Path, mark: Mark) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    md5, size = hashlib.md5(usedforsecurity=False), 0
    with store_errors(source.url), source.native() as stream, target.open("wb") as out:
        while piece := stream.read(_PIECE):
            md5.update(piece)
            size += out.write(piece)
    known = _md5(mark.tag)
    if size != mark.size or (known is not None and known != md5.hexdigest()):
        expected = f"{mark.size:,} bytes" + (f", MD5 {known}" if known else "")
        raise ModelError(
            "what arrived is not what the store holds",
            where=source,
            got=f"{size:,} bytes, MD5 {md5.hexdigest()}",
            expected=expected,
            do="try again",
        )


def _md5(tag: str) -> str | None:
    """The MD5 that a store's mark of the contents names: Google's, and the ETag of what S3 got in one piece.

    >>> _md5("md5Hash=XUFAKrxLKna5cZ2REBfFkg=="), _md5('ETag="0x255A9F998ADC7A0"')
    ('5d41402abc4b2a76b9719d911017c592', None)
    """
    if tag.startswith("md5Hash="):
        return base64.b64decode(tag.removeprefix("md5Hash=")).hex()
    found = _MD5.fullmatch(tag)
    return found and found[1]
