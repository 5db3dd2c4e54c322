"""Apply a remedy to files of vectors: read, mapped and written block by block, ids and other columns kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anisoscope.errors import UsageError
from anisoscope.inputs.files import find_files
from anisoscope.inputs.vectors.rewrite import rewrite
from anisoscope.inputs.vectors.source import READERS, open_vectors
from anisoscope.runs.progress import track
from anisoscope.runs.writing import guarded
from anisoscope.studies.remedy.estimator import Remedy


def apply_files(
    remedy: Remedy, files: Sequence[str | Path], out: Path, *, column: str | None = None, force: bool = False
) -> list[tuple[Path, int]]:
    """Write the repaired files to `out` (a file for one, else a folder); what was written, and how many rows each."""
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
            with guarded(target, inputs=paths, force=force) as partial:
                rows = rewrite(path, partial, remedy.transform, column=column, done=bar.advance)
            written.append((target, rows))
    return written


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
