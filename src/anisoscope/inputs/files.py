"""From what the user names (files, folders, globs) to a sorted list of files with keys that no machine changes.

The key of a file is its path relative to the folder or the fixed part of the glob that found it, or its bare name when
it was named itself, always with forward slashes: the same data in another place has the same keys, and keys decide the
jackknife groups. Two arguments that would give the same key to two files fall back to paths relative to what all
files share.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from anisoscope.errors import InputError, UsageError


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file, its machine-independent key, and whether the user named it (or a folder or a glob held it)."""

    path: Path
    key: str
    named: bool


def find_files(where: Sequence[str | Path], *, suffixes: Collection[str], what: str) -> list[FoundFile]:
    """The files that `where` names, in the order given; folders (recursive) and globs are sorted, each file comes once.

    A file that is named is taken whatever its suffix; folders and globs yield only files with one of `suffixes`,
    and no hidden ones. `what` names the kind of file in messages ("text", "vectors").
    """
    found: dict[Path, FoundFile] = {}
    for place in where:
        for file in _expand(place, tuple(suffixes), what):
            found.setdefault(Path(os.path.abspath(file.path)), file)
    files = list(found.values())
    if len({file.key for file in files}) == len(files):
        return files
    shared = os.path.commonpath(found)
    return [FoundFile(f.path, path.relative_to(shared).as_posix(), f.named) for path, f in found.items()]


def _expand(place: str | Path, suffixes: tuple[str, ...], what: str) -> list[FoundFile]:
    path = Path(place).expanduser()
    if path.is_dir():
        root, inside = path, path.rglob("*")
    elif path.exists():
        return [FoundFile(path, path.name, named=True)]
    elif glob.has_magic(str(path)):
        root = _fixed_part(path)
        inside = (Path(match) for match in glob.glob(str(path), recursive=True))
    else:
        raise UsageError(f"no such file or folder with {what}", where=place, do="check the path")
    files = [FoundFile(p, p.relative_to(root).as_posix(), named=False) for p in inside if _wanted(p, root, suffixes)]
    if not files:
        expected = f"files that end in {' '.join(suffixes)}"
        raise InputError(f"no {what} files here", where=place, got="none", expected=expected)
    return sorted(files, key=lambda file: file.key)


def _fixed_part(pattern: Path) -> Path:
    """The folder above the first wildcard: `a/b` of `a/b/*/c*.txt`."""
    fixed = [part for part in pattern.parents if not glob.has_magic(str(part))]
    return fixed[0]


def _wanted(path: Path, root: Path, suffixes: tuple[str, ...]) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return not hidden and path.name.lower().endswith(suffixes) and path.is_file()


def name_of(where: Sequence[str | Path]) -> str:
    """A short name for the data: `valid.txt`, or `valid.txt and 3 more`.

    >>> name_of(["/data/wikitext/valid.txt"]), name_of(["a.npy", "b.npy", "c.npy"])
    ('valid.txt', 'a.npy and 2 more')
    """
    first = Path(where[0]).expanduser()
    name = first.name or first.resolve().name or str(first)
    return name if len(where) == 1 else f"{name} and {len(where) - 1} more"


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
            with open(file.path, "rb") as stream:
                yield hashlib.file_digest(stream, "sha256").digest()
        except OSError:
            yield b""
