"""The measurements that the cost model is fitted to: one site, one thread, by width.

`FIT` widths give the coefficients, `CHECK` widths say how wrong they are. Seconds per vector of the sums and seconds of
the metrics of one site, both of the processor, which a busy machine hardly changes; the bytes of a site's state; and
the bytes of a file that are hashed in a second, once it has been read.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from contest import arguments, give, in_turn
from threadpoolctl import threadpool_limits

FIT, CHECK = (64, 128, 256, 512, 1024), (384, 768, 1536)
ROWS, LENGTH = 8192, 512
HASHED = 2**28


def site(d: int, turns: int) -> dict[str, Any]:
    import torch

    from anisoscope.accumulate.moments import Moments
    from anisoscope.inference.cloud import measure_cloud

    x = torch.randn(ROWS, d, generator=torch.Generator().manual_seed(0)) + 0.3
    clouds = {name: Moments(d, spectrum=name == "spectra") for name in ("directions", "spectra")}
    position = np.tile(np.arange(LENGTH), ROWS // LENGTH)
    sequence = np.repeat(np.arange(ROWS // LENGTH, dtype=np.uint64), LENGTH)
    came = iter(range(0, 10**9, ROWS))

    def update(name: str) -> None:
        keys = sequence + np.uint64(next(came))
        clouds[name].update(x, sequences=keys, positions=position, first=position == 0, whole=True)

    runs: dict[str, Any] = {name: lambda name=name: update(name) for name in clouds}
    runs["metrics"] = lambda: measure_cloud(clouds["spectra"], neighbours=False)
    taken = {
        name: float(np.median(seconds)) for name, seconds in in_turn(runs, turns=turns, clock=time.process_time).items()
    }
    state = {name: sum(t.nbytes for t in cloud.state().values()) for name, cloud in clouds.items()}
    return {
        "d": d,
        "fit": d in FIT,
        "directions": taken["directions"] / ROWS,
        "spectra": taken["spectra"] / ROWS,
        "metrics": taken["metrics"],
        "bytes_directions": state["directions"],
        "bytes_spectra": state["spectra"],
    }


def hashed_per_second(turns: int) -> float:
    from anisoscope.inputs.files import file_digest

    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        path.write_bytes(bytes(HASHED))
        taken = in_turn({"hash": lambda: file_digest(path)}, turns=turns, clock=time.process_time)
    return HASHED / float(np.median(taken["hash"]))


def main() -> None:
    chosen = arguments(__doc__)

    import torch

    torch.set_num_threads(1)
    threadpool_limits(1)  # numpy's team waits at full speed, which would count
    turns = 1 if chosen.small else 5
    give([], cost=[site(d, turns) for d in sorted((*FIT, *CHECK))], hashed=hashed_per_second(turns))


if __name__ == "__main__":
    main()
