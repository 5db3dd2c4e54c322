"""The one runner: every study, from every entrance, goes through `perform`.

    perform(find_study("measure"), settings, out=Path("run"))

It finds what the folder holds and what `existing` says about it, uses a finished run again only while its settings,
data and models are what they were, continues an unfinished one, and writes the run: rows, arrays, sums, manifest. On
several processes all of them work and the first one writes.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anisoscope.errors import StoreError, UsageError
from anisoscope.runs.job import IN_MEMORY, Job, changed_files
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.settings import Machine, Settings
from anisoscope.runs.stopping import stoppable
from anisoscope.runs.store import Existing, Run, begin, find_existing, locked
from anisoscope.runs.study import Findings, Study, find_study, lost
from anisoscope.runs.work.collected import Collected, check_counts, report_of, state_of
from anisoscope.runs.work.engines import Local, engine
from anisoscope.runs.work.units import parse_shard
from anisoscope.runs.writing import file_sha256

RUNS = Path("anisoscope-runs")


def perform(
    study: Study | str,
    settings: Settings | Mapping[str, Any],
    *,
    machine: Machine | None = None,
    out: Path | str | None = None,
    existing: Existing = "resume",
    given: Mapping[str, Any] | None = None,
) -> Measurement:
    """Carry out a study. Without `out` nothing is written and the measurement is in memory only.

    `given` holds objects for names: `models` (modules), `processor`, `data`, `files` (arrays).
    """
    study = find_study(study) if isinstance(study, str) else study
    if not isinstance(settings, Settings):
        settings = study.settings.check(settings, command=study.name)
    machine, folder = machine or Machine(), None if out is None else Path(out)
    if machine.shard is not None:
        parse_shard(machine.shard)
        if study.collect is None:
            raise UsageError(
                f"`{study.name}` does not read data in passes, so it has no shards", do="leave out --shard"
            )
    here = engine() if study.collect is not None else Local()
    with stoppable(), _threads(machine):
        finished = None
        if folder is not None:
            finished = here.agreed(_look(study, settings, folder, existing, machine) if here.chief else None)
        if finished is not None:
            return Measurement.of_run(finished)
        job = Job(study, settings, machine, folder, given or {}, here)
        return _carry_out(job)


def _look(study: Study, settings: Settings, folder: Path, existing: Existing, machine: Machine) -> Run | None:
    """The finished run to use again, checked, or None."""
    found = find_existing(folder, command=study.name, settings=settings.as_dict(), existing=existing)
    if found is None:
        return None
    if found.manifest.get("shard") != machine.shard:
        raise StoreError(
            "the folder holds another shard", where=folder, got=found.manifest.get("shard") or "the whole",
            expected=machine.shard or "the whole", do="choose another --out",
        )  # fmt: skip
    changed = changed_inputs(found, study, settings, machine)
    if changed:
        raise StoreError(
            f"{changed[0]} changed since this run was made", where=folder, got="; ".join(changed),
            do="choose another --out, or --existing replace to measure again",
        )  # fmt: skip
    return found


def _carry_out(job: Job) -> Measurement:
    started, study = time.monotonic(), job.study
    with locked(job.folder, active=job.engine.chief) as take_lock:

        def begun() -> None:
            if job.folder is not None and job.engine.chief:
                take_lock()
                begin(job.folder, command=study.name, settings=job.settings.as_dict(), in_memory=in_memory(job))

        job.begin = begun
        collected: Collected = {}
        if study.collect is not None and job.machine.engine == "ray" and job.unit is None:
            from anisoscope.runs.work.ray_engine import collect_on_ray

            collected = collect_on_ray(job)
        elif study.collect is not None:
            collected = study.collect(job)
        if not job.engine.chief:
            return Measurement((), "")
        if study.collect is not None:
            assert study.conclude is not None
            findings = study.conclude(job.settings, collected)
        else:
            assert study.measure is not None
            findings = study.measure(job)
        begun()
        measurement = assemble(study, job.settings, findings, collected, job=job)
        if job.folder is None:
            return measurement
        run = measurement.save(job.folder, seconds=time.monotonic() - started)
    return Measurement.of_run(run)


def assemble(
    study: Study, settings: Settings, findings: Findings, collected: Collected, *, job: Job | None = None, **extra: Any
) -> Measurement:
    """The measurement of what was found, with what has to be said about it."""
    check_counts(collected)
    several = len(collected) > 1
    said = [
        f"{label}: {note}" if several else note
        for label, part in collected.items()
        for note in (*part.about.get("notes", ()), *lost(report_of(part.about)))
    ]
    notes = [*said, *(job.notes if job else ()), *(job.source_notes() if job else ()), *findings.notes]
    for part in collected.values():
        for sums in part.sums.values():
            sums.seal()
    return Measurement(
        tuple(findings.rows),
        findings.verdict,
        tuple(dict.fromkeys([*notes, *extra.pop("notes", ())])),
        None,
        study.name,
        settings.as_dict(),
        findings.protocol or {label: part.about.get("protocol", {}) for label, part in collected.items()},
        findings.data or {label: _data(part.about) for label, part in collected.items()},
        findings.arrays,
        state_of(collected) if study.keeps_sums or (job and job.machine.shard) else {},
        model=findings.model or {label: part.about.get("model", {}) for label, part in collected.items()},
        verdicts=tuple(findings.verdicts),
        **{
            "inputs": {} if job is None else job.inputs,
            "about": {label: part.about for label, part in collected.items()},
            "shard": None if job is None else job.machine.shard,
            "in_memory": () if job is None else in_memory(job),
            **extra,
        },
    )


def _data(about: Mapping[str, Any]) -> dict[str, Any]:
    return {**about.get("data", {}), **report_of(about)}


def in_memory(job: Job) -> tuple[str, ...]:
    """The settings whose values were objects, which no file can repeat."""
    return tuple(sorted(name for name, value in job.given.items() if value is not None))


@contextmanager
def _threads(machine: Machine) -> Iterator[None]:
    """Within this context torch uses as many threads as the machine says."""
    if machine.threads is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(machine.threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# -- used again? -------------------------------------------------------------------------------------------------------


def changed_inputs(run: Run, study: Study, settings: Settings, machine: Machine) -> list[str]:
    """What the run read and is not what it was: models and data, by name. Runs of format 1 know no inputs."""
    job = Job(study, settings, machine)
    return [
        words
        for key, record in run.manifest.get("inputs", {}).items()
        if (words := _change(job, key, record)) is not None
    ]


def _change(job: Job, key: str, record: Mapping[str, Any]) -> str | None:
    if str(record.get("name", "")).startswith(IN_MEMORY) or record.get("in_memory"):
        return None
    if record["kind"] == "model":
        files = changed_files(record, job)
        return f"the model {record['name']} ({', '.join(files[:3])})" if files else None
    if record["kind"] == "run":
        now = hashlib.sha256((Path(record["name"]) / "manifest.json").read_bytes()).hexdigest()
        return None if now == record["fingerprint"] else f"the run {record['name']}"
    if record["kind"] == "file":
        path = Path(record["name"])
        same = path.is_file() and file_sha256(path) == record["fingerprint"]
        return None if same else f"the file {path}"
    field = key.partition(" ")[0]
    if record["kind"] == "vectors":
        options = {name: getattr(job.settings, name) for name in ("column", "group") if hasattr(job.settings, name)}
        now = job.vectors(field, **(options if field == "files" else {"column": options.get("column")})).fingerprint()
    else:
        now = job.source(record["modality"], field=field).fingerprint()
    return None if now == record["fingerprint"] else f"the data {record['name']}"


def default_folder(study: Study, settings: Settings, machine: Machine | None = None) -> Path:
    """Where a run goes without `--out`: a name that tells what it is, and a hash of settings and local files."""
    shard = None if machine is None else machine.shard
    text = json.dumps([study.name, settings.as_dict(), _stamps(settings), shard], sort_keys=True)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", study.subject(settings)).strip("-.")[:48]
    return RUNS / "-".join(filter(None, (study.name, readable, digest)))


def input_paths(settings: Settings) -> list[str]:
    """The files and folders that the settings name, which a run must not write over."""
    found: list[str] = []
    for name, field in type(settings).model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, Mapping) and extra.get("paths"):
            value = getattr(settings, name)
            found += [value] if isinstance(value, str) else list(value or ())
    return found


def _stamps(settings: Settings) -> list[Any]:
    """Size and time of the local files that are named: edited data gets a folder of its own."""
    stamps = []
    for path in map(Path, input_paths(settings)):
        try:
            if path.is_file():
                stamps.append([path.stat().st_size, path.stat().st_mtime_ns])
        except (OSError, ValueError):
            continue
    return stamps


def plan_of(path: Path) -> tuple[Study, Settings]:
    """The study and the settings that a run.toml describes; refuses one of objects that were in memory."""
    from anisoscope.runs.store import read_plan

    plan = read_plan(path)
    study = find_study(str(plan["command"]))
    memory: Sequence[str] = plan.get("in_memory", ())
    if memory:
        raise UsageError(
            "this run was made from objects in memory and cannot be repeated from its file", where=path,
            got=", ".join(memory), do="call the Python function again with the same objects",
        )  # fmt: skip
    return study, study.settings.check(plan.get("settings", {}), command=study.name, where=path)
