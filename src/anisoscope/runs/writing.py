"""One guarded way to write anything: under another name, then renamed, and never over what is not ours.

`atomic` is for the files of a run, which has its own folder and its own rules (`store.py`). Whatever a person names on
the command line (a CSV, a page, an exported file) goes through `guarded`: it refuses to replace an input, a file of a
run, or a file of another kind, unless the person says so.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import re
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from anisoscope.errors import StoreError, UsageError

RUN_FILES = ("measurements.parquet", "arrays.safetensors", "moments.safetensors", "manifest.json", "run.toml")
_MASK = os.umask(0)
os.umask(_MASK)
_MODE = 0o666 & ~_MASK  # one mode for all files, whichever library wrote them
_HEAD = 4096
_HOST = socket.gethostname().replace("/", "-")[:64]
# how what a person may ask for begins
_OURS = {"csv": b"run,model,", "page": b"<!doctype html", "markdown": b"<!-- anisoscope"}


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Write under another name, then rename; nothing is left behind if that fails.

    What a killed process left of the same file goes with it.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}@{_HOST}.partial")
    try:
        yield partial
        partial.chmod(_MODE)
        os.replace(partial, path)
        _sweep(path)
    except Exception as error:
        from safetensors import SafetensorError

        if isinstance(error, SafetensorError):  # what safetensors makes of a full disk is not an OSError
            raise OSError(str(error)) from error
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """As `atomic`, for a folder that is absent or empty."""
    check_local(folder)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}@{_HOST}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        os.replace(partial, folder)
        _sweep(folder)
    except OSError as error:
        do = "free some space or choose another --out"
        raise StoreError("the folder cannot be written", where=folder, got=error, do=do) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sweep(path: Path) -> None:
    """Remove what dead processes of this machine were writing under another name."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*@{glob.escape(_HOST)}.partial"):
        pid = left.name.removesuffix(f"@{_HOST}.partial").rpartition(".")[2]
        if pid.isdecimal() and not _alive(int(pid)):
            shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def left_behind(path: Path) -> bool:
    """Whether this is what a kill may leave of a lock or of a file that was being written."""
    return path.name == ".lock" or (path.name.startswith(".") and path.name.endswith(".partial"))


def check_local(path: Path) -> None:
    """Refuse a URL: it would become a folder called `s3:` here, and nothing would reach the store."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)) and not Path(path.parts[0]).exists():
        raise UsageError(
            "results are written on this machine",
            where=path,
            got="a URL",
            do="name a place here, and copy it afterwards",
        )


def is_free(folder: Path) -> bool:
    """Whether a folder is absent or empty, but for what a kill left behind; a file or a URL in its place is refused."""
    check_local(folder)
    if folder.exists() and not folder.is_dir():
        raise UsageError("a run needs a folder, and this is a file", where=folder, do="choose another --out")
    return not folder.exists() or all(map(left_behind, folder.iterdir()))


@contextmanager
def guarded(
    path: Path | str, *, kind: str = "", inputs: Iterable[Path | str] = (), force: bool = False
) -> Iterator[Path]:
    """Write a file that a person named; yields the name to write under."""
    path = Path(path)
    check_target(path, kind=kind, inputs=inputs, force=force)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as partial:
            yield partial
    except OSError as error:
        raise StoreError("the file cannot be written", where=path, got=error, do="choose another name") from error


def check_target(
    path: Path,
    *,
    kind: str = "",
    inputs: Iterable[Path | str] = (),
    out: Path | None = None,
    force: bool = False,
) -> None:
    """Refuse what must not be overwritten: an input, a file of a run, a folder, a stream, a file of another kind.

    `kind` is what will be written: a former `csv`, `page` or `markdown` is replaced, no other file. `out` is a run that
    is to be made.
    """
    check_local(path)
    if path.is_dir():
        raise UsageError("this is a folder, not a file", where=path, do="name a file in it")
    if str(path) == "-" or (path.exists() and (not path.is_file() or _is_stream(path))):
        raise UsageError("this is a stream, not a file", where=path, do="name a file; --json prints to standard output")
    of_a_run = (path.parent / "run.toml").exists() or (out is not None and path.parent.resolve() == out.resolve())
    if (path.name in RUN_FILES and of_a_run) or left_behind(path):
        raise UsageError("this would overwrite a file of a run", where=path, do="choose another name")
    if not path.exists():
        return
    if any(_same(path, Path(one)) for one in inputs):
        raise UsageError("this would overwrite an input", where=path, do="choose another name")
    if force or _is_ours(path, kind):
        return
    do = "choose another name" + ("" if kind == "safetensors" else ", or --force to overwrite it")
    raise UsageError("this would overwrite a file of another kind", where=path, do=do)


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other) or (other.is_dir() and other.resolve() in one.resolve().parents)
    except OSError:
        return False


def _is_stream(path: Path) -> bool:
    """Whether this is a standard stream by another name: a file renamed to /dev/stdout would take its place."""
    for number in range(3):
        with suppress(OSError):  # it is closed
            if os.path.samestat(path.stat(), os.fstat(number)):
                return True
    return False


def _is_ours(path: Path, kind: str) -> bool:
    """Whether the file that is there begins as what would be written, or is empty."""
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
    if kind == "safetensors":  # weights are no export of ours: their metadata does not say so
        return not head or (head[8:25] == b'{"__metadata__":{' and b'"anisoscope":' in head.partition(b"}")[0])
    return not head or (kind in _OURS and head.lower().replace(b'"', b"").startswith(_OURS[kind]))


def check_ordinary(path: Path) -> None:
    """An error for a pipe, which would be waited for, and for a device, which would be read without end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "a pipe, a socket or a device", str(path))


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
