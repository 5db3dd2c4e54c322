"""Random small clouds in files of every format, and what the command line says of them.

problems_of(number, folder)     # case 0, 1, 2, … : [] where everything agrees with the reference
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

import cases
from differential.verdicts import Cloud, problems

FORMATS = ("npy", "npz", "safetensors", "parquet", "arrow", "csv", "jsonl")
TEXTUAL = ("csv", "jsonl")


class Case(NamedTuple):
    """A file of vectors as it is stored, and the words that measure it."""

    stored: Any  # (rows, d) in the type of the file
    groups: Any  # (rows,) names, or None
    form: str
    options: tuple[str, ...]


def draw(number: int) -> Case:
    rng = np.random.default_rng([20, number])
    d = int(rng.choice([1, 2, 3, 5, 8, 17, 32, 48]))
    n = int(rng.choice([2, 3, 5, 10, 33, 50, 120, 300]))
    kind = np.dtype(rng.choice(["f2", "f4", "f4", "f8", "f8", "i2"]))
    form = str(rng.choice(FORMATS))
    x = _shaped(rng, n, d) * 10.0 ** _exponent(rng, kind)
    if kind.kind == "i":
        x = np.clip(np.rint(x), -30_000, 30_000)
    with np.errstate(over="ignore", invalid="ignore"):
        stored = _dirtied(rng, np.clip(x, -6e4, 6e4) if kind == np.float16 else x, form).astype(kind)
    groups = None
    if form != "npy" and rng.random() < 0.6:
        labels = rng.integers(0, max(2, len(stored) // int(rng.choice([1, 3, 10]))), len(stored))
        groups = np.array([f"s{label}" for label in np.sort(labels)])
    return Case(stored, groups, form, ("--no-neighbours",) if rng.random() < 0.2 else ())


def _exponent(rng: Any, kind: np.dtype) -> float:
    if kind == np.float64 and rng.random() < 0.15:
        return float(rng.choice([-200, 200, -120, 120, 30]))
    if kind in (np.float32, np.float64) and rng.random() < 0.1:
        return float(rng.choice([-18, 18]))
    return float(rng.uniform(1, 2) if kind.kind == "i" else rng.uniform(-2, 2))


def _shaped(rng: Any, n: int, d: int) -> Any:
    x = rng.standard_normal((n, d))
    kind = rng.integers(0, 7)
    if kind == 1:
        x *= np.logspace(0, -rng.uniform(0.5, 3), d)
    elif kind == 2:  # no variance in some directions
        rank = int(rng.integers(1, d + 1))
        x = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d))
    elif kind == 3:  # clusters
        x = 0.1 * x + 3 * rng.standard_normal((4, d))[rng.integers(0, 4, n)]
    elif kind == 4:  # duplicates
        x = x[rng.integers(0, max(2, n // 3), n)]
    elif kind == 5:  # one dimension dwarfs the rest
        x[:, 0] *= 50
    elif kind == 6:
        x[:, -1] = 0.5
    return x + rng.choice([0, 0, 1, 10]) * rng.standard_normal(d)


def _dirtied(rng: Any, x: Any, form: str) -> Any:
    """With zero rows in between, and rows that are not finite."""
    bad = int(rng.choice([0, 0, 0, 1, 3]))
    places = np.sort(rng.integers(0, len(x) + 1, bad))
    x = np.insert(x, places, 0.0, axis=0)
    if bad and form not in TEXTUAL and rng.random() < 0.5:
        x[rng.integers(0, len(x)), rng.integers(0, x.shape[1])] = rng.choice([np.nan, np.inf, -np.inf])
    return x


def write(case: Case, folder: Path) -> list[str]:
    """Write the file; the words that name it."""
    path, x, groups = folder / f"x.{case.form}", case.stored, case.groups
    named = [] if groups is None else ["--group", "g"]
    if case.form == "npy":
        np.save(path, x)
    elif case.form in TEXTUAL:
        _write_text(path, x, groups)
        return [str(path), *(["--column", "v"] if case.form == "jsonl" else []), *named]
    elif case.form in ("npz", "safetensors"):
        labels = {} if groups is None else {"g": np.unique(groups, return_inverse=True)[1]}
        np.savez(path, v=x, **labels) if case.form == "npz" else save_file(
            {"v": np.ascontiguousarray(x), **labels}, path
        )
    else:
        table = pa.table({"v": list(x), **({} if groups is None else {"g": groups})})
        if case.form == "parquet":
            pq.write_table(table, path, row_group_size=40)
        else:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=40)
    return [str(path), *(["--column", "v"] if case.form != "npy" else []), *named]


def _write_text(path: Path, x: Any, groups: Any) -> None:
    names = [None] * len(x) if groups is None else groups.tolist()
    if path.suffix == ".csv":
        header = [f"d{k}" for k in range(x.shape[1])] + ([] if groups is None else ["g"])
        lines = [[*map(repr, row), *([] if g is None else [g])] for row, g in zip(x.tolist(), names, strict=True)]
        path.write_text("\n".join(",".join(line) for line in [header, *lines]) + "\n")
    else:
        rows = [{"v": row, **({} if g is None else {"g": g})} for row, g in zip(x.tolist(), names, strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# -- through the command line ----------------------------------------------------------------------------------------


def said(words: list[str], *, apart: bool = False) -> tuple[int, Any, str]:
    """Exit code, JSON and errors of a command; `apart` in a process of its own."""
    if apart:
        given = [sys.executable, "-m", "anisoscope", *words]
        ended = subprocess.run(given, capture_output=True, text=True, env=cases.environment(), timeout=300)
        return ended.returncode, json.loads(ended.stdout or "null"), ended.stderr
    from anisoscope.cli.main import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
    return code, json.loads(out.getvalue() or "null"), err.getvalue()


def problems_of(number: int, folder: Path, *, apart: bool = False) -> list[str]:
    """What does not agree in one case."""
    case = draw(number)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    words = ["vectors", *write(case, folder), "--json", "--no-figures", "--out", str(folder / "run"), *case.options]
    code, answer, errors = said(words, apart=apart)
    x = case.stored.astype(np.float64)
    finite, zero = np.isfinite(x).all(1), (x == 0).all(1)
    good = finite & ~zero
    refusals = {"usable vectors": good.sum() < 2, "of one dimension": x.shape[1] == 1}
    if code or any(refusals.values()):
        expected = code == 1 and any(holds and words in errors for words, holds in refusals.items())
        return [] if expected else [f"code {code}: {errors[-300:]}"]
    return _compared(case, x, good, answer) + _counts(answer, finite, zero)


def _counts(answer: Any, finite: Any, zero: Any) -> list[str]:
    found = {row["metric"]: row["value"] for row in answer["measurements"]}
    wanted = {"zero_vectors": int(zero.sum()), "nonfinite_vectors": int((~finite).sum())}
    return [f"{name}: {found[name]} instead of {count}" for name, count in wanted.items() if found[name] != count]


def _compared(case: Case, x: Any, good: Any, answer: Any) -> list[str]:
    """Sequences that hold no vector that can be measured do not count."""
    groups = np.arange(len(x)) if case.groups is None else case.groups
    size = np.sqrt((x[good] ** 2).sum(1).mean()) if np.abs(x[good]).max() < 1e150 else np.inf
    largest = np.abs(x[good]).max()
    single = case.stored.dtype in (np.float16, np.float32, np.int16) and case.form not in TEXTUAL
    cloud = Cloud(
        x[good],
        groups[good],
        unit=2.0**-24 if single or case.form in TEXTUAL else 2.0**-53,
        squares=1e-140 < size < 1e140,
        fourths=1e-65 < size < 1e65,
        neighbours="--no-neighbours" not in case.options and 1e-30 < largest < 1e30,
    )
    return problems(answer["measurements"], cloud)
