"""Plans: what a run does, as settings that a TOML file holds and pydantic checks.

Every command builds one `Settings`, every run writes it as run.toml, and `anisoscope run run.toml` performs it again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from anisoscope.errors import UsageError
from anisoscope.runs.store import Existing, Run, begin, find_existing

RUNS = Path("anisoscope-runs")


class Settings(BaseModel):
    """Base of all settings: frozen, and nothing unknown is accepted."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    command: ClassVar[str]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for manifest and TOML; what is not set is left out."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def check(cls, values: Mapping[str, Any], *, where: object = None):
        """Validate values that a person wrote; the error names the field."""
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "settings"
            raise UsageError(
                f"{cls.command}: the setting {field!r} is wrong", where=where, got=first.get("input"), do=first["msg"]
            ) from None


def default_folder(settings: Settings, *, name: str, data: str = "") -> Path:
    """Where a run goes without --out: a name that tells what it is, and a hash of settings and data."""
    text = json.dumps([settings.command, settings.as_dict(), data], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:48] or "run"
    return RUNS / f"{settings.command}-{readable}-{digest}"


def reuse_or_begin(folder: Path, settings: Settings, *, existing: Existing, data: str = "") -> Run | None:
    """The finished run to use again, or None once the folder is ready for (more) work."""
    found = find_existing(folder, command=settings.command, settings=settings.as_dict(), existing=existing)
    if found is not None and data and found.manifest.get("data", {}).get("fingerprint") not in (None, data):
        raise UsageError(
            "the folder holds a run on other data",
            where=folder,
            got=f"fingerprint {found.manifest['data']['fingerprint'][:12]}",
            expected=data[:12],
            do="choose another --out, or --existing replace to overwrite it",
        )
    if found is None:
        begin(folder, command=settings.command, settings=settings.as_dict())
    return found
