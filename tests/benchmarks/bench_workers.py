"""Two processes against one, each of one thread, so that two have twice what one has: `measure` and `vectors`.

Three times: that of the whole command, with starting Python and, for Ray, its servers; that of the study, from its
manifest, which is without starting Python; and, for `vectors`, that of the pass alone, with both processes at work on
their halves at once. `vectors` takes as long to start as to sum four million vectors; `measure` is long enough for its
start not to matter.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench_scale import write
from contest import arguments, give, seconds_of, stated

ENGINES = {"torchrun": "torchrun", "ray": "Ray"}
AIM = "2 processes of 1 thread, times faster than 1 (aim: at least 1.8)"


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


def at_once(path: Path, *shares: str) -> float:
    """The seconds of the slowest of several processes that sum their shares at the same time."""
    commands = [[sys.executable, __file__, f"--file={path}", f"--share={share}"] for share in shares]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    return max(json.loads(one.communicate()[0])["seconds"] for one in running)


def make_texts(folder: Path, *, layers: int, width: int, windows: int, length: int) -> list[str]:
    """A model of random weights and a table of token ids, as arguments of `measure`."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from bench_measure import make_model

    make_model(layers, width, length, 1).save_pretrained(folder / "model")
    ids = np.random.default_rng(0).integers(0, 30_000, (windows, length))
    pq.write_table(pa.table({"input_ids": ids.tolist()}), folder / "ids.parquet")
    size = ["--length", str(length), "--batch-tokens", str(8 * length), "--no-figures"]
    return ["measure", str(folder / "model"), "--data", str(folder / "ids.parquet"), "--tokenizer", "bytes", *size]


def against_one(study: list[str], what: str, out: Path, turns: int) -> list[dict[str, Any]]:
    """How many times faster a command is on two processes than on one."""
    study = [*study, "--threads", "1", "--existing", "replace", "--out"]
    python = [sys.executable, "-m"]
    runs = {
        "one": [*python, "anisoscope", *study],
        "torchrun": [*python, "torch.distributed.run", "--nproc-per-node", "2", "-m", "anisoscope", *study],
        "ray": [*python, "anisoscope", *study],
    }
    more = {"ray": ["--engine", "ray", "--workers", "2"]}
    whole: dict[str, list[float]] = {name: [] for name in runs}
    within: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, command in runs.items():
            whole[name].append(seconds_of([*command, str(out / name), *more.get(name, [])])[0])
            within[name].append(json.loads((out / name / "manifest.json").read_text())["seconds"])
    gains = {
        f"{label}, {times}": [alone / shared for alone, shared in zip(taken["one"], taken[name], strict=True)]
        for name, label in ENGINES.items()
        for times, taken in (("whole command", whole), ("from opening to writing", within))
    }
    rows = [stated(f"{what}, one process of 1 thread, whole command", whole["one"])]
    return rows + [stated(f"{what}: {name}: {AIM}", gain, unit="×") for name, gain in gains.items()]


def main() -> None:
    chosen = arguments(__doc__, file="", share="")
    if chosen.file:
        pass_alone(chosen.file, chosen.share)
        return
    small = chosen.small
    with TemporaryDirectory() as folder:
        here = Path(folder)
        shape = {"layers": 2, "width": 64, "windows": 32} if small else {"layers": 6, "width": 768, "windows": 960}
        length = 32 if small else 512
        what = f"`measure`, {shape['windows'] * length:,} tokens, {shape['layers']} layers of {shape['width']}"
        rows = against_one(make_texts(here, **shape, length=length), what, here / "measured", turns=1)
        n, d = (20_000, 32) if small else (4_000_000, 256)
        turns = 1 if small else 2
        write(here / "x.npy", n, d)
        what = f"`vectors`, {n:,} × {d}"
        rows += against_one(["vectors", str(here / "x.npy"), "--no-neighbours"], what, here / "vectors", turns)
        alone = [at_once(here / "x.npy", "0/1") / at_once(here / "x.npy", "0/2", "1/2") for _ in range(turns)]
        rows.append(stated(f"{what}: the pass alone: {AIM}", alone, unit="×"))
    give(rows)


if __name__ == "__main__":
    main()
