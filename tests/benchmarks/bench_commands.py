"""Commands on small runs, whole processes from start to end; and opening a run with its checksums verified.

Each command runs once before it counts, and may keep its bytecode, as that of an installed package is kept. `null`
draws figures once it has printed its answer: it is timed without them, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from contest import arguments, give, in_turn, seconds_of, stated

ANISOSCOPE = [sys.executable, "-m", "anisoscope"]


def opened(folder: Path) -> None:
    import anisoscope

    run = anisoscope.open_run(folder).run
    assert run is not None
    run.table()
    run.state()


def started(command: list[str], turns: int) -> list[float]:
    """The seconds of a command, after a first run that does not count."""
    return [seconds_of(command)[0] for _ in range(turns + 1)][1:]


def main() -> None:
    chosen = arguments(__doc__)
    turns = 1 if chosen.small else 3
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with TemporaryDirectory() as folder:
        here, rows = Path(folder), []
        x = np.random.default_rng(0).standard_normal((2000, 64), dtype=np.float32) + np.float32(0.3)
        np.save(here / "x.npy", x)
        np.save(here / "wide.npy", np.tile(x, (4, 16 if not chosen.small else 1)))
        vectors = [*ANISOSCOPE, "vectors", str(here / "x.npy"), "--existing", "replace", "--out", str(here / "run")]
        taken = started(vectors, turns)
        rows.append(stated("`vectors` of a 2,000 × 64 file", taken, aim=2.5))
        run = str(here / "run")
        null = ["null", "--dim", "64", "--n", "2000", "--existing", "replace", "--out", str(here / "null")]
        commands = {
            "show": ["show", run],
            "null --no-figures": [*null, "--no-figures"],
            "null": null,
            "compare": ["compare", run, run, "--existing", "replace", "--out", str(here / "compare")],
            "models": ["models"],
        }
        for name, command in commands.items():
            taken = started([*ANISOSCOPE, *command], turns)
            rows.append(stated(f"`{name}` of a small run", taken, aim=1.0))
        wide = [*ANISOSCOPE, "vectors", str(here / "wide.npy"), "--no-neighbours", "--out", str(here / "wide")]
        subprocess.run(wide, check=True, capture_output=True)
        size = sum(path.stat().st_size for path in (here / "wide").rglob("*") if path.is_file()) / 1e6
        taken = in_turn({"open": lambda: opened(here / "wide")}, turns=turns, clock=time.perf_counter)["open"]
        rows.append(stated(f"open a run of {size:.0f} MB, every file verified and read", taken))
    give(rows)


if __name__ == "__main__":
    main()
