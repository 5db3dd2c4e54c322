"""SIGINT and SIGTERM while a command runs: the state is saved first, then one line, then the exit code of the signal.

The first signal asks; the pass ends at its next batch boundary, where its state is saved. Work that has no boundary
soon (opening a model, drawing) is interrupted at once, as by any signal. A second signal does not wait.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stopped(BaseException):
    """A command that was asked to stop; `exit_code` is 130 for SIGINT, 143 for SIGTERM."""

    def __init__(self, number: int, words: str) -> None:
        self.exit_code = 128 + number
        super().__init__(words)


class _Asked:
    """Whether a signal came, and which."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.patient = False  # in a pass, which stops by itself at a boundary

    def __call__(self) -> bool:
        return self.number is not None

    def error(self) -> Stopped:
        assert self.number is not None
        return Stopped(self.number, "saved; the same command continues")


asked_to_stop = _Asked()


@contextmanager
def stoppable(words: str = "stopped; nothing to save yet") -> Iterator[None]:
    """Within this context signals stop the work in good order. Only the main thread can have it; others just run.

    `words` are said where the work has no state to save.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        again = asked_to_stop.number is not None
        asked_to_stop.number = number
        if again or not asked_to_stop.patient:
            raise Stopped(number, words)

    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, handle)
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
        asked_to_stop.number, asked_to_stop.patient = None, False


@contextmanager
def patiently() -> Iterator[None]:
    """Within this context the first signal waits for the next boundary."""
    former, asked_to_stop.patient = asked_to_stop.patient, True
    try:
        yield
    finally:
        asked_to_stop.patient = former
