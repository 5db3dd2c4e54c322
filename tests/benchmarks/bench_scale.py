"""`vectors` at n = 10⁴ … 10⁷, whose cost per vector and memory should not change, on one thread."""

from __future__ import annotations

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from contest import arguments, compared, give, in_processes, peak_megabytes

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
    import anisoscope
    from anisoscope.accumulate.threads import use_threads

    started = time.perf_counter()
    with use_threads(1):
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
    give(rows, series=series)


if __name__ == "__main__":
    main()
