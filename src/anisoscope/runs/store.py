"""Runs on disk: one folder holds what was measured, how, and the file that does it again.

    measurements.parquet   the tidy table
    arrays.safetensors     curves, histograms, coordinates (where a study has any)
    moments.safetensors    the sums, to merge or to measure again without the model (where a run keeps them)
    manifest.json          format, versions, settings, protocol, what was read, verdict, and the checksum of every file
    run.toml               reproduces the run: `anisoscope run run.toml`

Each file is written under another name and renamed, the manifest last: a folder with a manifest is a finished run, and
a half-written file never appears under its final name. Every file is verified against its checksum before it is used,
the manifest against its own. Runs of format 1 have no checksums; they open with a note.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from anisoscope.errors import StoreError, UsageError
from anisoscope.inputs.files import read_toml
from anisoscope.runs.locking import locked
from anisoscope.runs.settings import nearest
from anisoscope.runs.shape import check_shape, differences
from anisoscope.runs.table import Row, from_table, is_table, to_table
from anisoscope.runs.writing import RUN_FILES, atomic, check_ordinary, file_sha256, is_free, left_behind

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

FORMAT = 2
Existing = Literal["resume", "reuse", "replace", "refuse"]
EXISTING: tuple[Existing, ...] = get_args(Existing)
Reading = Callable[[Mapping[str, Any]], Mapping[str, Any]]
TABLE, ARRAYS, SUMS, MANIFEST, PLAN = RUN_FILES
_LIBRARIES = ("anisoscope", "numpy", "scipy", "torch", "transformers")
_FOLDERS = ("partial", "figures", "training", "measured", "sums")  # what a run may hold besides its files
_ANEW = "make the run anew"
_BLANK = "0" * 64


@dataclass(frozen=True)
class Run:
    """A finished run folder, read lazily; each file is verified when it is first read."""

    folder: Path
    manifest: dict[str, Any]

    def table(self) -> pa.Table:
        """The tidy table (pyarrow)."""
        import pyarrow.parquet as pq

        with self._reading(TABLE) as path:
            table = pq.ParquetFile(path).read()  # `read_table` would import pandas
        whole = table.num_rows == self.manifest["rows"] and is_table(table.schema)
        if self.manifest["format"] > 1 and not whole:
            raise StoreError("the table is not the one of this run", where=self.folder / TABLE, do=_ANEW)
        return table

    @cached_property
    def _rows(self) -> list[Row]:
        return from_table(self.table())

    def rows(self, **wanted: object) -> list[Row]:
        """The measurements; keyword arguments select by column (`metric="mean_cosine", positions="all"`)."""
        return [row for row in self._rows if all(getattr(row, name) == value for name, value in wanted.items())]

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that a study keeps beside the table; empty where there are none."""
        return self._load(ARRAYS)

    def state(self) -> dict[str, np.ndarray]:
        """The sums; empty where the run did not keep them."""
        return self._load(SUMS)

    def _load(self, name: str) -> dict[str, np.ndarray]:
        from safetensors.numpy import load_file

        with self._reading(name) as path:
            return load_file(path) if path.exists() else {}

    @contextmanager
    def sums_file(self) -> Iterator[Any]:
        """The verified file of the sums, open to read single tensors as numpy arrays; None where there is none."""
        from safetensors import safe_open

        with self._reading(SUMS) as path:
            if path.exists():
                with safe_open(path, "numpy") as file:
                    yield file
            else:
                yield None

    @contextmanager
    def _reading(self, name: str) -> Iterator[Path]:
        """Read a file of the run; a damaged, missing or foreign one becomes an error that names it."""
        from pyarrow import ArrowException
        from safetensors import SafetensorError

        path, known = self.folder / name, self.manifest.get("files", {}).get(name)
        try:
            check_ordinary(path)
            if known is not None and file_sha256(path) != known:
                raise StoreError("a file of this run was changed or damaged", where=path, do=_ANEW)
            if known is None and self.manifest["format"] > 1 and path.exists():
                raise StoreError("this file does not belong to the run", where=path, do=_ANEW)
            yield path
        except PermissionError:
            raise  # it may be whole
        except (OSError, ArrowException, SafetensorError, ValueError) as error:
            raise StoreError("a file of this run cannot be read", where=path, got=error, do=_ANEW) from error

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
    arrays: Mapping[str, np.ndarray] | None = None,
    state: Mapping[str, np.ndarray] | None = None,
    seconds: float | None = None,
    in_memory: Iterable[str] = (),
    **about: Any,
) -> Run:
    """Write a finished run. The manifest comes last, so that a folder with a manifest is complete.

    `about` are further fields of the manifest, as plain values: protocol, data, model, inputs, verdict, notes, …
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)
        _write_plan(folder, command, settings, in_memory)  # first: a folder without it is not recognised as a run
        table = to_table(replace(row, run=row.run or folder.name) for row in rows)
        _write_files(folder, table, arrays or {}, state or {})
        given = {"protocol": {}, "data": {}, "model": {}, "inputs": {}, "verdict": None, "notes": [], **about}
        manifest = {
            "format": FORMAT,
            "command": command,
            "settings": dict(settings),
            **{name: list(value) if isinstance(value, tuple) else value for name, value in given.items()},
            "in_memory": list(in_memory),
            "rows": table.num_rows,
            "seconds": None if seconds is None else round(seconds, 3),
            "versions": versions(),
            "files": {name: file_sha256(folder / name) for name in RUN_FILES if (folder / name).exists()},
        }
        _write_manifest(folder / MANIFEST, manifest)
        shutil.rmtree(folder / "partial", ignore_errors=True)
    except OSError as error:
        raise StoreError(
            "the run could not be written", where=folder, got=error, do="free some space or choose another --out"
        ) from error
    return Run(folder, json.loads(json.dumps(manifest, ensure_ascii=False)))


def _write_files(
    folder: Path, table: pa.Table, arrays: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray]
) -> None:
    import pyarrow.parquet as pq

    with atomic(folder / TABLE) as path:
        pq.write_table(table, path, compression="zstd")
    for file, kept in ((ARRAYS, arrays), (SUMS, state)):
        (folder / file).unlink(missing_ok=True)
        if kept:
            import numpy as np
            from safetensors.numpy import save_file

            with atomic(folder / file) as path:
                save_file({name: np.ascontiguousarray(array) for name, array in kept.items()}, path)


def _write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    """The manifest, led by the checksum of its own bytes with zeros in the checksum's place."""
    text = json.dumps({"sha256": _BLANK, **manifest}, indent=2, ensure_ascii=False, default=str) + "\n"
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    with atomic(path) as partial:
        partial.write_bytes(text.replace(_BLANK, digest, 1).encode("utf-8", "surrogatepass"))


def open_run(folder: Path | str) -> Run:
    """Open a finished run; a clear error for anything else."""
    folder = Path(folder)
    path = folder / MANIFEST
    if not path.exists():
        unfinished, trained = ((folder / name).exists() for name in ("partial", "recipe.toml"))
        do = "measure this training with `anisoscope sweep`" if trained else "check the path"
        raise StoreError(
            "this run is not finished" if unfinished else "there is no run here",
            where=folder,
            expected="a folder with manifest.json",
            do="give the same command again to continue it" if unfinished else do,
        )
    return Run(folder, read_manifest(path))


def read_manifest(path: Path) -> dict[str, Any]:
    """A manifest, verified: its checksum, its format, its shape."""
    try:
        check_ordinary(path)
        raw = path.read_bytes()
        manifest = json.loads(raw)
    except PermissionError:
        raise  # it may be whole
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError("the manifest of this run is damaged", where=path, got=error, do=_ANEW) from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("command"), str):
        raise StoreError("this is not the manifest of a run", where=path, do="check the path")
    if manifest.get("format") not in (1, FORMAT):
        raise StoreError(
            "this run has another format",
            where=path.parent,
            got=f"format {manifest.get('format')}",
            expected=f"format {FORMAT} or 1",
            do="read it with the version of anisoscope that wrote it, or upgrade",
        )
    if manifest["format"] == 1 and "sha256" not in manifest:
        check_shape({"inputs": {}, "files": {}, **manifest}, path, _ANEW)
        old = "written by an earlier version, without checksums: its files cannot be verified"
        return {"inputs": {}, **manifest, "notes": [*manifest["notes"], old]}
    digest = str(manifest.get("sha256"))
    if sha256(raw.replace(digest.encode(), _BLANK.encode(), 1)).hexdigest() != digest:
        raise StoreError("the manifest of this run was changed or damaged", where=path, do=_ANEW)
    check_shape(manifest, path, _ANEW)
    return manifest


def checked_existing(value: str) -> Existing:
    """The value of `existing`, or an error with the nearest word."""
    if value not in EXISTING:
        do = nearest(value, EXISTING)[2:] or None
        raise UsageError("unknown value of --existing", got=value, expected=", ".join(EXISTING), do=do)
    return value  # pyright: ignore[reportReturnType]  # it is one of them


def check_out(folder: Path, inputs: Iterable[str | Path]) -> None:
    """Refuse a run folder that is an input or holds one: replacing the run would remove what it reads."""
    for one in map(Path, inputs):
        try:
            if one.exists() and folder.resolve() in (one.resolve(), *one.resolve().parents):
                raise UsageError("the run would overwrite its own input", where=folder, do="choose another --out")
        except (OSError, ValueError, RuntimeError):  # a name of the Hub, a pattern, links that lead nowhere: no path
            continue


def find_existing(
    folder: Path, *, command: str, settings: Mapping[str, Any], existing: Existing, read: Reading = dict
) -> Run | None:
    """What `--existing` decides: the finished run to use again, or None to (go on to) compute.

    - `resume` (default): a finished run of the same settings is used again, an unfinished one continued;
    - `reuse`: only a finished run of the same settings will do;
    - `replace`: what is there has to be a run, which `remove_run` takes away once the new one begins;
    - `refuse`: nothing may be there.

    `read` understands the settings of a run as they are understood today: an earlier version knew fewer of them.
    """
    present = not is_free(folder)
    if existing == "refuse" and present:
        raise StoreError("the folder is not empty", where=folder, do="choose another --out, or --existing replace")
    if existing == "reuse" and not (folder / MANIFEST).exists():
        raise StoreError("there is no finished run to reuse", where=folder, do="leave out --existing reuse")
    if not present:
        return None
    if existing == "replace":
        if not (folder / PLAN).exists():
            raise UsageError("this is not a run folder, so it is not replaced", where=folder, do="choose another --out")
        return None
    if not (folder / PLAN).exists():
        raise StoreError("the folder holds something that is not a run", where=folder, do="choose another --out folder")
    plan = _plan_in(folder)
    if plan["command"] == command:
        with suppress(UsageError):
            plan["settings"] = json.loads(json.dumps(read(plan.get("settings", {}))))
    differing = differences(plan, json.loads(json.dumps([command, dict(settings)])))
    if differing:
        raise StoreError(
            "the folder holds a run of other settings",
            where=folder,
            got="; ".join(f"{name} was {old!r}, now {new!r}" for name, old, new in differing[:4]),
            do="choose another --out, or --existing replace to overwrite it",
        )
    if not (folder / MANIFEST).exists():
        return None
    with suppress(StoreError), locked(folder, active=any(map(left_behind, folder.iterdir()))) as take:
        take()  # and give back: what a process left that was killed right after its last file
        shutil.rmtree(folder / "partial", ignore_errors=True)
    return open_run(folder)


def _plan_in(folder: Path) -> dict[str, Any]:
    """The plan of the run in a folder; a damaged one is named, with what to do."""
    do = "--existing replace starts anew, or choose another --out"
    try:
        check_ordinary(folder / PLAN)
        return read_plan(folder / PLAN)
    except OSError as error:
        raise StoreError("this is not the plan of a run", where=folder / PLAN, got=error, do=do) from error
    except UsageError as error:
        raise StoreError(error.what, where=folder / PLAN, got=error.got, expected=error.expected, do=do) from error


def remove_run(folder: Path) -> None:
    """Remove the files of a run, and only those: a mistyped --out must not delete a home folder."""
    for name in RUN_FILES:
        (folder / name).unlink(missing_ok=True)
    for path in folder.glob(".*.partial"):  # by a process that was killed while it wrote
        path.unlink(missing_ok=True)
    for name in _FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)


def begin(folder: Path, *, command: str, settings: Mapping[str, Any], in_memory: Iterable[str] = ()) -> None:
    """Record what is about to be computed, so that an interrupted run can be recognised and continued."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / PLAN).exists():
            _write_plan(folder, command, settings, in_memory)  # first, as in `write_run`
        (folder / "partial").mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError("the run folder cannot be made", where=folder, got=error, do="choose another --out") from error


def abandon(folder: Path) -> None:
    """Take back what `begin` made, where nothing was saved since: the folder is free for another command."""
    if (folder / MANIFEST).exists() or any(path.is_file() for name in _FOLDERS for path in (folder / name).rglob("*")):
        return
    remove_run(folder)  # a table without a manifest, too
    (folder / ".lock").unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def _write_plan(folder: Path, command: str, settings: Mapping[str, Any], in_memory: Iterable[str]) -> None:
    import tomli_w

    plan: dict[str, Any] = {"command": command}
    if in_memory:
        plan["in_memory"] = list(in_memory)
    plan["settings"] = {name: value for name, value in settings.items() if value is not None}
    with atomic(folder / PLAN) as path:
        path.write_text(tomli_w.dumps(plan), encoding="utf-8", errors="surrogateescape")


def read_plan(path: Path) -> dict[str, Any]:
    """The TOML file of a run: its command, its settings, and nothing else."""
    plan = read_toml(path)
    unknown = set(plan) - {"command", "settings", "in_memory"}
    if unknown:
        raise UsageError("unknown table in the plan", where=path, got=", ".join(sorted(unknown)), expected="settings")
    if not isinstance(plan.get("command"), str) or not isinstance(plan.get("settings", {}), dict):
        raise UsageError("this is not a plan", where=path, expected="command = NAME and a table [settings]")
    return plan


def versions() -> dict[str, str]:
    """The versions that a number may depend on."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found
