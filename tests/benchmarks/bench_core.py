"""One pass of all sums against the IsoScore package and against the usual 100,000 sampled pairs, in processes of their
own in which making the cloud does not count; and one line of a megabyte cut into documents.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from contest import arguments, compared, give, in_processes, in_turn, peak_megabytes, stated

PAIRS = 100_000
BLOCK = 8192


def all_sums(x: np.ndarray, *, spectrum: bool) -> float | None:
    """Every sum that is kept, the reservoir included, and the numbers that follow from them."""
    from anisoscope.accumulate.moments import Moments
    from anisoscope.geometry.spectrum import covariance, eigenvalues, isoscore
    from anisoscope.inference.directions import direction_estimate
    from anisoscope.inference.metrics import lookup

    moments = Moments(x.shape[1], spectrum=spectrum)
    for start in range(0, len(x), BLOCK):
        moments.update(x[start : start + BLOCK])
    sums = moments.sums()
    if sums.second is None:
        return direction_estimate(lookup("mean_cosine"), sums).value
    return isoscore(eigenvalues(covariance(sums.second, sums.sum_x, sums.n)))


def sampled_pairs(x: np.ndarray) -> float:
    import torch

    rows = torch.from_numpy(x)
    i, j = torch.randint(len(x), (2, PAIRS), generator=torch.Generator().manual_seed(0))
    return float(torch.cosine_similarity(rows[i], rows[j]).mean())


def isoscore_package(x: np.ndarray) -> float:
    from IsoScore.IsoScore import IsoScore

    return float(IsoScore(x))


CONTENDERS = {
    "directions": lambda x: all_sums(x, spectrum=False),
    "sums": lambda x: all_sums(x, spectrum=True),
    "pairs": sampled_pairs,
    "package": isoscore_package,
}


def contend(name: str, rows: int, dim: int, threads: int) -> None:
    """In a process of its own: warm up on a few rows, then work."""
    import torch

    torch.set_num_threads(threads)
    x = np.random.default_rng(0).standard_normal((rows, dim), dtype=np.float32) + np.float32(0.5)
    CONTENDERS[name](x[: 2 * dim])
    before, started = peak_megabytes(), time.perf_counter()
    CONTENDERS[name](x)
    print(json.dumps({"seconds": time.perf_counter() - started, "more": peak_megabytes() - before}))


def one_line() -> list[float]:
    from anisoscope.inputs.text import open_text

    with TemporaryDirectory() as folder:
        path = Path(folder) / "line.txt"
        path.write_text("the quick brown fox = a = jumps over the lazy dog " * 21_000)
        return in_turn({"line": lambda: list(open_text(path))}, turns=3)["line"]


def main() -> None:
    chosen = arguments(__doc__, contender="")
    rows, dim = (5000, 32) if chosen.small else (200_000, 768)
    if chosen.contender:
        contend(chosen.contender, rows, dim, chosen.threads)
        return
    flags = [__file__, f"--threads={chosen.threads}", *(["--small"] if chosen.small else [])]
    found = in_processes({name: [*flags, f"--contender={name}"] for name in CONTENDERS}, turns=1 if chosen.small else 3)
    seconds = {name: values["seconds"] for name, values in found.items()}
    size = f"{rows:,} × {dim}"
    memory = {name: [max(value, 1.0) for value in found[name]["more"]] for name in ("sums", "package")}
    give(
        [
            compared(f"`vectors`, all sums: {size}", seconds["sums"], "IsoScore package", seconds["package"], aim=0.6),
            compared(f"… memory it adds: {size}", memory["sums"], "IsoScore package", memory["package"], unit="MB"),
            compared(
                f"average cosine of all pairs, with interval: {size}",
                seconds["directions"],
                f"{PAIRS:,} sampled pairs, without",
                seconds["pairs"],
                aim=0.33,
            ),
            stated("`--documents auto` on one line of 1 MB", one_line(), aim=1.0),
        ]
    )


if __name__ == "__main__":
    main()
