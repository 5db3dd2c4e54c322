"""From what the user names (files, folders, globs) to a sorted list of files with keys that no machine changes.

The key of a file is its path relative to the folder or the fixed part of the glob that found it, or its bare name when
it was named itself, always with forward slashes: the same data in another place has the same keys, and keys decide the
jackknife groups. Two arguments that would give the same key to two files fall back to paths relative to what all
files share. A name that is not UTF-8 is spelled with backslashes (`caf\\udce9.npy`), so that a key can always be
printed, hashed and stored.

A file is only worth its fingerprint while it stays as it is: `Stamp` remembers size, time of change and inode. What a
URL names (`s3://bucket/folder/*.parquet`) is found in its store in the same way (`inputs.stores`).
"""

from __future__ import annotations

import glob
import hashlib
import os
import tomllib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.stores.objects import Mark, StoredObject, is_url, listed

Where = Path | StoredObject


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file, its machine-independent key, and whether the user named it (or a folder or a glob held it)."""

    path: Where
    key: str
    named: bool


@dataclass(frozen=True, slots=True)
class Stamp:
    """What shows that a file is no longer the one that was opened."""

    size: int
    changed: int  # mtime, ns
    inode: int
    status: int = field(repr=False)  # ctime, ns: nobody can set it back, as `cp -p` and `rsync -t` do with mtime


def stamp(path: Where) -> Stamp | Mark:
    """The stamp of a file, or an error that names it."""
    if isinstance(path, StoredObject):
        return path.stamp()
    try:
        found = path.stat()
    except OSError as problem:
        raise InputError("the file can no longer be read", where=path, got=problem.strerror) from problem
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns)


def check_unchanged(path: Where, before: Stamp | Mark) -> None:
    """Refuse a file that was edited or replaced since its stamp was taken."""
    if (now := stamp(path)) != before:
        got = f"{now.size:,} bytes" if now.size != before.size else "other contents of the same size"
        do = "measure again when nothing writes to it"
        raise InputError("the file changed while it was read", where=path, got=got, do=do)


Stamps = Sequence[tuple[Path, Stamp | Mark]]
"""Files, and what each was when it was opened."""


def check_all(stamps: Stamps) -> None:
    """Refuse files that were edited or replaced since their stamps were taken."""
    for path, before in stamps:
        check_unchanged(path, before)


def printable(text: str) -> str:
    """The text with lone surrogates spelled out; the rest as it is.

    >>> printable("caf\\udce9.npy")
    'caf\\\\udce9.npy'
    """
    return text.encode("utf-8", "backslashreplace").decode()


def find_files(where: Sequence[str | Path], *, suffixes: Collection[str], what: str) -> list[FoundFile]:
    """The files that `where` names, in the order given; folders (recursive) and globs are sorted, each file comes once.

    A file that is named is taken whatever its suffix; folders and globs yield only files with one of `suffixes`,
    and no hidden ones. `what` names the kind of file in messages ("text", "vectors").
    """
    found: dict[str, FoundFile] = {}
    for place in where:
        try:
            files = _expand(place, tuple(suffixes), what)
        except OSError as problem:
            raise InputError(f"cannot look for {what} here", where=place, got=problem.strerror) from problem
        for file in files:
            found.setdefault(_absolute(file.path), file)
    files = list(found.values())
    if len({file.key for file in files}) == len(files):
        return files
    if any(map(is_url, found)):
        return [FoundFile(f.path, printable(path), f.named) for path, f in found.items()]
    shared = Path(os.path.commonpath(found))
    return [FoundFile(f.path, _key(Path(path), shared), f.named) for path, f in found.items()]


def _absolute(path: Where) -> str:
    return path.url if isinstance(path, StoredObject) else os.path.abspath(path)


def _expand(place: str | Path, suffixes: tuple[str, ...], what: str) -> list[FoundFile]:
    if is_url(place):
        return _expand_url(str(place), suffixes, what)
    if not str(place):  # as of a variable of the shell that is not set: it would be the folder that one is in
        raise UsageError(f"an empty name where {what} was expected", do="name a file or a folder")
    path = Path(os.path.expanduser(place))
    if path.is_dir():
        root, inside = path, path.rglob("*")
    elif path.is_file():
        return [FoundFile(path, printable(path.name), named=True)]
    elif path.exists() or place == "-":
        do = "save what comes through it to a file: it is read more than once"
        do += "; text can be piped into --data -" if what == "text" else ""
        raise UsageError("neither a file nor a folder", where=place, got="a pipe, a socket or a device", do=do)
    elif glob.has_magic(str(path)):
        root = _fixed_part(path)
        inside = (Path(match) for match in glob.glob(str(path), recursive=True))
    else:
        raise UsageError(f"no such file or folder with {what}", where=place, do="check the path")
    inside = (path for path in inside if path.name.lower().endswith(suffixes) and path.is_file())
    found = [FoundFile(path, _key(path, root), named=False) for path in inside]
    return _suitable(found, suffixes, what, place)


def _expand_url(url: str, suffixes: tuple[str, ...], what: str) -> list[FoundFile]:
    root, found = listed(url)
    if [one.url for one in found] == [url]:
        return [FoundFile(found[0], printable(found[0].name), named=True)]
    files = [FoundFile(one, printable(one.url.removeprefix(f"{root}/")), named=False) for one in found]
    return _suitable(files, suffixes, what, url)


def _suitable(found: Iterable[FoundFile], suffixes: tuple[str, ...], what: str, place: object) -> list[FoundFile]:
    """Those that end in a known suffix and are not hidden, sorted; an error where there are none."""
    files = [file for file in found if file.key.lower().endswith(suffixes) and not _hidden(file.key)]
    if not files:
        expected = f"files that end in {' '.join(suffixes)}"
        raise InputError(f"no {what} files here", where=place, got="none", expected=expected)
    return sorted(files, key=lambda file: file.key)


def _hidden(key: str) -> bool:
    return any(part.startswith(".") for part in key.split("/"))


def _key(path: Path, root: Path) -> str:
    return printable(path.relative_to(root).as_posix())


def _fixed_part(pattern: Path) -> Path:
    """The folder above the first wildcard: `a/b` of `a/b/*/c*.txt`."""
    fixed = [part for part in pattern.parents if not glob.has_magic(str(part))]
    return fixed[0]


def name_of(where: Sequence[str | Path]) -> str:
    """A short name for the data: `valid.txt`, or `valid.txt and 3 more`.

    >>> name_of(["/data/wikitext/valid.txt"]), name_of(["a.npy", "b.npy", "c.npy"])
    ('valid.txt', 'a.npy and 2 more')
    """
    first = Path(os.path.expanduser(where[0]))
    name = printable(first.name or first.resolve().name or str(first))
    return name if len(where) == 1 else f"{name} and {len(where) - 1} more"


def read_toml(path: Path | str) -> dict[str, Any]:
    """A TOML file that a person wrote."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError("there is no such file", where=path) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError("this is not valid TOML", where=path, got=error) from error


def digest(parts: Iterable[bytes]) -> str:
    """sha256 of the parts, each preceded by its length so that no two lists of parts share a stream of bytes."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(len(part).to_bytes(8, "little"))
        sha.update(part)
    return sha.hexdigest()


def file_digests(files: Iterable[FoundFile]) -> Iterator[bytes]:
    """sha256 of each file's bytes, read in small pieces; nothing stands for a file that may not be read."""
    for file in files:
        try:
            yield file_digest(file.path)
        except OSError:
            yield b""


def file_digest(path: Where) -> bytes:
    """sha256 of a file's bytes, read in small pieces; of an object, its store's mark of them."""
    if isinstance(path, StoredObject):
        return path.digest()
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()
