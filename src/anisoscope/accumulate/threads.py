"""Work on slices of rows in as many threads as the machine may use, each slice on one thread.

For what numpy and torch do in one thread (selecting, counting), and for many small steps on blocks that fit into the
cache, where a team of threads at every step costs more than it gives. Both let go of the interpreter's lock. A team
that has finished keeps its cores for milliseconds, waiting for more: `shared_out` has none at work in between.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, lru_cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController, threadpool_limits

Result = TypeVar("Result")


class _Shared(threading.local):
    threads = 0  # among which `shared_out` shares out what this thread does; 0 outside of it, 1 in threads of the pool


_SHARED = _Shared()
_CHOSEN: list[int] = []  # what `use_threads` said, the last one counts


def threads() -> int:
    """How many threads work at a time: what was chosen, what torch says where it is at work, what the machine has."""
    if _SHARED.threads or _CHOSEN:
        return _SHARED.threads or _CHOSEN[-1]
    if "torch" in sys.modules:
        return sys.modules["torch"].get_num_threads()
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked):
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def use_threads(number: int) -> Iterator[None]:
    """Within this context work is shared among so many threads; also those of libraries that are loaded later."""
    before, said = threads(), os.environ.get("OMP_NUM_THREADS")
    _CHOSEN.append(number)
    os.environ["OMP_NUM_THREADS"] = str(number)  # which torch and numpy's linear algebra read when they are loaded
    limit = _at_our_disposal().limit(limits=number)
    try:
        _tell_torch(number)
        yield
    finally:
        _CHOSEN.pop()
        _lift(limit)
        del os.environ["OMP_NUM_THREADS"]
        os.environ |= {} if said is None else {"OMP_NUM_THREADS": said}
        _tell_torch(before)


def _tell_torch(number: int) -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(number)


def by_slices(work: Callable[[slice], Result], n: int, *, multiple: int = 1, among: int | None = None) -> list[Result]:
    """What `work` makes of the slices of range(n), which begin at a multiple: one per thread, or `among` so many.

    >>> [part.stop - part.start for part in by_slices(lambda part: part, 5, among=2)]
    [3, 2]
    """
    slices = _slices(n, multiple, threads() if among is None else among)
    if len(slices) == 1:
        return [work(slices[0])]
    return list(_pool(os.getpid(), "torch" in sys.modules).map(_in_this_mode(work), slices))


def meanwhile(work: Callable[[slice], Result], n: int, *, multiple: int, among: int) -> Callable[[], list[Result]]:
    """The same, begun while the caller goes on; what comes back waits for it."""
    pool, slices = _pool(os.getpid(), "torch" in sys.modules), _slices(n, multiple, among)
    begun = [pool.submit(work, some) for some in slices]
    return lambda: [one.result() for one in begun]


def _slices(n: int, multiple: int, among: int) -> list[slice]:
    step = max(1, -(-n // (among * multiple))) * multiple
    return [slice(start, min(start + step, n)) for start in range(0, max(n, 1), step)]


def _in_this_mode(work: Callable[[slice], Result]) -> Callable[[slice], Result]:
    """The same work in torch's inference mode, if that is on here: each thread has a mode of its own."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_inference_mode_enabled():
        return work

    def in_mode(some: slice) -> Result:
        with torch.inference_mode():
            return work(some)

    return in_mode


@contextmanager
def shared_out() -> Iterator[None]:
    """Within this context the threads of torch work on slices alone; every other step is done by the caller."""
    number = threads()
    if number == 1 or _SHARED.threads:
        yield
        return
    _SHARED.threads = number
    try:
        with _controller().limit(limits=1, user_api="openmp"):
            yield
    finally:
        _SHARED.threads = 0


class _OneThread:
    """Keeps numpy's linear algebra on one thread while anybody is within, in whatever thread of the interpreter."""

    def __init__(self) -> None:
        self._lock, self._within, self._limit = threading.Lock(), 0, None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._within:
                self._limit = _at_our_disposal().limit(limits=1)
            self._within += 1
        try:
            yield
        finally:
            with self._lock:
                self._within -= 1
                if not self._within and self._limit is not None:
                    _lift(self._limit)


small_matrices = _OneThread()
"""Within this context numpy's linear algebra runs on one thread: on matrices of a few hundred rows a team gains
nothing, and where the cores are busy its waiting costs many times the work.
"""


NARROW = 1024  # dimensions up to which a team gains less than its waiting costs


def suited_to(d: int) -> AbstractContextManager[None]:
    """Within this context numpy's linear algebra on d dimensions uses one thread, or a team where they are many.

    The eigenvalues of a matrix of 768 rows take as long in one thread as in two; beside busy processes two took from 4
    to 100 times as long.
    """
    return small_matrices() if d <= NARROW else nullcontext()


def _controller() -> ThreadpoolController:
    """What controls the teams of the libraries that are loaded by now."""
    return _teams(os.getpid(), len(sys.modules))


def _lift(limit: Any) -> None:
    """Whichever thread set it: here that is for the last one that leaves."""
    _at_our_disposal()
    limit.restore_original_limits()
    _at_our_disposal()


def _at_our_disposal() -> ThreadpoolController:
    """That of linear algebra, ready to obey any thread: it obeys the first that sets a limit, until that one lets go.

    OpenMP is left out: each thread has a number of its own there, and would be given that of another.
    """
    found = _controller().select(user_api="blas")
    for library in found.lib_controllers:
        if hasattr(library, "clear_controlling_thread"):  # from threadpoolctl 3.8 on
            library.clear_controlling_thread(force=True)
    return found


@lru_cache(maxsize=1)
def _teams(process: int, modules: int) -> ThreadpoolController:
    return ThreadpoolController()


@cache
def _pool(process: int, with_torch: bool) -> ThreadPoolExecutor:  # threads do not outlive a fork
    return ThreadPoolExecutor(os.cpu_count() or 1, f"slices-{process}", _alone)


def _alone() -> None:
    """Let torch use one thread where this thread calls it; elsewhere nothing changes. Nor does it share out anything:
    threads of the pool that wait for others of the pool wait for ever.
    """
    _SHARED.threads = 1
    if "torch" in sys.modules:
        sys.modules["torch"].get_num_threads()  # the number of the process, which is set at the first call
        threadpool_limits(1, user_api="openmp")
