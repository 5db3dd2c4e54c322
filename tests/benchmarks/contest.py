"""How the benchmarks time and print: contenders in turn (A B A B), the fastest of each kept, ratios beside their aims.

On a shared machine a mean measures the neighbours; the minimum of several turns measures the program. Peak memory is
that of a process of its own, since it never falls.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Aim:
    """A ratio and what it may be at most; `most` missing where it is only stated."""

    what: str
    ratio: float
    most: float | None = None

    def line(self) -> str:
        if self.most is None:
            return f"  {self.what}: {self.ratio:.2f}×"
        met = "met" if self.ratio <= self.most else "MISSED"
        return f"  {self.what}: {self.ratio:.2f}× (aim: at most {self.most:g}×) {met}"


def in_turn(contenders: Mapping[str, Callable[[], object]], *, turns: int) -> dict[str, float]:
    """The least seconds of each contender over `turns` rounds in which each runs once."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(turns):
        for name, run in contenders.items():
            started = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - started)
    return best


def in_processes(contenders: Mapping[str, list[str]], *, turns: int) -> dict[str, dict[str, float]]:
    """The same with a process for each run: its arguments are a script's, which prints one JSON object of numbers."""
    best: dict[str, dict[str, float]] = {name: {} for name in contenders}
    for _ in range(turns):
        for name, arguments in contenders.items():
            done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{name} failed:\n{done.stderr}")
            found: dict[str, float] = json.loads(done.stdout)
            for key, value in found.items():
                best[name][key] = min(best[name].get(key, float("inf")), value)
    return best


def peak_megabytes() -> float:
    """The most memory that this program has held. (On Linux `ru_maxrss` also counts the parent, up to the exec.)"""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)
    return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024


def show(title: str, rows: Mapping[str, Mapping[str, float]], aims: list[Aim]) -> None:
    """A table of the contenders, then the aims."""
    columns = list(dict.fromkeys(key for values in rows.values() for key in values))
    width = max(len(name) for name in rows) + 2
    print(f"\n{title}")
    print(" " * width + "".join(f"{column:>14}" for column in columns))
    for name, values in rows.items():
        cells = (f"{values[key]:>14.3f}" if key in values else f"{'':>14}" for key in columns)
        print(f"{name:<{width}}" + "".join(cells))
    for aim in aims:
        print(aim.line())
