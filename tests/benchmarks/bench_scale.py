"""`vectors` at n = 10⁴ … 10⁷, whose cost per vector and memory should not change; and two processes against one.

Every process has one thread, so that two processes have twice what one has. Seconds are those of whole commands, which
include starting Python, torch and, for Ray, its servers.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from contest import arguments, compared, give, in_processes, peak_megabytes, seconds_of, stated

BLOCK = 10_000


def write(path: Path, n: int, d: int) -> None:
    """n vectors of d numbers: 50 blocks that are drawn, again and again, each time moved a little."""
    blocks = np.random.default_rng(0).standard_normal((50, min(n, BLOCK), d), dtype=np.float32) + np.float32(0.3)
    out = np.lib.format.open_memmap(path, "w+", np.float32, (n, d))
    for number, start in enumerate(range(0, n, BLOCK)):
        out[start : start + BLOCK] = blocks[number % 50] + np.float32(number * 1e-4)
    out.flush()


def one(path: str) -> None:
    """In a process of its own: the sums and metrics of a file."""
    import torch

    import anisoscope

    torch.set_num_threads(1)
    started = time.perf_counter()
    anisoscope.vectors(path, neighbours=False)
    print(json.dumps({"seconds": time.perf_counter() - started, "peak": peak_megabytes()}))


def main() -> None:
    chosen = arguments(__doc__, file="")
    if chosen.file:
        one(chosen.file)
        return
    sizes = (10**4, 10**5) if chosen.small else (10**4, 10**5, 10**6, 10**7)
    d, rows, series = 64, [], []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        for n in sizes:
            write(path, n, d)
            found = in_processes({"one": [__file__, f"--file={path}"]}, turns=1)["one"]
            series.append({"n": n, "d": d, "seconds": found["seconds"][0], "peak": found["peak"][0]})
        large, before = series[-1], series[-2]
        what = f"`vectors`, n = {large['n']:,}, d = {d}, one thread"
        per = [[1e9 * one["seconds"] / one["n"]] for one in (large, before)]
        rows.append(compared(f"{what}: time per vector", per[0], f"n = {before['n']:,}", per[1], unit="ns", aim=1.1))
        peaks = [[large["peak"]], [before["peak"]]]
        rows.append(compared(f"{what}: peak memory", peaks[0], f"n = {before['n']:,}", peaks[1], unit="MB", aim=1.05))
        n, d = (20_000, 32) if chosen.small else (1_500_000, 256)
        write(path, n, d)
        rows += two_processes(path, f"{n:,} × {d}", turns=1 if chosen.small else 2)
    give(rows, series=series)


def two_processes(path: Path, size: str, turns: int) -> list[dict[str, object]]:
    study = ["vectors", str(path), "--no-neighbours", "--threads", "1", "--existing", "replace", "--out"]
    python = [sys.executable, "-m"]
    runs = {
        "one": [*python, "anisoscope", *study],
        "torchrun": [*python, "torch.distributed.run", "--nproc-per-node", "2", "-m", "anisoscope", *study],
        "ray": [*python, "anisoscope", *study],
    }
    more = {"ray": ["--engine", "ray", "--workers", "2"]}
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, command in runs.items():
            taken[name].append(seconds_of([*command, str(path.parent / name), *more.get(name, [])])[0])
    rows = []
    for name, label in (("torchrun", "torchrun"), ("ray", "Ray")):
        gain = [alone / shared for alone, shared in zip(taken["one"], taken[name], strict=True)]
        rows.append(
            stated(
                f"`vectors` {size}: {label}, 2 processes of 1 thread, times faster than 1 (aim: at least 1.8)",
                gain,
                unit="×",
            )
        )
    return rows


if __name__ == "__main__":
    main()
