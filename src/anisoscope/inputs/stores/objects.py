"""One object of a store, with what readers use of a path; and what lies under a URL.

    object = StoredObject("s3://bucket/vectors.npy")
    with object.open() as stream:          # seekable; every read is a ranged request, nothing is downloaded whole
        stream.seek(128)
        stream.read(4096)

What identifies the contents is the store's own mark: the ETag of S3 and Azure, Google's MD5 or CRC32C, the blob of the
Hub, with size and time of change (`stamp`). It is compared before and after every pass, so that an object that is
replaced meanwhile is refused, and its hash is the fingerprint: a second download would cost as much as the pass.
"""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import translate
from pathlib import PurePosixPath
from re import fullmatch
from typing import Any, BinaryIO, cast

from anisoscope.errors import AnisoscopeError, InputError, UsageError
from anisoscope.inputs.stores.clients import HEADER, ask, is_url, settings

READ_AHEAD = 8 << 20  # bytes of a request: a round trip to a store costs as much as some megabytes
_MARKS = (
    "md5Hash",
    "crc32c",
    "ETag",
    "etag",
    "generation",
)  # of the contents first: Google's others change at every copy
_TIMES = ("Last-Modified", "updated", "timeUpdated")

# What the clients say, what it means, and which of the settings of a store to check.
_FAULTS = (
    (("NO_SUCH_BUCKET", "NoSuchBucket", "ContainerNotFound"), "no such bucket", "place"),
    (
        ("ACCESS_DENIED", "INVALID_ACCESS_KEY", "SIGNATURE_DOES_NOT", "Forbidden", "403", "401", "PERMISSION_DENIED"),
        "the store refuses access",
        "credentials",
    ),
    (("credential", "Credential"), "the store wants credentials", "credentials"),
    (
        (
            "NETWORK_CONNECTION",
            "resolve host",
            "onnect",
            "annot reach",
            "timed out",
            "Server error",
            "TIMEOUT",
            "Offline",
        ),
        "the store cannot be reached",
        "place",
    ),
)


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """What a client raises, as an error that says what to do."""
    from pyarrow import ArrowException

    try:
        yield
    except AnisoscopeError:
        raise
    except FileNotFoundError as problem:
        raise UsageError("no such object in the store", where=url, do="check bucket and key") from problem
    except (OSError, ArrowException, ValueError, *_of_the_hub()) as problem:
        text = str(problem).strip().partition("\n")[0]
        if "No such file or directory" in text:
            raise UsageError("no such object in the store", where=url, do="check bucket and key") from problem
        for words, what, kind in _FAULTS:
            if any(word in text for word in words):
                raise InputError(what, where=url, got=text, do=f"check {settings(url)[kind]}") from problem
        do = "try again: what was saved is continued"
        raise InputError("cannot read from the store", where=url, got=text, do=do) from problem


def _of_the_hub() -> tuple[type[Exception], ...]:
    """What the Hub's client raises without calling it an OSError: no connection, no time."""
    if "huggingface_hub" not in sys.modules:
        return ()
    from huggingface_hub import errors

    return (errors.HTTPError,)  # type: ignore[reportPrivateImportUsage]


@dataclass(frozen=True, slots=True)
class Mark:
    """What shows that an object is no longer the one that was opened."""

    size: int
    changed: str
    tag: str


@dataclass(frozen=True, slots=True, order=True)
class StoredObject:
    """An object by its URL; readers use it as they use a path."""

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.url).suffix

    def exists(self) -> bool:
        return True  # what is gone by now is said when it is read

    def native(self) -> Any:
        """The object as an open file of pyarrow."""
        with store_errors(self.url):
            return ask(self.url, lambda system, path: system.open_input_file(path))

    def open(self, mode: str = "rb", buffering: int = READ_AHEAD) -> BinaryIO:
        """A stream of bytes that can be sought; `buffering` bytes are asked for at a time."""
        return cast("BinaryIO", io.BufferedReader(cast("io.RawIOBase", self.native()), buffering))

    def read(self, start: int, length: int) -> bytes:
        """These bytes, in one request; fewer where the object ends."""
        with self.native() as file, store_errors(self.url):
            return file.read_at(length, start)

    def stamp(self) -> Mark:
        """Size, time of change and the store's own mark of the contents."""
        with store_errors(self.url):
            if self.url.startswith("hf:"):
                return _hub_mark(ask(self.url, lambda system, path: system.handler.fs.info(path)))
            with self.native() as file:
                said = {key: _text(value) for key, value in (file.metadata() or {}).items()}
                tag = next((f"{key}={said[key]}" for key in _MARKS if said.get(key)), "")
                return Mark(file.size(), next((said[key] for key in _TIMES if key in said), ""), tag)

    def digest(self) -> bytes:
        """The store's mark of the contents as a hash; size and time stand in where it keeps none."""
        mark = self.stamp()
        return hashlib.sha256(repr((mark.size, mark.tag or mark.changed)).encode()).digest()


def _hub_mark(info: dict[str, Any]) -> Mark:
    lfs = info.get("lfs") or {}
    return Mark(int(info["size"]), "", str(lfs.get("sha256") or info.get("blob_id") or ""))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def is_object(url: str) -> bool:
    """Whether there is an object of this URL."""
    return _kind(url) == "File"


def _kind(url: str) -> str:
    with store_errors(url):
        return ask(url, lambda system, path: system.get_file_info(path).type.name)


def listed(url: str) -> tuple[str, list[StoredObject]]:
    """The root and the objects that a URL names: itself, those under it, or those that its pattern matches."""
    pattern = _parts(url)
    root = "/".join(pattern[: next((k for k, part in enumerate(pattern) if _magic(part)), len(pattern))])
    if len(root) == len(url.rstrip("/")):
        kind = _kind(url)
        if kind == "File":
            return url.rpartition("/")[0], [StoredObject(url)]
        if kind == "NotFound" and not url.endswith("/"):
            _check_bucket(url)
            raise UsageError("no such object or folder in the store", where=url, do="check bucket and key")
    found = _under(root)
    if root != url.rstrip("/"):
        found = [one for one in found if _matches(one.url, pattern)]
    return root, sorted(found)


def _check_bucket(url: str) -> None:
    """A store answers alike for a key and for a bucket that it does not have; listing tells."""
    from pyarrow.fs import FileSelector

    with store_errors(url):
        ask(url, lambda system, path: system.get_file_info(FileSelector(_bucket(url, path), recursive=False)))


def _bucket(url: str, path: str) -> str:
    """The part of a path that is the bucket; of the Hub, the repository."""
    depth = 1 if not url.startswith("hf:") else 3 if path.startswith(("datasets/", "spaces/")) else 2
    return "/".join(path.split("/")[:depth])


def _under(root: str) -> list[StoredObject]:
    from pyarrow.fs import FileSelector, FileType

    with store_errors(root):
        found = ask(
            root,
            lambda system, path: [
                (one.path.removeprefix(path), one.type)
                for one in system.get_file_info(FileSelector(path, recursive=True))
            ],
        )
        return [StoredObject(root + path) for path, kind in found if kind == FileType.File]


def _parts(url: str) -> list[str]:
    return url.rstrip("/").split("/")


def _magic(part: str) -> bool:
    return any(sign in part for sign in "*?[")


def _matches(url: str, pattern: list[str]) -> bool:
    """Whether a URL fits a pattern part by part; `**` stands for any number of parts."""
    parts = _parts(url)

    def fits(i: int, k: int) -> bool:
        if k == len(pattern):
            return i == len(parts)
        if pattern[k] == "**":
            return any(fits(j, k + 1) for j in range(i, len(parts) + 1))
        return i < len(parts) and fullmatch(translate(pattern[k]), parts[i]) is not None and fits(i + 1, k + 1)

    return fits(0, 0)


__all__ = ["HEADER", "Mark", "StoredObject", "is_object", "is_url", "listed", "store_errors"]
