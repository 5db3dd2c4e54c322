"""python tests/benchmarks/bench_remedy.py [--rows 200000] [--dims 384,768] [--turns 5] [--folder /tmp]

`remedy apply` with a full matrix against one pass that only reads and writes the same file, and against the arithmetic
alone (the matrix product of all rows in memory, on all cores). In turn, medians; one JSON object on request.

Aim: `apply` takes at most 1/0.7 of the pass that only copies, or of the arithmetic where that is the slower of the two.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from contest import Aim, show

from anisoscope.inputs.vectors.rewrite import rewrite
from anisoscope.studies.remedy.estimator import Remedy

BLOCK = 8192


def make(folder: Path, rows: int, dim: int, kind: str) -> Path:
    path = folder / f"{dim}.{kind}"
    x = np.random.default_rng(0).standard_normal((rows, dim), dtype=np.float32) + np.float32(0.3)
    if kind == "npy":
        np.save(path, x)
    else:
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), dim)
        pq.write_table(pa.table({"id": np.arange(rows), "embedding": vectors}), path, row_group_size=BLOCK * 4)
    return path


def copy_npy(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("wb") as written:
        while piece := read.read(1 << 23):
            written.write(piece)


def copy_parquet(source: Path, target: Path) -> None:
    with pq.ParquetFile(source) as file, pq.ParquetWriter(target, file.schema_arrow) as writer:
        for batch in file.iter_batches(BLOCK):
            writer.write_batch(batch)


def product(rows: int, matrix: np.ndarray) -> None:
    x = np.ones((BLOCK, len(matrix)), np.float32)
    for _ in range(0, rows, BLOCK):
        x @ matrix


def medians(contenders: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, run in contenders.items():
            started = time.perf_counter()
            run()
            taken[name].append(time.perf_counter() - started)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def measure(folder: Path, rows: int, dim: int, kind: str, turns: int) -> dict[str, float]:
    source, target = make(folder, rows, dim, kind), folder / f"out.{kind}"
    sample = np.random.default_rng(1).standard_normal((4 * dim, dim)).astype(np.float32) + np.float32(0.3)
    remedy = Remedy("soft-zca").fit(sample)
    matrix = remedy.fitted().full.astype(np.float32)
    copy = copy_npy if kind == "npy" else copy_parquet
    contenders: dict[str, Callable[[], object]] = {
        "copy": lambda: copy(source, target),
        "apply": lambda: rewrite(source, target, remedy.transform),
        "arithmetic": lambda: product(rows, matrix),
    }
    for run in contenders.values():  # files into the cache
        run()
    found = medians(contenders, turns)
    source.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dims", default="384,768")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        found = {
            f"{kind} {dim}": measure(Path(folder), asked.rows, dim, kind, asked.turns)
            for kind in ("npy", "parquet")
            for dim in map(int, asked.dims.split(","))
        }
    if asked.json:
        print(json.dumps(found))
        return
    slower = {name: max(one["copy"], one["arithmetic"]) for name, one in found.items()}
    words = "apply against the slower of copy and arithmetic"
    aims = [Aim(f"{name}, {words}", one["apply"] / slower[name], 1 / 0.7) for name, one in found.items()]
    aims += [Aim(f"{name}, apply against copy", one["apply"] / one["copy"]) for name, one in found.items()]
    show(f"remedy apply, {asked.rows:,} rows, seconds", found, aims)


if __name__ == "__main__":
    main()
