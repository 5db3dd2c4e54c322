"""`anisoscope sweep`: the checkpoints of a training, one pass each over the same tokens.

    sweep_series(SweepSettings(series="multiberts", steps="log", data=["wikitext.txt"], limit=128))

A pass takes hidden states and attention together. While a checkpoint runs, the next is opened by another thread. Each
finished checkpoint is a small run of its own under `partial/`, so a killed sweep loses at most one of them, and ends
with the numbers of an uninterrupted one. A checkpoint that is missing or broken is listed in the notes, and the sweep
goes on; so are checkpoints whose weights look wrong (`models.checkpoints.suspicious`) or that saw other tokens.

What runs over all steps at the end, the planes of queries and keys, is in `dynamics`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from anisoscope.errors import InputError, ModelError, UsageError
from anisoscope.models.checkpoints import Checkpoint, Series, Weights, describe, fingerprint, open_series, suspicious
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.plan import default_folder, reuse_or_begin
from anisoscope.runs.store import Existing, Run, open_run, write_run
from anisoscope.runs.table import Row
from anisoscope.studies.attention.study import ReadingSettings, check_same_data, tracked
from anisoscope.studies.measure.study import Machine, open_data, site_rows
from anisoscope.studies.sweep.dynamics import kept_of, null_sds, series_arrays, verdict_on

if TYPE_CHECKING:
    from anisoscope.inputs.sources import Source
    from anisoscope.models.batches.plan import Batches
    from anisoscope.models.open import OpenModel
    from anisoscope.studies.attention.sums import AttentionSums

PARTS = ("hidden", "attention", "vocabulary")
EMBEDDED = "embedded"  # the name of the series that the package carries


class SweepSettings(ReadingSettings):
    """What `anisoscope sweep` does."""

    command = "sweep"

    series: str
    steps: str = "all"
    seeds: list[int] | None = None
    sites: list[str] = Field(default_factory=lambda: ["hidden", "attention"])
    specials: str = "keep"
    spectrum: bool = False


def sweep_series(
    settings: SweepSettings, *, machine: Machine | None = None, out: Path | None = None, existing: Existing = "resume"
) -> Measurement:
    """Measure every checkpoint of a series and keep the run."""
    unknown = sorted(set(settings.sites) - set(PARTS))
    if unknown or not settings.sites:
        raise UsageError("unknown sites to sweep", got=", ".join(unknown) or "none", expected=", ".join(PARTS))
    series = find_series(settings)
    folder = out or default_folder(settings, name=series.name)
    finished = reuse_or_begin(folder, settings, existing=existing)
    if finished is not None:
        check_same_data(finished, settings)
        return Measurement.of_run(finished)
    started = time.monotonic()
    parts, failed = _measure_all(series, settings, machine or Machine(), folder / "partial")
    if not parts:
        raise ModelError(
            "no checkpoint of the series could be measured", where=series.name, got=(*failed, "nothing was tried")[0]
        )
    return Measurement.of_run(_joined(series, parts, failed, settings, folder, seconds=time.monotonic() - started))


def find_series(settings: SweepSettings) -> Series:
    """The series of the settings; `embedded` is the one inside the package."""
    where: str | Path = settings.series
    if where == EMBEDDED:
        from anisoscope.models.embedded_series import EMBEDDED as where
    found = open_series(where, steps=settings.steps, seeds=settings.seeds)
    return replace(found, name="embedded series") if settings.series == EMBEDDED else found


def _measure_all(
    series: Series, settings: SweepSettings, machine: Machine, folder: Path
) -> tuple[dict[Checkpoint, Run], list[str]]:
    """The finished part of every checkpoint that could be measured, and what happened to the others."""
    places = {
        checkpoint: folder / f"seed-{checkpoint.seed}-step-{checkpoint.step}" for checkpoint in series.checkpoints
    }
    parts = {one: open_run(place) for one, place in places.items() if (place / "manifest.json").exists()}
    for part in parts.values():
        check_same_data(part, settings)
    failed: list[str] = []
    source: Source | None = None
    todo = [checkpoint for checkpoint in series.checkpoints if checkpoint not in parts]
    for checkpoint, opened in _opened_ahead(todo, settings, machine):
        try:
            loaded = opened()
            source = source or open_data(settings.measuring(), loaded.model.modality)
            parts[checkpoint] = _measure(checkpoint, loaded, source, series, settings, machine, places[checkpoint])
        except (ModelError, InputError) as error:
            failed.append(f"{describe(checkpoint)}: {str(error).splitlines()[0]}")
    return {checkpoint: parts[checkpoint] for checkpoint in series.checkpoints if checkpoint in parts}, failed


@dataclass(frozen=True)
class _Loaded:
    model: OpenModel
    weights: Weights


def _opened_ahead(
    todo: Sequence[Checkpoint], settings: SweepSettings, machine: Machine
) -> Iterator[tuple[Checkpoint, Callable[[], _Loaded]]]:
    """Each checkpoint with a function that gives it opened, or raises; the next one is opened meanwhile.

    The library changes torch's default precision while it opens a model in another one, for all threads: such models
    are opened one after the other.
    """
    ahead = settings.dtype == "float32"
    with ThreadPoolExecutor(1) as loader:
        pending: Future[_Loaded] | None = None
        for place, checkpoint in enumerate(todo):
            current = pending or loader.submit(_load, checkpoint, settings, machine)
            current.exception()  # wait: one model is opened at a time
            more = ahead and place + 1 < len(todo)
            pending = loader.submit(_load, todo[place + 1], settings, machine) if more else None
            yield checkpoint, current.result
            del current


def _load(checkpoint: Checkpoint, settings: SweepSettings, machine: Machine) -> _Loaded:
    from anisoscope.models.open import open_model

    model = open_model(
        checkpoint.model, revision=checkpoint.revision, dtype=settings.dtype, device=machine.device,
        trust_remote_code=machine.trust_remote_code, models_dir=machine.models_dir,
        head="vocabulary" in settings.sites,
    )  # fmt: skip
    return _Loaded(model, fingerprint(model.module))


def _measure(
    checkpoint: Checkpoint, loaded: _Loaded, source: Source, series: Series, settings: SweepSettings, machine: Machine,
    folder: Path,
) -> Run:  # fmt: skip
    """One pass over one checkpoint, kept as a run of its own."""
    from anisoscope.models.batches.plan import make_batches
    from anisoscope.studies.attention.rows import attention_rows

    started, model = time.monotonic(), loaded.model
    batches = make_batches(
        model, source, length=settings.length, batch_tokens=machine.batch_tokens, limit=settings.limit
    )
    found = _pass(model, batches, settings, machine, what=f"{series.name}, {describe(checkpoint)}")
    protocol = {**batches.protocol, **found.protocol, "dtype": settings.dtype, "data": source.name}
    like = Row(protocol="; ".join(f"{key}: {value}" for key, value in protocol.items()))
    rows, notes, arrays = found.rows, found.notes, {"weights.sketch": loaded.weights.sketch}
    if found.attention is not None:
        rows += attention_rows(found.attention.heads, found.attention.rows, like=like)
        arrays |= kept_of(found.attention.heads)
    if "vocabulary" in settings.sites:
        from anisoscope.studies.vocabulary import vocabulary_study

        rows += vocabulary_study([(checkpoint.step, model)]).rows
    column = {"model": series.name, "revision": checkpoint.revision, "step": checkpoint.step, "seed": checkpoint.seed}
    about = {
        "modality": model.modality,
        "family": model.family,
        "sha256": loaded.weights.sha256,
        "notes": list(model.notes),
    }
    return write_run(
        folder, command="checkpoint", settings={"step": checkpoint.step},
        rows=[replace(row, **column) for row in rows], protocol=protocol, arrays=arrays,
        data={"name": source.name, "fingerprint": source.fingerprint(), **vars(batches.report)}, model=about,
        notes=notes, seconds=time.monotonic() - started,
    )  # fmt: skip


@dataclass(frozen=True)
class _Passed:
    rows: list[Row]
    notes: list[str]
    protocol: dict[str, Any]
    attention: AttentionSums | None


def _pass(model: OpenModel, batches: Batches, settings: SweepSettings, machine: Machine, *, what: str) -> _Passed:
    """Hidden states and attention of a model in one pass; the rows are those of the hidden states."""
    from anisoscope.runs.engine import SiteMoments, SumSettings
    from anisoscope.studies.attention.sums import AttentionSums, measure_attention

    attention = AttentionSums(settings.before_rotary, settings.sample, settings.seed)
    if "hidden" not in settings.sites:
        if "attention" not in settings.sites:
            return _Passed([], [], {}, None)
        options = {"before_rotary": settings.before_rotary, "sample": settings.sample, "seed": settings.seed}
        attention = measure_attention(model, tracked(batches, what), **options)
        return _Passed([], [], {"attention": attention.protocol}, attention)
    measuring = settings.measuring(specials=settings.specials, spectrum=settings.spectrum)
    capture = _hidden_capture(model, batches, settings)
    sample = measuring.sample if settings.spectrum else 0
    moments = SiteMoments(SumSettings(settings.spectrum, sample, settings.seed, machine.device))
    for _, batch in tracked(batches, what):
        moments.begin(batch)
        if "attention" in settings.sites:
            with attention.watch(model.module, batch):
                capture.run(batch, moments.take)
        else:
            capture.run(batch, moments.take)
    protocol = {**capture.protocol, "pairs": "all pairs of different vectors"}
    protocol |= {"attention": attention.protocol} if "attention" in settings.sites else {}
    order = {site.name: moments.by_site[site.name] for site in capture.sites if site.name in moments.by_site}
    rows, notes = site_rows(model, capture.sites, order, measuring, protocol)
    return _Passed(rows, [*capture.notes, *notes], protocol, attention if "attention" in settings.sites else None)


def _hidden_capture(model: OpenModel, batches: Batches, settings: SweepSettings) -> Any:
    """The capture of hidden states. It checks an architecture that it had to guess with passes of its own, which must
    not be counted as attention: they are made here, before."""
    from anisoscope.capture.hidden import HiddenCapture
    from anisoscope.capture.sites import map_sites

    capture = HiddenCapture(model.module, specials=settings.specials)  # pyright: ignore  # checked there
    if not map_sites(model.module).known:
        capture.run(next(batches.iterate())[1], lambda *_: None)
    return capture


def _joined(
    series: Series, parts: dict[Checkpoint, Run], failed: list[str], settings: SweepSettings, folder: Path, *,
    seconds: float,
) -> Run:  # fmt: skip
    """The run of the whole sweep: all rows, the planes of each seed, and what has to be said."""
    rows = [replace(row, run="") for part in parts.values() for row in part.rows()]
    arrays: dict[str, np.ndarray] = {}
    for seed in dict.fromkeys(checkpoint.seed for checkpoint in parts):
        mine = {checkpoint.step: part for checkpoint, part in parts.items() if checkpoint.seed == seed}
        files = [part.folder / "arrays.safetensors" for part in mine.values()]
        arrays |= {f"seed-{seed}/{name}": array for name, array in series_arrays(list(mine), files).items()}
    manifests = {checkpoint: part.manifest for checkpoint, part in parts.items()}
    first = next(iter(manifests.values()))
    checkpoints = [{**vars(one), "sha256": manifest["model"]["sha256"]} for one, manifest in manifests.items()]
    about = {"series": series.name, "modality": first["model"]["modality"], "family": first["model"]["family"]}
    return write_run(
        folder, command=settings.command, settings=settings.as_dict(), rows=rows, arrays=arrays,
        protocol=first["protocol"], data=first["data"], notes=_notes(series, parts, failed), seconds=seconds,
        model={**about, "checkpoints": checkpoints},
        verdict=verdict_on(rows, null_sds(arrays)),
    )  # fmt: skip


def _notes(series: Series, parts: dict[Checkpoint, Run], failed: list[str]) -> list[str]:
    """What is missing, what looks wrong, who saw other tokens; then what each checkpoint had to say, once."""
    notes = [f"missing: {what}" for what in (*series.missing, *failed)]
    weights = [
        (one, Weights(part.manifest["model"]["sha256"], part.arrays()["weights.sketch"])) for one, part in parts.items()
    ]
    notes += [f"suspicious: {alarm}" for alarm in suspicious(weights)]
    tokens = {one: part.manifest["data"]["tokens"] for one, part in parts.items()}
    usual = max(tokens.values(), key=list(tokens.values()).count)
    notes += [f"{describe(one)} read {n} tokens, others {usual}" for one, n in tokens.items() if n != usual]
    said: dict[str, list[Checkpoint]] = {}
    for checkpoint, part in parts.items():
        for note in (*part.manifest["model"]["notes"], *part.manifest["notes"]):
            said.setdefault(note, []).append(checkpoint)
    return notes + [note if len(who) == len(parts) else f"{describe(who[0])}: {note}" for note, who in said.items()]
