"""python tests/benchmarks/bench_core.py [--rows 200000] [--dim 768] [--turns 3] [--threads 2]

One pass of all sums against the IsoScore package (time and peak memory) and against the usual 100,000 sampled pairs.
Each contender makes the same cloud in a process of its own, in which the making does not count: seconds are those of
the work, memory is what the work adds to the peak. The one pass reads the cloud in blocks, as from a file; its state is
constant in n.

Aims: the average cosine of all pairs at least twice as fast as that of the sampled pairs; the full pass with the
spectrum not slower than the IsoScore package alone.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
from contest import Aim, in_processes, peak_megabytes, show

PAIRS = 100_000
BLOCK = 8192


def make_cloud(rows: int, dim: int) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((rows, dim), dtype=np.float32)
    x += 0.5
    return x


def all_sums(x: np.ndarray, *, spectrum: bool) -> float:
    """Every sum that is kept, the reservoir included, and the numbers that follow from them."""
    import torch

    from anisoscope.accumulate.moments import Moments
    from anisoscope.geometry.cosine import mean_cosine
    from anisoscope.geometry.spectrum import covariance, eigenvalues, isoscore

    moments = Moments(x.shape[1], spectrum=spectrum)
    for start in range(0, len(x), BLOCK):
        moments.update(torch.from_numpy(x[start : start + BLOCK]))
    sums = moments.sums()
    average = mean_cosine(sums.sum_unit, sums.n)
    if sums.second is None:
        return average
    return isoscore(eigenvalues(covariance(sums.second, sums.sum_x, sums.n)))


def sampled_pairs(x: np.ndarray) -> float:
    import torch

    rows, generator = torch.from_numpy(x), torch.Generator().manual_seed(0)
    i, j = torch.randint(len(x), (2, PAIRS), generator=generator)
    return float(torch.cosine_similarity(rows[i], rows[j]).mean())


def isoscore_package(x: np.ndarray) -> float:
    from IsoScore.IsoScore import IsoScore

    return float(IsoScore(x))


CONTENDERS = {
    "all sums but the spectrum": lambda x: all_sums(x, spectrum=False),
    "all sums": lambda x: all_sums(x, spectrum=True),
    f"{PAIRS:,} sampled pairs": sampled_pairs,
    "IsoScore package": isoscore_package,
}


def contend(name: str, rows: int, dim: int, threads: int) -> None:
    """In a process of its own: warm up on a few rows, then work and print seconds, megabytes and the value."""
    import torch

    torch.set_num_threads(threads)
    run = CONTENDERS[name]
    x = make_cloud(rows, dim)
    run(x[: 2 * dim])
    before = peak_megabytes()
    started = time.perf_counter()
    value = run(x)
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "more MB": peak_megabytes() - before, "value": value}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--contender", choices=CONTENDERS)
    chosen = parser.parse_args()
    if chosen.contender:
        contend(chosen.contender, chosen.rows, chosen.dim, chosen.threads)
        return
    sizes = [f"--rows={chosen.rows}", f"--dim={chosen.dim}", f"--threads={chosen.threads}"]
    found = in_processes({name: [__file__, f"--contender={name}", *sizes] for name in CONTENDERS}, turns=chosen.turns)
    seconds = {name: values["seconds"] for name, values in found.items()}
    directions, pairs, package = "all sums but the spectrum", f"{PAIRS:,} sampled pairs", "IsoScore package"
    aims = [
        Aim("all sums / IsoScore package, time", seconds["all sums"] / seconds[package], 1.0),
        Aim("average cosine with interval / sampled pairs, time", seconds[directions] / seconds[pairs], 0.5),
    ]
    show(f"n = {chosen.rows:,}, d = {chosen.dim}, {chosen.threads} threads, best of {chosen.turns}", found, aims)


if __name__ == "__main__":
    main()
