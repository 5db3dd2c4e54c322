"""`remedy apply` against one pass that only reads and writes the same file, and against its arithmetic alone.

The pass reads and writes a megabyte at a time; each writes a new file, once the disk is at rest (whoever truncates a
file that is still on its way to the disk waits for it). "In memory": the file is in the page cache, and so is what is
written: the pass is then a copy of memory. "Disk to disk": the file is not in the cache, and is over once what was
written is on the disk. The arithmetic is the matrix product of all rows, in memory, shared out to all cores. Aim: at
most 1/0.7 of the pass. A full matrix cannot reach it where the product alone takes longer than that.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from contest import Row, arguments, compared, give, in_turn
from threadpoolctl import threadpool_limits

from anisoscope.inputs.vectors.rewrite import rewrite
from anisoscope.studies.remedy.estimator import Remedy

AIM, BLOCK = 1.43, 512  # 1/0.7
MAPS = {"centre": None, "all-but-the-top": None, "whiten-k": 128, "soft-zca": None}


def make(path: Path, rows: int, dim: int) -> Path:
    x = np.random.default_rng(0).standard_normal((rows, dim), dtype=np.float32) + np.float32(0.3)
    if path.suffix == ".npy":
        np.save(path, x)
    else:
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), dim)
        pq.write_table(pa.table({"id": np.arange(rows), "embedding": vectors}), path, row_group_size=32768)
    return path


def copy(source: Path, target: Path) -> None:
    if source.suffix == ".parquet":
        with pq.ParquetFile(source) as file, pq.ParquetWriter(target, file.schema_arrow) as writer:
            for batch in file.iter_batches(8192):
                writer.write_batch(batch)
        return
    held = memoryview(bytearray(1 << 20))
    with source.open("rb", 0) as read, target.open("wb", 0) as written:
        while count := read.readinto(held):
            written.write(held[:count])


def product(rows: int, matrix: np.ndarray, cores: int) -> None:
    def share(_: int) -> None:
        x, out = np.ones((BLOCK, len(matrix)), np.float32), np.empty((BLOCK, matrix.shape[1]), np.float32)
        for _ in range(0, rows // cores, BLOCK):
            np.matmul(x, matrix, out=out)

    with threadpool_limits(1), ThreadPoolExecutor(cores) as workers:
        list(workers.map(share, range(cores)))


def measured(source: Path, rows: int, dim: int, *, cold: bool, turns: int, cores: int) -> Iterator[Row]:
    target = source.with_stem("out")
    sample = np.random.default_rng(1).standard_normal((4 * dim, dim)).astype(np.float32) + np.float32(0.3)
    fitted = {name: Remedy(name, dims=dims).fit(sample) for name, dims in MAPS.items()}
    matrix = fitted["soft-zca"].fitted().full.astype(np.float32)

    def written(write: Callable[[], object]) -> None:
        write()
        if cold:
            flush(target)

    contenders: dict[str, Callable[[], object]] = {"copy": lambda: written(lambda: copy(source, target))}
    for name, remedy in fitted.items():
        contenders[name] = lambda remedy=remedy: written(lambda: rewrite(source, target, remedy.transform))
    contenders["product"] = lambda: product(rows, matrix, cores)
    taken = in_turn(contenders, turns=turns, before=lambda: rest(source, target, forget=cold))
    where = f"{source.suffix}, {rows:,} × {dim}, {'disk to disk' if cold else 'in memory'}"
    for name in MAPS:
        words = f"`remedy apply`, {name}{' to 128' if MAPS[name] else ''}: {where}"
        yield compared(words, taken[name], "read and write alone", taken["copy"], aim=AIM)
    yield compared(f"matrix product alone: {where}", taken["product"], "read and write alone", taken["copy"])


def rest(source: Path, target: Path, *, forget: bool) -> None:
    """Nothing is written, and nothing waits to be written; the source is in the page cache, or must be read anew."""
    target.unlink(missing_ok=True)
    os.sync()
    if forget:
        with source.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def flush(path: Path) -> None:
    with path.open("r+b") as stream:
        os.fsync(stream.fileno())


def main() -> None:
    chosen = arguments(__doc__, rows=100_000, turns=5, dims="384,768")
    rows = 4000 if chosen.small else chosen.rows
    turns, found = 1 if chosen.small else chosen.turns, []
    with TemporaryDirectory() as folder:
        for dim, kind in itertools.product(map(int, chosen.dims.split(",")), ("npy", "parquet")):
            source = make(Path(folder) / f"x.{kind}", rows, dim)
            for cold in (False, True):
                found += measured(source, rows, dim, cold=cold, turns=turns, cores=chosen.threads)
    give(found)


if __name__ == "__main__":
    main()
