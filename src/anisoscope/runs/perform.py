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
from contextlib import contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError, ModelError, StoreError, UsageError
from anisoscope.inputs.files import stamp
from anisoscope.runs.changes import changed_inputs, other_inputs
from anisoscope.runs.job import Job
from anisoscope.runs.locking import locked
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.settings import Machine, Settings
from anisoscope.runs.stopping import stoppable
from anisoscope.runs.store import (
    Existing,
    Run,
    abandon,
    begin,
    check_out,
    checked_existing,
    find_existing,
    open_run,
    remove_run,
)
from anisoscope.runs.study import Findings, Study, find_study, lost
from anisoscope.runs.work.collected import Collected, Part, check_counts, report_of, state_of
from anisoscope.runs.work.engines import Local, engine
from anisoscope.runs.work.units import parse_shard
from anisoscope.runs.writing import check_target

RUNS = Path("anisoscope-runs")


def perform(
    study: Study | str,
    settings: Settings | Mapping[str, Any],
    *,
    machine: Machine | None = None,
    out: Path | str | None = None,
    existing: Existing = "resume",
    given: Mapping[str, Any] | None = None,
    repeats: Mapping[str, Any] | None = None,
) -> Measurement:
    """Carry out a study. Without `out` nothing is written and the measurement is in memory only.

    `given` holds objects for names: `models` (modules), `processor`, `data`, `files` (arrays). `repeats` holds the
    `inputs` of the run that is being repeated: whatever is no longer the same is noted.
    """
    study = find_study(study) if isinstance(study, str) else study
    if not isinstance(settings, Settings):
        settings = study.settings.check(settings, command=study.name)
    machine, folder = machine or Machine(), None if out is None else Path(out)
    checked_existing(existing)
    if folder is not None:
        check_out(folder, input_paths(settings))
    for path, kind in _written(settings):
        check_target(path, kind=kind, inputs=input_paths(settings), out=folder)
    if machine.shard is not None:
        parse_shard(machine.shard)
        if study.collect is None:
            raise UsageError(
                f"`{study.name}` does not read data in passes, so it has no shards", do="leave out --shard"
            )
    here = engine() if study.collect is not None else Local()
    machine = machine.model_copy(update={"device": here.device(machine.device)})
    with stoppable(), _threads(machine):
        job, finished = Job(study, settings, machine, folder, given or {}, here, repeats=repeats or {}), None
        if folder is not None:
            finished = here.agreed(_look(job, folder, existing) if here.chief else None)
        replaced = existing == "replace"
        measurement = _carry_out(job, replaced=replaced) if finished is None else Measurement.of_run(finished)
        if study.export is not None and here.chief:
            study.export(settings, measurement)
        return measurement


def _look(job: Job, folder: Path, existing: Existing) -> Run | None:
    """The finished run to use again, checked, or None. Several processes take away what is to be replaced before any of
    them begins; one does so when its input was found to be readable."""
    asked, kind = job.settings.as_dict(), type(job.settings)
    known = {"command": job.study.name, "read": lambda old: kind.check(old).as_dict()}
    found = find_existing(folder, settings=asked, existing=existing, **known)
    if existing == "replace" and job.engine.world > 1:
        with locked(folder) as take_lock:
            take_lock()
            remove_run(folder)
    if found is None:
        return None
    before, now = (shard or "the whole" for shard in (found.manifest.get("shard"), job.machine.shard))
    if before != now:
        do = "choose another --out"
        raise StoreError("the folder holds another shard", where=folder, got=before, expected=now, do=do)
    changed = changed_inputs(found, Job(job.study, job.settings, job.machine, given=job.given))
    if changed:
        do = "choose another --out, or --existing replace to measure again"
        raise StoreError(f"{changed[0]} changed since this run was made", where=folder, got="; ".join(changed), do=do)
    return found


def _carry_out(job: Job, *, replaced: bool = False) -> Measurement:
    """Collect or measure, conclude, write; leaves no folder behind where nothing was saved."""
    started, writes = time.monotonic(), job.folder is not None and job.engine.chief
    with locked(job.folder, active=writes) as take_lock:

        def begun() -> None:
            if job.folder is not None and writes:
                take_lock()
                if replaced and job.engine.world == 1 and not made:
                    remove_run(job.folder)
                made.append(job.folder)
                begin(job.folder, command=job.study.name, settings=job.settings.as_dict(), in_memory=in_memory(job))

        made: list[Path] = []
        job.begin = begun
        try:
            collected, findings = _found(job)
            if findings is None:
                return Measurement((), "")
            begun()
            measurement = assemble(job.study, job.settings, findings, collected, job=job)
            if job.folder is None:
                return measurement
            return Measurement.of_run(measurement.save(job.folder, seconds=time.monotonic() - started))
        except BaseException:
            for folder in made[:1]:
                abandon(folder)
            raise


def _found(job: Job) -> tuple[Collected, Findings | None]:
    """What the study collected and found; no findings in a process that only helps."""
    study = job.study
    if study.collect is None:
        assert study.measure is not None
        return {}, study.measure(job)
    if job.machine.engine == "ray":
        from anisoscope.runs.work.ray_engine import collect_on_ray

        collected = collect_on_ray(job)
    else:
        collected = study.collect(job)
    return collected, _concluded(job, collected) if job.engine.chief else None


def _concluded(job: Job, collected: Collected) -> Findings:
    """What the sums say. Those of a shard count in `merge`, even where alone they are too few to say anything."""
    assert job.study.conclude is not None
    try:
        return job.study.conclude(job.settings, collected)
    except (InputError, ModelError) as error:
        if job.machine.shard is None:
            raise
        return Findings((), "", notes=[f"this shard alone says nothing ({error.what}); its sums count in `merge`"])


def assemble(
    study: Study, settings: Settings, findings: Findings, collected: Collected, *, job: Job | None = None, **extra: Any
) -> Measurement:
    """The measurement of what was found, with its notes."""
    check_counts(collected)
    about = {label: {**part.about, **_notes_of(label, part, findings)} for label, part in collected.items()}
    shard = job.machine.shard if job else None
    said = [
        f"{label}: {note}" if label and len(collected) > 1 else note
        for label, part in ({} if findings.gathered else collected).items()
        for note in (*about[label].get("notes", ()), *lost(report_of(part.about)))
    ]
    of_job = [*other_inputs(job.repeats, job.inputs), *job.notes, *job.source_notes()] if job else []
    notes = [*said, *of_job, *findings.notes]
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
        findings.data
        or {label: part.about.get("data", {}) | report_of(part.about) for label, part in collected.items()},
        findings.arrays,
        state_of(collected) if study.keeps_sums or shard else {},
        model=findings.model or {label: part.about.get("model", {}) for label, part in collected.items()},
        verdicts=tuple(findings.verdicts),
        **{
            "inputs": {} if job is None else job.inputs,
            "about": {label: part.about for label, part in collected.items()} if shard else about,
            "shard": shard,
            "remarks": tuple(of_job),
            "in_memory": () if job is None else in_memory(job),
            **extra,
        },
    )


def in_memory(job: Job) -> tuple[str, ...]:
    """The settings whose values were objects, which no file can repeat."""
    return tuple(sorted(name for name, value in job.given.items() if value is not None))


@contextmanager
def _threads(machine: Machine) -> Iterator[None]:
    """Inside, as many threads work as the machine says."""
    if machine.threads is None:
        yield
        return
    from anisoscope.accumulate.threads import use_threads

    with use_threads(machine.threads):
        yield


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


def _written(settings: Settings) -> Iterator[tuple[Path, str]]:
    """The files that the settings ask for beside the run, and the kind of each."""
    for name, field in type(settings).model_fields.items():
        extra, value = field.json_schema_extra, getattr(settings, name)
        if isinstance(extra, Mapping) and extra.get("writes") and value is not None:
            yield Path(value), str(extra["writes"])


def _stamps(settings: Settings) -> list[Any]:
    """The stamps of the local files that are named: edited data gets a folder of its own."""
    stamps = []
    for path in map(Path, input_paths(settings)):
        with suppress(OSError, ValueError, InputError):
            if path.is_file():
                stamps.append(astuple(stamp(path)))
    return stamps


def plan_of(path: Path) -> tuple[Study, Settings]:
    """The study and the settings that a run.toml describes; refuses one of objects that were in memory."""
    from anisoscope.runs.store import read_plan

    plan = read_plan(path)
    study = find_study(str(plan["command"]))
    memory: Sequence[str] = plan.get("in_memory", ())
    if memory:
        raise UsageError(
            "this run was made from objects in memory and cannot be repeated from its file",
            where=path,
            got=", ".join(memory),
            do="call the Python function again with the same objects",
        )
    return study, study.settings.check(plan.get("settings", {}), command=study.name, where=path)


def inputs_of(plan: Path) -> Mapping[str, Any]:
    """What the run of this plan read; empty where there is no such run, or none that can be read."""
    with suppress(StoreError):
        return open_run(plan.parent).manifest.get("inputs", {})
    return {}


def _notes_of(label: str, part: Part, findings: Findings) -> dict[str, list[str]]:
    """The notes on one model: of its pass, and of what was found in its sums."""
    notes = dict.fromkeys([*part.about.get("notes", ()), *findings.notes_of.get(label, ())])
    return {"notes": list(notes)} if notes else {}
