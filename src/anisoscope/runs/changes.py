"""Is what a run read still what it was? Models by the bytes of their files, data by its fingerprint, runs by manifest.

A finished run is used again only while nothing changed. Objects in memory are compared with those
that are given now.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anisoscope.errors import AnisoscopeError
from anisoscope.runs.writing import file_sha256

if TYPE_CHECKING:
    from anisoscope.runs.job import Job
    from anisoscope.runs.store import Run

IN_MEMORY = "(in memory)"


def changed_inputs(run: Run, job: Job) -> list[str]:
    """What the run read and is not what it was: models and data, by name. Runs of format 1 know no inputs."""
    return [
        words
        for key, record in run.manifest.get("inputs", {}).items()
        if (words := _change(job, key.partition(" ")[0], record)) is not None
    ]


def other_inputs(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not what the run that is repeated read: a relative path names another file in another folder."""
    return [
        f"the {record['kind']} {record['name']} is not what it was in the run that is repeated"
        for key, record in now.items()
        if key in before and record.get("fingerprint") != before[key].get("fingerprint")
    ]


def _change(job: Job, field: str, record: Mapping[str, Any]) -> str | None:
    name = str(record["name"])
    if record.get("in_memory"):  # the package's own, or read from another input that is checked itself
        return None
    if record["kind"] == "model" and record.get("files") is None:
        return None if record["fingerprint"] in _modules(job) else f"the model {name}"
    if record["kind"] == "model":
        files = changed_files(record, job)
        return f"the model {name} ({', '.join(files[:3])})" if files else None
    words = f"the {record['kind']} {name}"
    try:
        return None if _fingerprint(job, field, record) == record["fingerprint"] else words
    except (AnisoscopeError, OSError):  # gone, or no longer what could be read
        return f"{words} (it cannot be read any more)"


def _fingerprint(job: Job, field: str, record: Mapping[str, Any]) -> str:
    """The fingerprint of the same input as it is now."""
    if record["kind"] in ("run", "file"):
        path = Path(record["name"])
        return file_sha256(path / "manifest.json" if record["kind"] == "run" else path)
    if record["kind"] == "data":
        return job.source(record["modality"], field=field).fingerprint()
    options = {name: getattr(job.settings, name) for name in ("column", "group") if hasattr(job.settings, name)}
    if field != "files":
        options["group"] = record.get("group")  # a second cloud may have the column
    return job.vectors(field, **options).fingerprint()


def _modules(job: Job) -> list[str]:
    """The fingerprints of the modules that were given."""
    from anisoscope.models.fingerprint import module_fingerprint

    return [module_fingerprint(module) for module in job.given.get("models") or () if module is not None]


def changed_files(record: Mapping[str, Any], job: Job) -> list[str]:
    """The files of a recorded model that are not what they were."""
    if record.get("files") is None:  # a module in memory: nobody can tell
        return []
    if record.get("own_code") not in (None, job.machine.trust_remote_code):
        return ["whether its own code may run"]
    from anisoscope.models.fingerprint import unchanged
    from anisoscope.models.locate import locate
    from anisoscope.models.processors import tokenizer_folder

    models_dir, elsewhere = job.machine.models_dir, getattr(job.settings, "tokenizer", None)
    try:
        place = locate(record["name"], revision=record.get("asked"), models_dir=models_dir)
        return unchanged(record["files"], place, tokenizer=tokenizer_folder(elsewhere, models_dir=models_dir))
    except AnisoscopeError:  # gone
        return sorted(record["files"])
