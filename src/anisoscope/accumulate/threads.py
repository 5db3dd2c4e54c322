"""Work on slices of rows in as many threads as torch uses, each slice on one thread.

For what torch and numpy do in one thread (selecting, counting), and for many small steps on blocks that fit into the
cache, where a team of threads at every step costs more than it gives. Both let go of the interpreter's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch
from threadpoolctl import threadpool_limits

Result = TypeVar("Result")


def by_slices(work: Callable[[slice], Result], n: int, *, multiple: int = 1) -> list[Result]:
    """What `work` makes of the slices of range(n), one per thread, which begin at a multiple.

    >>> [part.stop - part.start for part in by_slices(lambda part: part, 5)] in ([5], [3, 2], [2, 2, 1])
    True
    """
    step = max(1, -(-n // torch.get_num_threads()))
    step = -(-step // multiple) * multiple
    slices = [slice(start, min(start + step, n)) for start in range(0, max(n, 1), step)]
    if len(slices) == 1:
        return [work(slices[0])]
    return list(_pool(os.getpid()).map(work, slices))


@cache
def _pool(process: int) -> ThreadPoolExecutor:  # threads do not outlive a fork: each process has its own
    return ThreadPoolExecutor(os.cpu_count() or 1, f"slices-{process}", _alone)


def _alone() -> None:
    """Let torch use one thread where this thread calls it; elsewhere nothing changes."""
    torch.get_num_threads()  # the number of the process, which is set at the first call
    threadpool_limits(1, user_api="openmp")
