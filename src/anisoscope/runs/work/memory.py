"""Memory that the tensors of earlier batches left behind.

glibc keeps what was freed for the next allocation, in pieces that the next batch does not always fit into: over some
twenty batches a process grew by a quarter to a third, with nothing in use. What lies there unused goes back to the
system after every batch that took more memory than those before it; batches that do not grow pay nothing.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from functools import cache


class Tidy:
    """Call it after every batch."""

    def __init__(self) -> None:
        self._peak = 0

    def __call__(self) -> None:
        if (peak := _peak()) > self._peak:
            self._peak = peak
            _trim()(0)


def _peak() -> int:
    """The most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@cache
def _trim() -> Callable[[int], object]:
    """glibc's `malloc_trim`; elsewhere nothing."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return lambda _: None
