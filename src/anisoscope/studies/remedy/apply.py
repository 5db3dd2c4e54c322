"""Apply a remedy to files of vectors: read, mapped and written block by block, ids and other columns kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from anisoscope.errors import UsageError
from anisoscope.inputs.files import find_files
from anisoscope.inputs.vectors.rewrite import rewrite
from anisoscope.inputs.vectors.source import READERS, open_vectors
from anisoscope.runs.progress import track
from anisoscope.runs.writing import guarded
from anisoscope.studies.remedy.estimator import Remedy


class Written(NamedTuple):
    """A repaired file: its rows, and those that were zero and no longer are, are not finite, or became zero."""

    path: Path
    rows: int
    zero: int
    not_finite: int
    no_direction: int


def apply_files(
    remedy: Remedy, files: Sequence[str | Path], out: Path, *, column: str | None = None, force: bool = False
) -> list[Written]:
    """Write the repaired files to `out` (a file for one, else a folder); what was written."""
    found = find_files(files, suffixes=READERS, what="vectors")
    paths = [file.path for file in found if isinstance(file.path, Path)]
    if len(paths) < len(found):
        raise UsageError(
            "a remedy is applied to files of this machine", got=str(found[0].path), do="copy it here first"
        )
    targets = _targets(paths, out)
    d, _ = remedy.fitted().dims
    sources = [open_vectors(path, column=column) for path in paths]  # refuse what is wrong before anything is written
    for path, source in zip(paths, sources, strict=True):
        if source.dim != d:
            raise UsageError("the remedy is for vectors of another dimension", where=path, got=source.dim, expected=d)
    total = sum(source.rows or 0 for source in sources) or None
    written = []
    with track("applying", total=total, unit="vectors") as bar:
        for path, target in zip(paths, targets, strict=True):
            odd: list[tuple[int, int, int]] = []  # by block: appended to by several threads
            with guarded(target, inputs=paths, force=force) as partial:
                rows = rewrite(path, partial, _watched(remedy, odd), column=column, done=bar.advance)
            written.append(Written(target, rows, *np.array([(0, 0, 0), *odd]).sum(axis=0).tolist()))
    return written


def _watched(remedy: Remedy, odd: list[tuple[int, int, int]]) -> Callable[[np.ndarray], np.ndarray]:
    """The remedy, counting the rows that mean nothing; the first column says which to look at."""

    def transform(x: np.ndarray) -> np.ndarray:
        zero = _zero_rows(x)
        y = remedy.transform(x)
        lost = _zero_rows(y)
        odd.append((len(np.setdiff1d(zero, lost)), int(np.isnan(y[:, 0]).sum()), len(lost)))
        return y

    return transform


def _zero_rows(x: np.ndarray) -> np.ndarray:
    some = np.flatnonzero(x[:, 0] == 0)
    return some[~x[some].any(axis=1)]


def _targets(paths: Sequence[Path], out: Path) -> list[Path]:
    if len(paths) == 1 and out.suffix and not out.is_dir():
        if out.suffix.lower() != paths[0].suffix.lower():
            raise UsageError(
                "vectors are written in the format that they came in",
                where=out,
                got=out.suffix,
                expected=paths[0].suffix,
            )
        return [out]
    targets = [out / path.name for path in paths]
    if len(set(targets)) < len(targets):
        raise UsageError("two files have the same name", got=", ".join(sorted(path.name for path in paths)[:3]))
    return targets
