"""Progress with the time left, on standard error only.

On a terminal a bar appears once the work has taken two seconds; elsewhere a plain line is logged now and then, so that
a job's log file stays readable. Standard output is never touched: it belongs to results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from anisoscope.errors import printable

_PATIENCE = 2.0  # seconds before anything is shown
_LOG_EVERY = 15.0


class Progress(Protocol):
    def advance(self, amount: float = 1.0) -> None: ...

    def skip(self, amount: float) -> None:
        """Work that was done in an earlier session: part of the whole, but not of the speed."""
        ...

    def describe(self, what: str) -> None: ...


@contextmanager
def track(what: str, *, total: float | None = None, unit: str = "", stream: TextIO | None = None) -> Iterator[Progress]:
    """Follow a piece of work: `with track("measuring", total=n, unit="vectors") as bar: bar.advance(k)`."""
    where = stream or sys.stderr
    follower = _Bar(what, total, unit) if where.isatty() else _Lines(what, total, unit, where)
    try:
        yield follower
    finally:
        follower.close()


class _Lines:
    """One line every fifteen seconds: `measuring: 40 % (8192 of 20480 vectors), 12 s elapsed, 18 s left`."""

    def __init__(self, what: str, total: float | None, unit: str, stream: TextIO) -> None:
        self.what, self.total, self.unit, self.stream = what, total, unit, stream
        self.done, self.skipped, self.started = 0.0, 0.0, time.monotonic()
        self.spoke = self.started

    def advance(self, amount: float = 1.0) -> None:
        self.done += amount
        now = time.monotonic()
        if now - self.spoke >= _LOG_EVERY:
            self.spoke = now
            print(printable(self._line(now - self.started)), file=self.stream, flush=True)

    def skip(self, amount: float) -> None:
        self.done, self.skipped = self.done + amount, self.skipped + amount

    def describe(self, what: str) -> None:
        self.what = what

    def _line(self, gone: float) -> str:
        if not self.total:
            return f"{self.what}: {self.done:.0f} {self.unit}, {gone:.0f} s elapsed"
        share, mine = min(self.done / self.total, 1.0), self.done - self.skipped
        left = f", {gone * max(self.total - self.done, 0) / mine:.0f} s left" if mine > 0 else ""
        return f"{self.what}: {share:.0%} ({self.done:.0f} of {self.total:.0f} {self.unit}), {gone:.0f} s elapsed{left}"

    def close(self) -> None:
        gone = time.monotonic() - self.started
        if self.spoke > self.started:
            unit = self.unit.removesuffix("s") if self.done == 1 else self.unit
            line = printable(f"{self.what}: {self.done:.0f} {unit} in {gone:.0f} s")
            print(line, file=self.stream, flush=True)


class _Bar:
    """A rich bar on standard error that appears after two seconds and leaves nothing behind."""

    def __init__(self, what: str, total: float | None, unit: str) -> None:
        self.what, self.total, self.unit = what, total, unit
        self.done, self.started = 0.0, time.monotonic()
        self.bar = self.task = None

    def advance(self, amount: float = 1.0) -> None:
        self.done += amount
        if self.bar is None and time.monotonic() - self.started >= _PATIENCE:
            self._show()
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=self.done)

    def skip(self, amount: float) -> None:
        self.done += amount  # rich measures speed from the first advance it sees

    def describe(self, what: str) -> None:
        self.what = what
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, description=printable(what))

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        what, unit = TextColumn("{task.description}", markup=False), TextColumn(self.unit)
        known = (BarColumn(), MofNCompleteColumn(), unit, TimeRemainingColumn(), TextColumn("left"))
        unknown = (TextColumn("{task.completed:.0f}"), unit, TimeElapsedColumn(), TextColumn("elapsed"))
        columns = (what, *(known if self.total else unknown))
        self.bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self.bar.start()
        self.task = self.bar.add_task(printable(self.what), total=self.total, completed=int(self.done))

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
