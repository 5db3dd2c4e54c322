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

_LOOKED_AT = 64  # rows of a block whose length is compared with that of what the remedy was fitted on
ALIKE = (0.5, 2.0)


class Written(NamedTuple):
    """A repaired file: its rows, and those that were zero and no longer are, are not finite, or became zero.

    `scale`: how many times as long its vectors are as those that the remedy was fitted on; missing where not known.
    """

    path: Path
    rows: int
    zero: int
    not_finite: int
    no_direction: int
    scale: float | None = None

    @property
    def another_scale(self) -> bool:
        """Whether the mean that the remedy takes away is not that of such vectors."""
        return self.scale is not None and not ALIKE[0] < self.scale < ALIKE[1]


def apply_files(
    remedy: Remedy,
    files: Sequence[str | Path],
    out: Path,
    *,
    column: str | None = None,
    inputs: Sequence[Path] = (),
    force: bool = False,
) -> list[Written]:
    """Write the repaired files to `out` (a file for one, else a folder); what was written.

    `inputs` are not overwritten, nor are the files.
    """
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
            squares: list[float] = []
            with guarded(target, inputs=[*paths, *inputs], force=force) as partial:
                rows = rewrite(path, partial, _watched(remedy, odd, squares), column=column, done=bar.advance)
            counts = np.array([(0, 0, 0), *odd]).sum(axis=0).tolist()
            written.append(Written(target, rows, *counts, scale=_scale(squares, remedy.length)))
    return written


def _mean_square(x: np.ndarray) -> list[float]:
    """The mean squared norm of the rows that have one."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.square(x).sum(axis=1)
    known = found[np.isfinite(found) & (found > 0)]
    return [float(known.mean())] if len(known) else []


def _scale(squares: list[float], length: float | None) -> float | None:
    return float(np.mean(squares)) ** 0.5 / length if squares and length else None


def _watched(
    remedy: Remedy, odd: list[tuple[int, int, int]], squares: list[float]
) -> Callable[[np.ndarray], np.ndarray]:
    """The remedy, counting the rows that mean nothing; the first column says which to look at.

    `squares` are the mean squared norms of the first rows of every block.
    """

    def transform(x: np.ndarray) -> np.ndarray:
        zero = _zero_rows(x)
        squares.extend(_mean_square(x[:_LOOKED_AT].astype(float)))
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
