"""The sums of an unfinished pass on disk: what a killed run continues from, with exactly the same numbers.

A unit of work has a header, `UNIT.json`, and the file of its sums, which the header names with its checksum. The sums
are written first, then the header; the former sums are removed last: at any moment the folder holds one consistent
state. The header also says which model, data, settings and libraries the sums are of; others refuse them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anisoscope.errors import StoreError
from anisoscope.runs.store import versions
from anisoscope.runs.work.units import Unit
from anisoscope.runs.writing import atomic, check_ordinary, file_sha256

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COMPUTE = ("anisoscope", "torch", "transformers")
_START_ANEW = "--existing replace starts anew"


@dataclass
class Saved:
    """Where a unit stands: `done` places of its plan, in batches of `batch_tokens`; `about` once it is finished.

    `notes` are what happened on the way.
    """

    folder: Path
    unit: Unit
    identity: Mapping[str, Any]
    done: int = 0
    batch_tokens: int | None = None
    finished: bool = False
    about: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    state: str = ""
    sha256: str = ""

    def has_shape(self) -> bool:
        """Whether the values have the types that they were written with."""
        kinds = {"done": int, "finished": bool, "about": dict, "notes": list, "state": str, "sha256": str}
        right = all(isinstance(getattr(self, name), kind) for name, kind in kinds.items())
        return (
            right and isinstance(self.batch_tokens, int | None) and self.done >= 0 and self.state in ("", self._name())
        )

    def _name(self) -> str:
        """The file of the sums, by how far they go: a header that says otherwise is damaged."""
        return f"{self.unit.name}@{self.done}{'-finished' if self.finished else ''}.safetensors"

    @property
    def header(self) -> Path:
        return self.folder / f"{self.unit.name}.json"

    def load(self) -> dict[str, NDArray]:
        """The saved sums; empty where nothing was saved yet."""
        if not self.state:
            return {}
        from safetensors.numpy import load_file

        return load_file(self.verified())

    def verified(self) -> Path:
        """The file of the sums, whose checksum was found to be right."""
        path = self.folder / self.state
        if not path.is_file() or file_sha256(path) != self.sha256:
            raise StoreError("the state of the unfinished run is damaged", where=path, do=_START_ANEW)
        return path

    def save(self, arrays: Mapping[str, NDArray]) -> None:
        """Keep these sums as the state of the unit."""
        from safetensors.numpy import save_file

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            name = self._name()
            with atomic(self.folder / name) as path:
                save_file({key: np.ascontiguousarray(array) for key, array in arrays.items()}, path)
                self.sha256 = file_sha256(path)
            former, self.state = self.state, name
            with atomic(self.header) as path:
                path.write_text(json.dumps(self._written()), encoding="utf-8")
            if former and former != name:
                (self.folder / former).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(
                "the state of the run could not be saved",
                where=self.folder,
                got=error,
                do="free some space and give the same command again: it continues",
            ) from error

    def _written(self) -> dict[str, Any]:
        names = ("done", "batch_tokens", "finished", "about", "notes", "state", "sha256")
        plain = {name: getattr(self, name) for name in names}
        return {"unit": self.unit.as_list(), "identity": dict(self.identity), **plain}

    def as_on_disk(self) -> Saved:
        """The state that was saved last, or an empty one."""
        begun = {saved.unit: saved for saved in find_saved(self.folder, self.identity)}
        return begun.get(self.unit) or Saved(self.folder, self.unit, self.identity)


def find_saved(folder: Path, identity: Mapping[str, Any]) -> list[Saved]:
    """Every unit that was begun in the folder; refuses sums of another model, data, settings or libraries."""
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            check_ordinary(path)
            header = json.loads(path.read_text(encoding="utf-8"))
            unit = Unit.of_list(header.pop("unit"))
            before = header.pop("identity")
            saved = Saved(folder, unit, identity, **header)
            if not saved.has_shape() or not isinstance(before, dict):
                raise TypeError("values of other types than were written")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StoreError(
                "the state of the unfinished run is damaged", where=path, got=error, do=_START_ANEW
            ) from error
        changed = [name for name in identity if before.get(name) != identity[name]]
        if changed:
            raise StoreError(
                f"the {changed[0]} changed since this run was interrupted",
                where=folder.parent.parent,
                got=identity[changed[0]],
                expected=before.get(changed[0]),
                do="put it back as it was, or --existing replace to start anew",
            )
        found.append(saved)
    return found


def identity_of(**parts: Any) -> dict[str, str]:
    """What sums depend on, by name: short digests of model, data and settings, and the libraries that compute."""
    digests = {
        name: hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]
        for name, value in parts.items()
    }
    found = versions()
    return {**digests, "libraries": ", ".join(f"{name} {found[name]}" for name in _COMPUTE if name in found)}


def slug(label: str) -> str:
    """A name of a folder that tells labels apart.

    >>> slug("google/bert: base")
    'google-bert-base-93437e'
    """
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.")[:48] or "part"
    return f"{readable}-{hashlib.sha256(label.encode('utf-8', 'surrogatepass')).hexdigest()[:6]}"
