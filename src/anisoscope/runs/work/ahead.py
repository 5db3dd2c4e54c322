"""Computations that do not depend on one another, several at a time, their results in order.

Linear algebra on matrices of a few hundred rows gains little from a second thread and burns it waiting; two sites at
a time, each on one thread, use both. Threads suffice: numpy, scipy and torch let go of the interpreter's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from threadpoolctl import threadpool_limits

Result = TypeVar("Result")
_ROOM = 2**31  # bytes that all threads together may take for matrices
_MATRICES = 8  # of d × d in float64, which the metrics of one cloud need at a time


def side_by_side(d: int, threads: int) -> int:
    """How many clouds of d dimensions are measured at a time.

    >>> side_by_side(768, 2), side_by_side(4096, 64), side_by_side(8192, 64)
    (2, 2, 1)
    """
    return max(1, min(threads, _ROOM // (_MATRICES * 8 * d * d)))


def in_order(calls: Iterable[Callable[[], Result]], workers: int, threads: int) -> Iterator[Result]:
    """What each call gives, in their order; at most `workers` run at a time, and share the threads.

    >>> list(in_order([lambda: 1, lambda: 2, lambda: 3], workers=2, threads=2))
    [1, 2, 3]
    """
    if workers == 1:
        with threadpool_limits(threads):
            for call in calls:
                yield call()
        return
    waiting: deque[Future[Result]] = deque()
    with threadpool_limits(max(1, threads // workers)), ThreadPoolExecutor(workers) as pool:
        for call in calls:
            waiting.append(pool.submit(call))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
