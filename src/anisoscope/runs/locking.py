"""One process at a time in a run folder: a lock that the system releases when its owner dies.

The file `.lock` names the owner for whoever comes second. What counts is not the file but the lock on it, so that the
file of a killed process blocks nobody.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from anisoscope.errors import StoreError


@contextmanager
def locked(folder: Path | None, *, active: bool = True) -> Iterator[Callable[[], None]]:
    """Yields a function that takes the folder for this process alone; it is free again when the process ends."""
    if folder is None or not active:
        yield lambda: None
        return
    held: list[Any] = []
    path = folder / ".lock"

    def take() -> None:
        """Lock the folder, once."""
        if held:
            return None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stream = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise _cannot(folder, error) from error
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not path.exists() or not os.path.samestat(os.fstat(stream.fileno()), path.stat()):
                stream.close()  # its owner just ended and took the file away: lock the new one
                return take()
        except OSError:
            stream.seek(0)
            owner = stream.read(200).strip() or "another process"
            stream.close()
            raise StoreError(
                "another process is at work in this folder", where=folder, got=owner, do="wait for it, or end it"
            ) from None
        held.append(stream)
        try:
            os.truncate(stream.fileno(), 0)
            os.write(stream.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        except OSError as error:
            raise _cannot(folder, error) from error
        return None

    try:
        yield take
    finally:
        for stream in held:
            path.unlink(missing_ok=True)
            stream.close()
            with suppress(OSError):  # it holds something, as it should
                folder.rmdir()


def _cannot(folder: Path, error: OSError) -> StoreError:
    return StoreError("the run folder cannot be made", where=folder, got=error, do="choose another --out")
