"""How the benchmarks time: contenders in turn (A B A B), so that whatever else the machine does falls on all of them.

A row of the result is one comparison: ours against another way, with the median of the ratios of the rounds and their
spread. Ratios hold on a noisy machine where seconds do not. Peak memory is that of a process of its own, since it never
falls. Every `bench_*.py` is a program that prints its rows as JSON: `python tests/benchmarks/bench_core.py [--small]`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
Row = dict[str, Any]


def compared(
    what: str, ours: Sequence[float], against: str, other: Sequence[float], *, aim: float | None = None, unit: str = "s"
) -> Row:
    """Ours against another way, round by round."""
    ratios = [mine / theirs for mine, theirs in zip(ours, other, strict=True)]
    row = {"what": what, "against": against, "ours": median(ours), "other": median(other), "unit": unit}
    return row | {"ratio": median(ratios), "low": min(ratios), "high": max(ratios), "aim": aim}


def stated(what: str, values: Sequence[float], *, unit: str = "s", aim: float | None = None) -> Row:
    """A number that has nothing beside it; the aim, where there is one, is in the same unit."""
    return {"what": what, "ours": median(values), "unit": unit, "low": min(values), "high": max(values), "aim": aim}


def in_turn(
    contenders: Mapping[str, Callable[[], object]],
    *,
    turns: int,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """The seconds of each contender in `turns` rounds in which each runs once, after one that does not count.

    What is done `before` each does not count either.
    """
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + 1):
        for name, run in contenders.items():
            before()
            started = clock()
            run()
            if turn:
                taken[name].append(clock() - started)
    return taken


def in_processes(contenders: Mapping[str, list[str]], *, turns: int) -> dict[str, dict[str, list[float]]]:
    """The same with a process for each run: Python's arguments, of a program that prints one JSON object of numbers."""
    taken: dict[str, dict[str, list[float]]] = {name: {} for name in contenders}
    for _ in range(turns):
        for name, arguments in contenders.items():
            done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{name} failed:\n{done.stderr}")
            for key, value in json.loads(done.stdout.splitlines()[-1]).items():
                taken[name].setdefault(key, []).append(value)
    return taken


def seconds_of(command: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of a command that must succeed."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - started, used


def peak_megabytes() -> float:
    """The most memory that this program has held. (On Linux `ru_maxrss` also counts the parent, up to the exec.)"""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)
    return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024


def arguments(doc: str | None, **more: Any) -> argparse.Namespace:
    """The options of a benchmark: `--small` for a quick try, and its own."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a quick try whose numbers say nothing")
    parser.add_argument("--threads", type=int, default=2)
    for name, value in more.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    return parser.parse_args()


def give(rows: list[Row], **more: Any) -> None:
    """Print what was found, the last thing that a benchmark does."""
    print(json.dumps({"rows": rows, **more}))
