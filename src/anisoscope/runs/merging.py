"""Add up the runs of shards: refuse what does not fit, name what is missing, then conclude from the sums of all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anisoscope.errors import StoreError, UsageError
from anisoscope.runs.locking import locked
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.perform import assemble
from anisoscope.runs.store import (
    Existing,
    Run,
    abandon,
    check_out,
    checked_existing,
    find_existing,
    open_run,
    remove_run,
)
from anisoscope.runs.study import Study, find_study
from anisoscope.runs.work.collected import Collected, add_part, load_parts
from anisoscope.runs.work.units import parse_shard


def merge_runs(runs: Sequence[Path | str | Run], out: Path | str, *, existing: Existing = "refuse") -> Measurement:
    """The run of one pass over all the data, from the runs of its shards in any order."""
    started, out = time.monotonic(), Path(out)
    opened = [run if isinstance(run, Run) else open_run(run) for run in runs]
    check_out(out, [run.folder for run in opened])
    study, first = _checked(opened), opened[0]
    settings = study.settings.check(first.manifest["settings"], command=study.name, where=first.folder)
    find_existing(out, command=study.name, settings=settings.as_dict(), existing=checked_existing(existing))
    collected: Collected = {}
    for run in opened:
        for label, part in collected_of(run, study).items():
            add_part(collected, label, part)
    assert study.conclude is not None
    findings = study.conclude(settings, collected)
    remarks = (run.manifest.get("remarks", run.manifest["notes"]) for run in opened)  # earlier versions had only notes
    notes = [*_versions(opened), *(remark for several in remarks for remark in several)]
    inputs = {key: record for run in opened for key, record in run.manifest["inputs"].items()}
    found = assemble(study, settings, findings, collected, notes=notes, inputs=inputs)
    with locked(out) as take:
        take()
        if existing == "replace":
            remove_run(out)
        try:
            return Measurement.of_run(found.save(out, seconds=time.monotonic() - started))
        except BaseException:
            abandon(out)
            raise


def collected_of(run: Run, study: Study) -> Collected:
    """The sums that a run kept, with what is known about them."""
    about = run.manifest.get("about") or {}
    state = run.state()
    if not state:
        raise UsageError("this run kept no sums to add", where=run.folder, do="make it again with --shard")
    parts = load_parts(state, list(about), study.kinds())
    for label, part in parts.items():
        part.about = dict(about[label])
    return parts


def _checked(runs: Sequence[Run]) -> Study:
    """The study of the shards; an error that names what differs, is missing or is there twice."""
    if not runs:
        raise UsageError("there is nothing to merge")
    first = runs[0]
    study = find_study(first.command)
    if study.collect is None:
        raise UsageError(f"runs of `{study.name}` cannot be merged", where=first.folder)
    for run in runs[1:]:
        for name, what in (("command", "command"), ("settings", "settings")):
            if run.manifest[name] != first.manifest[name]:
                raise StoreError(f"the shards have different {what}", where=run.folder, **_differing(first, run, name))
        for key, record in run.manifest["inputs"].items():
            other = first.manifest["inputs"].get(key, record)
            if record.get("fingerprint") != other.get("fingerprint"):
                raise StoreError(f"the shards read another {record['kind']}", where=run.folder, got=record["name"])
    _check_complete(runs)
    return study


def _versions(runs: Sequence[Run]) -> list[str]:
    """A note where the shards were not all made by the same versions."""
    found = [run.manifest.get("versions", {}) for run in runs]
    of = {
        name: sorted({str(one.get(name, "unknown")) for one in found})
        for name in dict.fromkeys(k for one in found for k in one)
    }
    mixed = [f"{name} {', '.join(several)}" for name, several in of.items() if len(several) > 1]
    return [f"the shards were made with different versions: {'; '.join(mixed)}"] if mixed else []


def _differing(first: Run, other: Run, name: str) -> dict[str, Any]:
    before, now = first.manifest[name], other.manifest[name]
    if not isinstance(before, dict):
        return {"got": now, "expected": before}
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return {"got": "; ".join(f"{k} = {now.get(k)!r}" for k in keys), "expected": f"as in {first.folder}"}


def _check_complete(runs: Sequence[Run]) -> None:
    shards = [run.manifest.get("shard") for run in runs]
    if None in shards:
        where = runs[shards.index(None)].folder
        raise UsageError("this is a run of the whole, not of a shard", where=where, expected="runs made with --shard")
    units = [parse_shard(str(shard)) for shard in shards]
    of = {unit.of for unit in units}
    if len(of) > 1:
        raise UsageError(
            "the shards belong to different splits", got=", ".join(map(str, shards)), expected="one N in I/N"
        )
    n, present = of.pop(), [unit.index for unit in units]
    missing = [f"{i}/{n}" for i in range(n) if i not in present]
    twice = sorted({f"{i}/{n}" for i in present if present.count(i) > 1})
    if missing or twice:
        words = ([f"missing: {', '.join(missing[:8])}"] if missing else []) + (
            [f"there twice: {', '.join(twice[:8])}"] if twice else []
        )
        raise StoreError(
            "the shards are not complete", got="; ".join(words), expected=f"each of 0/{n} … {n - 1}/{n} once"
        )
