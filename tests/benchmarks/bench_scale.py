"""`vectors` at n = 10⁴ … 10⁷, whose cost per vector and memory should not change; and two processes against one.

Every process has one thread, so that two processes have twice what one has. Three times are told: that of the whole
command, with starting Python and, for Ray, its servers; that of the study, from its manifest, which is without
starting Python; and that of the pass alone, with both processes at work on their halves at once.
"""

from __future__ import annotations

import json
import subprocess
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
    import anisoscope
    from anisoscope.accumulate.threads import use_threads

    started = time.perf_counter()
    with use_threads(1):
        anisoscope.vectors(path, neighbours=False)
    print(json.dumps({"seconds": time.perf_counter() - started, "peak": peak_megabytes()}))


def pass_alone(path: str, share: str) -> None:
    """In a process of its own: nothing but the sums of a share of a file, after a first block that does not count."""
    from anisoscope.accumulate.moments import Moments
    from anisoscope.accumulate.threads import use_threads
    from anisoscope.inputs.vectors.source import open_vectors
    from anisoscope.runs.work.blocks import blocks_of
    from anisoscope.runs.work.units import parse_shard

    source = open_vectors(path)
    with use_threads(1):
        for moments, first in ((Moments(source.dim), True), (Moments(source.dim), False)):
            started = time.perf_counter()
            for _, rows in blocks_of(source, parse_shard(share)):
                moments.update(rows.x, start=rows.start)
                if first:
                    break
    print(json.dumps({"seconds": time.perf_counter() - started}))


def main() -> None:
    chosen = arguments(__doc__, file="", share="")
    if chosen.file and chosen.share:
        pass_alone(chosen.file, chosen.share)
        return
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
        n, d = (20_000, 32) if chosen.small else (4_000_000, 256)
        write(path, n, d)
        rows += two_processes(path, f"{n:,} × {d}", turns=1 if chosen.small else 2)
    give(rows, series=series)


def two_processes(path: Path, size: str, turns: int) -> list[dict[str, object]]:
    """How many times faster two processes are than one."""
    study = ["vectors", str(path), "--no-neighbours", "--threads", "1", "--existing", "replace", "--out"]
    python = [sys.executable, "-m"]
    runs = {
        "one": [*python, "anisoscope", *study],
        "torchrun": [*python, "torch.distributed.run", "--nproc-per-node", "2", "-m", "anisoscope", *study],
        "ray": [*python, "anisoscope", *study],
    }
    more = {"ray": ["--engine", "ray", "--workers", "2"]}
    whole: dict[str, list[float]] = {name: [] for name in runs}
    within: dict[str, list[float]] = {name: [] for name in runs}
    passes: dict[str, list[float]] = {"one": [], "two": []}
    for _ in range(turns):
        for name, command in runs.items():
            out = path.parent / name
            whole[name].append(seconds_of([*command, str(out), *more.get(name, [])])[0])
            within[name].append(json.loads((out / "manifest.json").read_text())["seconds"])
        passes["one"].append(at_once(path, "0/1"))
        passes["two"].append(at_once(path, "0/2", "1/2"))
    gains = {
        f"{label}, {what}": [alone / shared for alone, shared in zip(taken["one"], taken[name], strict=True)]
        for name, label in (("torchrun", "torchrun"), ("ray", "Ray"))
        for what, taken in (("whole command", whole), ("from opening to writing", within))
    }
    gains["the pass alone"] = [alone / shared for alone, shared in zip(passes["one"], passes["two"], strict=True)]
    aim = "2 processes of 1 thread, times faster than 1 (aim: at least 1.8)"
    return [stated(f"`vectors` {size}: {what}: {aim}", gain, unit="×") for what, gain in gains.items()]


def at_once(path: Path, *shares: str) -> float:
    """The seconds of the slowest of several processes that sum their shares at the same time."""
    commands = [[sys.executable, __file__, f"--file={path}", f"--share={share}"] for share in shares]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    return max(json.loads(one.communicate()[0])["seconds"] for one in running)


if __name__ == "__main__":
    main()
