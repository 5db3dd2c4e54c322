"""Runs on disk: one folder holds what was measured, how, and the file that does it again.

    measurements.parquet   the tidy table
    arrays.safetensors     curves, histograms, coordinates (where a study has any)
    moments.safetensors    the sums, to merge or to measure again without the model (where a run keeps them)
    manifest.json          format, versions, settings, protocol, fingerprint of the data, seconds
    run.toml               reproduces the run: `anisoscope run run.toml`

Each file is written under another name and renamed, the manifest last: a folder with a manifest is a finished run, and
a half-written file never appears under its final name.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from anisoscope.errors import StoreError, UsageError
from anisoscope.runs import toml
from anisoscope.runs.table import Row, from_table, to_table

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import torch

FORMAT = 1
Existing = Literal["resume", "reuse", "replace", "refuse"]
_LIBRARIES = ("anisoscope", "numpy", "scipy", "torch", "transformers")


@dataclass(frozen=True)
class Run:
    """A finished run folder, read lazily."""

    folder: Path
    manifest: dict[str, Any]

    def table(self) -> pa.Table:
        """The tidy table, as it opens in pandas, polars and DuckDB too."""
        import pyarrow.parquet as pq

        with _damage_named(self.folder / "measurements.parquet") as path:
            return pq.read_table(path)

    @cached_property
    def _rows(self) -> list[Row]:
        return from_table(self.table())

    def rows(self, **wanted: object) -> list[Row]:
        """The measurements; keyword arguments select by column (`metric="mean_cosine", positions="all"`)."""
        return [row for row in self._rows if all(getattr(row, name) == value for name, value in wanted.items())]

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that a study keeps beside the table; empty where there are none."""
        from safetensors.numpy import load_file

        with _damage_named(self.folder / "arrays.safetensors") as path:
            return load_file(path) if path.exists() else {}

    def state(self) -> dict[str, torch.Tensor]:
        """The sums; empty where the run did not keep them."""
        from safetensors.torch import load_file

        with _damage_named(self.folder / "moments.safetensors") as path:
            return load_file(path) if path.exists() else {}

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def command(self) -> str:
        return str(self.manifest["command"])


def write_run(
    folder: Path | str,
    *,
    command: str,
    settings: Mapping[str, Any],
    rows: Iterable[Row],
    protocol: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray] | None = None,
    state: Mapping[str, torch.Tensor] | None = None,
    data: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    seconds: float | None = None,
    verdict: str | None = None,
    notes: Iterable[str] = (),
) -> Run:
    """Write a finished run. The manifest comes last, so that a folder with a manifest is complete."""
    import pyarrow.parquet as pq

    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").unlink(missing_ok=True)
        table = to_table(replace(row, run=row.run or folder.name) for row in rows)
        with atomic(folder / "measurements.parquet") as path:
            pq.write_table(table, path, compression="zstd")
        if arrays:
            from safetensors.numpy import save_file as save_arrays

            with atomic(folder / "arrays.safetensors") as path:
                save_arrays({name: _contiguous(array) for name, array in arrays.items()}, path)
        if state:
            from safetensors.torch import save_file as save_tensors

            with atomic(folder / "moments.safetensors") as path:
                save_tensors({name: tensor.contiguous() for name, tensor in state.items()}, path)
        with atomic(folder / "run.toml") as path:
            path.write_text(toml.dumps({"command": command, "settings": dict(settings)}), encoding="utf-8")
        manifest = {
            "format": FORMAT,
            "command": command,
            "settings": dict(settings),
            "protocol": dict(protocol),
            "data": dict(data or {}),
            "model": dict(model or {}),
            "verdict": verdict,
            "notes": list(notes),
            "rows": table.num_rows,
            "seconds": None if seconds is None else round(seconds, 3),
            "versions": versions(),
        }
        with atomic(folder / "manifest.json") as path:
            text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
            path.write_text(text, encoding="utf-8", errors="backslashreplace")  # lone surrogates as JSON escapes
        shutil.rmtree(folder / "partial", ignore_errors=True)
    except OSError as error:
        raise StoreError(
            "the run could not be written", where=folder, got=error, do="free some space or choose another --out"
        ) from error
    return Run(folder, manifest)


def _contiguous(array: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.ascontiguousarray(array)


@contextmanager
def atomic(path: Path):
    """Write under another name, then rename; nothing is left behind when the writing fails."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, path)
    except Exception as error:
        from safetensors import SafetensorError

        if isinstance(error, SafetensorError):  # what safetensors makes of a full disk is no OSError
            raise OSError(str(error)) from error
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _damage_named(path: Path):
    """Read a file of a run; what the libraries raise for a damaged or missing one becomes an error that names it."""
    from pyarrow import ArrowException
    from safetensors import SafetensorError

    try:
        yield path
    except (OSError, ArrowException, SafetensorError) as error:
        raise StoreError("a file of this run cannot be read", where=path, got=error, do="make the run anew") from error


def open_run(folder: Path | str) -> Run:
    """Open a finished run; a clear error for anything else."""
    folder = Path(folder)
    path = folder / "manifest.json"
    if not path.exists():
        unfinished = (folder / "partial").exists()
        raise StoreError(
            "this run is not finished" if unfinished else "there is no run here",
            where=folder,
            expected="a folder with manifest.json",
            do="give the same command again to continue it" if unfinished else "check the path",
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StoreError("the manifest of this run is damaged", where=path, got=error) from error
    if manifest.get("format") != FORMAT:
        raise StoreError(
            "this run has another format",
            where=folder,
            got=f"format {manifest.get('format')}",
            expected=f"format {FORMAT}",
            do="read it with the version of anisoscope that wrote it, or upgrade",
        )
    return Run(folder, manifest)


def find_existing(folder: Path, *, command: str, settings: Mapping[str, Any], existing: Existing) -> Run | None:
    """What `--existing` decides: the finished run to use again, or None to (go on to) compute.

    - `resume` (default): a finished run of the same settings is used again, an unfinished one continued;
    - `reuse`: only a finished run of the same settings will do;
    - `replace`: whatever is there is removed first;
    - `refuse`: nothing may be there.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError("a run needs a folder, and this is a file", where=folder, do="choose another --out")
    present = folder.exists() and any(folder.iterdir())
    if existing == "refuse" and present:
        raise StoreError("the folder is not empty", where=folder, do="choose another --out, or --existing replace")
    if existing == "reuse" and not (folder / "manifest.json").exists():
        raise StoreError("there is no finished run to reuse", where=folder, do="leave out --existing reuse")
    if not present:
        return None
    if existing == "replace":
        _remove_run(folder)
        return None
    recorded = folder / "run.toml"
    if not recorded.exists():
        raise StoreError("the folder holds something that is not a run", where=folder, do="choose another --out folder")
    before = toml.load(recorded)
    now = json.loads(json.dumps({"command": command, "settings": dict(settings)}))
    differing = _differences(before, now)
    if differing:
        raise StoreError(
            "the folder holds a run of other settings",
            where=folder,
            got="; ".join(f"{name} was {old!r}, now {new!r}" for name, old, new in differing[:4]),
            do="choose another --out, or --existing replace to overwrite it",
        )
    return open_run(folder) if (folder / "manifest.json").exists() else None


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    found = [("command", before.get("command"), now["command"])] if before.get("command") != now["command"] else []
    old, new = before.get("settings", {}), {k: v for k, v in now["settings"].items() if v is not None}
    names = [*new, *(name for name in old if name not in new)]
    return found + [(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


def _remove_run(folder: Path) -> None:
    """Remove the files of a run, and only those: a mistyped --out must not delete a home folder."""
    if not (folder / "run.toml").exists():
        raise UsageError("this is not a run folder, so it is not replaced", where=folder, do="choose another --out")
    for name in ("measurements.parquet", "arrays.safetensors", "moments.safetensors", "manifest.json", "run.toml"):
        (folder / name).unlink(missing_ok=True)
    for left_behind in folder.glob(".*.partial"):  # by a process that was killed while it wrote
        left_behind.unlink(missing_ok=True)
    for name in ("partial", "figures"):
        shutil.rmtree(folder / name, ignore_errors=True)


def begin(folder: Path, *, command: str, settings: Mapping[str, Any]) -> None:
    """Record what is about to be computed, so that an interrupted run can be recognised and continued."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic(folder / "run.toml") as path:  # first: a folder without it is not known for a run
            path.write_text(toml.dumps({"command": command, "settings": dict(settings)}), encoding="utf-8")
        (folder / "partial").mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError("the run folder cannot be made", where=folder, got=error, do="choose another --out") from error


def versions() -> dict[str, str]:
    """The versions that a number may depend on."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found
