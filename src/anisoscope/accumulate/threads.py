"""Work on slices of rows in as many threads as torch uses, each slice on one thread.

For what torch and numpy do in one thread (selecting, counting), and for many small steps on blocks that fit into the
cache, where a team of threads at every step costs more than it gives. Both let go of the interpreter's lock. A team
that has finished keeps its cores for milliseconds, waiting for more: `shared_out` has none at work in between.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController, threadpool_limits

Result = TypeVar("Result")
CPU = torch.device("cpu")


class _Shared(threading.local):
    threads = 0  # among which `shared_out` shares out what this thread does; 0 outside of it


_SHARED = _Shared()


def by_slices(
    work: Callable[[slice], Result], n: int, *, multiple: int = 1, device: torch.device = CPU
) -> list[Result]:
    """What `work` makes of the slices of range(n), one per thread, which begin at a multiple; elsewhere than on the CPU
    there is one slice.

    >>> [part.stop - part.start for part in by_slices(lambda part: part, 5)] in ([5], [3, 2], [2, 2, 1])
    True
    """
    step = max(1, -(-n // (_SHARED.threads or torch.get_num_threads())))
    step = -(-step // multiple) * multiple
    slices = [slice(start, min(start + step, n)) for start in range(0, max(n, 1), step)]
    if len(slices) == 1 or device.type != "cpu":
        return [work(slice(0, n))]
    mode = torch.is_inference_mode_enabled()  # each thread has a mode of its own

    def in_mode(some: slice) -> Result:
        with torch.inference_mode(mode):
            return work(some)

    return list(_pool(os.getpid()).map(in_mode, slices))


@contextmanager
def shared_out() -> Iterator[None]:
    """Within this context the threads of torch work on slices alone; every other step is done by the caller."""
    threads = torch.get_num_threads()
    if threads == 1 or _SHARED.threads:
        yield
        return
    _SHARED.threads = threads
    try:
        with _teams(os.getpid()).limit(limits=1, user_api="openmp"):
            yield
    finally:
        _SHARED.threads = 0


@contextmanager
def small_matrices() -> Iterator[None]:
    """Within this context numpy's linear algebra runs on one thread: on matrices of a few hundred rows a team gains
    nothing, and where the cores are busy its waiting costs many times the work.
    """
    with _teams(os.getpid()).limit(limits=1, user_api="blas"):
        yield


@cache
def _teams(process: int) -> ThreadpoolController:
    return ThreadpoolController()


@cache
def _pool(process: int) -> ThreadPoolExecutor:  # threads do not outlive a fork: each process has its own
    return ThreadPoolExecutor(os.cpu_count() or 1, f"slices-{process}", _alone)


def _alone() -> None:
    """Let torch use one thread where this thread calls it; elsewhere nothing changes."""
    torch.get_num_threads()  # the number of the process, which is set at the first call
    threadpool_limits(1, user_api="openmp")
