"""Work on slices in as many threads as torch uses, for what runs in one: numpy's selection, torch's counting.

Both let go of the interpreter's lock, so that slices are worked on at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

Result = TypeVar("Result")


def by_slices(work: Callable[[slice], Result], n: int) -> list[Result]:
    """What `work` makes of the slices of range(n), one per thread.

    >>> [part.stop - part.start for part in by_slices(lambda part: part, 5)] in ([5], [3, 2], [2, 2, 1])
    True
    """
    step = max(1, -(-n // torch.get_num_threads()))
    slices = [slice(start, min(start + step, n)) for start in range(0, max(n, 1), step)]
    if len(slices) == 1:
        return [work(slices[0])]
    return list(_pool(os.getpid()).map(work, slices))


@cache
def _pool(process: int) -> ThreadPoolExecutor:  # threads do not outlive a fork: each process has its own
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix=f"slices-{process}")
