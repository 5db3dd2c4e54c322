"""The checkpoints of a series: opened one ahead, summed one after the other, then reported together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anisoscope.errors import InputError, ModelError
from anisoscope.inference.extremes import SAMPLED
from anisoscope.models.checkpoints import Checkpoint, Series, Weights, describe, fingerprint, open_series, suspicious
from anisoscope.runs.array_names import name_of, pack_texts
from anisoscope.runs.job import Job
from anisoscope.runs.study import Findings, lost
from anisoscope.runs.table import Row
from anisoscope.runs.work.collected import Collected, Part, report_of
from anisoscope.studies.attention import attention_context, attention_sums
from anisoscope.studies.attention.rows import attention_rows, layers_of
from anisoscope.studies.measure.hidden import (
    SiteRows,
    embedding_sums,
    hidden_sums,
    kept_texts,
    logits_rows,
    output_sums,
    site_rows,
    smaller_batches,
)
from anisoscope.studies.sweep.dynamics import series_arrays, sites_of_heads
from anisoscope.studies.sweep.story import training_verdict

if TYPE_CHECKING:
    from anisoscope.models.open import OpenModel

SAMPLE = 4096  # vectors kept at each site where the spectrum is measured


@dataclass(frozen=True)
class _Loaded:
    model: OpenModel
    weights: Weights


def find_series(settings: Any) -> Series:
    """The series of the settings; `embedded` is the one inside the package."""
    where: str | Path = settings.series
    if where == "embedded":
        from anisoscope.models.embedded_series import EMBEDDED as where
    seeds = None if settings.seeds is None else tuple(settings.seeds)
    found = open_series(where, steps=settings.steps, seeds=seeds)
    return replace(found, name="embedded series") if settings.series == "embedded" else found


def collect_series(job: Job) -> Collected:
    """One pass for each checkpoint; those that cannot be opened or run are noted and passed over."""
    series = find_series(job.settings)
    parts: Collected = {}
    failed: list[str] = []
    names = {label_of(one): one for one in series.checkpoints if job.only in (None, label_of(one))}
    for label in names:
        kept = job.kept(label, lambda: _observers(None, job))
        if kept is not None:
            parts[label] = kept
    todo = [checkpoint for label, checkpoint in names.items() if label not in parts]
    started = time.monotonic()
    for done, (checkpoint, opened) in enumerate(_opened_ahead(todo, job)):
        label, place = label_of(checkpoint), _place(done, len(todo), time.monotonic() - started)
        try:
            parts[label] = _checkpoint(job, series, checkpoint, label, opened(), place)
        except (ModelError, InputError) as error:
            failed.append(f"{describe(checkpoint)}: {str(error).splitlines()[0]}")
    if not parts and job.only is None:
        first = (*failed, *series.missing, "nothing was tried")[0]
        raise ModelError("no checkpoint of the series could be measured", where=series.name, got=first)
    job.notes += [f"missing: {what}" for what in (*series.missing, *failed)]
    return {label: parts[label] for label in names if label in parts}


def _place(done: int, of: int, gone: float) -> str:
    """How far a series has come, and the time left once one checkpoint has shown how long it takes.

    >>> _place(0, 4, 0.1), _place(1, 4, 100.0)
    (', 1 of 4', ', 2 of 4 (300 s left)')
    """
    return f", {done + 1} of {of}" + (f" ({gone / done * (of - done):.0f} s left)" if done else "")


def label_of(checkpoint: Checkpoint) -> str:
    return f"seed-{checkpoint.seed}-step-{checkpoint.step}"


def _observers(model: OpenModel | None, job: Job) -> dict[str, Any]:
    """What is looked at; without a model, empty collections to read sums with."""
    from anisoscope.runs.work.observers import HiddenSums
    from anisoscope.runs.work.observers.embeddings import EmbeddingSums
    from anisoscope.runs.work.observers.outputs import OutputSums

    settings, found = job.settings, {}
    sample = {"sample": SAMPLED if settings.spectrum == "none" else SAMPLE}
    if "hidden" in settings.sites:
        found["hidden"] = HiddenSums() if model is None else hidden_sums(model, settings, job.machine, **sample)
    if "embedding" in settings.sites:
        options = {**sample, "spectrum": settings.spectrum != "none"}
        found["embedding"] = EmbeddingSums() if model is None else embedding_sums(model, job.machine, **options)
    if "attention" in settings.sites:
        found["attention"] = attention_sums(settings)
    if "logits" in settings.sites:
        found["output"] = OutputSums() if model is None else output_sums(model)
    return found | kept_texts(settings, capacity=4 * settings.sample, specials="keep")  # as in attention


def _checkpoint(job: Job, series: Series, checkpoint: Checkpoint, label: str, loaded: _Loaded, place: str) -> Part:
    """One pass over one checkpoint, kept on disk."""
    model = loaded.model
    changes: dict[str, Any] = {"first": job.settings.sites == ["embedding"]}
    if "logits" in job.settings.sites:
        changes |= smaller_batches(model, job.machine)
    part = job.run(label, model, lambda: _observers(model, job), place=place, **changes)
    part.about["checkpoint"] = {**asdict(checkpoint), "series": series.name, "sha256": loaded.weights.sha256}
    part.about["sketch"] = [float(entry) for entry in loaded.weights.sketch]
    if "vocabulary" in job.settings.sites and job.first_share:
        from anisoscope.studies.vocabulary.matrices import measure_vocabulary

        part.about["rows"] = [row.as_dict() for row in measure_vocabulary(model)[0]]
    return job.keep(label, part, lambda: _observers(None, job))


def _opened_ahead(todo: Sequence[Checkpoint], job: Job) -> Iterator[tuple[Checkpoint, Callable[[], _Loaded]]]:
    """Each checkpoint with a function that gives it opened, or raises; the next one is opened meanwhile.

    The library changes torch's default precision while it opens a model in another one, for all threads: such models
    are opened one after the other.
    """
    ahead = job.settings.dtype == "float32"
    with ThreadPoolExecutor(1) as loader:
        pending: Future[_Loaded] | None = None
        for place, checkpoint in enumerate(todo):
            current = pending or loader.submit(_load, checkpoint, job)
            current.exception()  # wait: one model is opened at a time
            more = ahead and place + 1 < len(todo)
            pending = loader.submit(_load, todo[place + 1], job) if more else None
            yield checkpoint, current.result
            del current


def _load(checkpoint: Checkpoint, job: Job) -> _Loaded:
    head = bool({"vocabulary", "logits"} & set(job.settings.sites))
    label = label_of(checkpoint)
    model = job.open_model(str(checkpoint.model), label=label, revision=checkpoint.revision, head=head)
    return _Loaded(model, fingerprint(model.module))


# -- told together -----------------------------------------------------------------------------------------------------


def conclude_series(settings: Any, collected: Collected) -> Findings:
    """The rows of all checkpoints, the planes of each seed, a verdict on the whole training."""
    checkpoints = {label: _written(part.about["checkpoint"]) for label, part in collected.items()}
    of_each, broken = _rows_of_each(settings, collected, checkpoints)
    collected = {label: collected[label] for label in of_each}
    checkpoints = {label: checkpoints[label] for label in of_each}
    rows: list[Row] = []
    notes: dict[str, list[str]] = {}
    verdicts: list[Mapping[str, Any]] = []
    last = max(checkpoint.step for checkpoint in checkpoints.values())
    for label, part in collected.items():
        found, about = of_each[label], part.about["checkpoint"]
        column = {name: about[name] for name in ("revision", "step", "seed")} | {"model": about["series"]}
        rows += [replace(row, run="", **column) for row in found.rows]
        verdicts += [{**one, **column} for one in found.verdicts if about["step"] == last]
        for note in (*part.about.get("notes", ()), *lost(report_of(part.about)), *found.notes):
            notes.setdefault(note, []).append(label)
    arrays: dict[str, np.ndarray] = {}
    texts: dict[str, int] = {}
    for seed in dict.fromkeys(checkpoint.seed for checkpoint in checkpoints.values()):
        mine = {label: one.step for label, one in checkpoints.items() if one.seed == seed}
        of_seed = [collected[label] for label in mine]
        found = series_arrays(list(mine.values()), of_seed, texts)
        arrays |= {f"seed-{seed}/{name}": array for name, array in found.items()}
        flat = [
            site for site in sites_of_heads([collected[label] for label in mine]) if f"{site}/query_mean" not in found
        ]
        broken += [f"no planes of queries and keys at {', '.join(flat)}: other heads at some steps"] if flat else []
    if texts:
        arrays[name_of("texts")] = pack_texts(list(texts))
    first = next(iter(collected.values())).about
    shared = [
        note if len(who) == len(collected) else f"{describe(checkpoints[who[0]])}: {note}"
        for note, who in notes.items()
    ]
    return Findings(
        rows,
        training_verdict(rows),
        arrays=arrays,
        notes=[*broken, *_alarms(checkpoints, collected), *shared],
        gathered=True,
        verdicts=verdicts,
        protocol=first["protocol"],
        data={**first["data"], **report_of(first)},
        model={
            "series": first["checkpoint"]["series"],
            "modality": first["model"]["modality"],
            "family": first["model"]["family"],
            "checkpoints": [part.about["checkpoint"] for part in collected.values()],
        },
    )


def _rows_of_each(
    settings: Any, collected: Collected, checkpoints: Mapping[str, Checkpoint]
) -> tuple[dict[str, SiteRows], list[str]]:
    """The rows of every checkpoint, and what is missing of those that are broken: weights that are not finite, say."""
    found: dict[str, SiteRows] = {}
    missing: list[str] = []
    for label, part in collected.items():
        try:
            found[label] = checkpoint_rows(settings, label, part)
        except InputError as error:
            missing.append(f"missing: {describe(checkpoints[label])}: {str(error).splitlines()[0]}")
            if len(missing) == len(collected):
                raise
    return found, missing


def checkpoint_rows(settings: Any, label: str, part: Part) -> SiteRows:
    """Hidden states, attention and vocabulary of one checkpoint, and the notes that concern them."""
    found = SiteRows()
    if {"hidden", "embedding"} & set(settings.sites):
        found = site_rows(part, label, spectrum=settings.spectrum, neighbours=False)
    if "attention" in settings.sites:
        keys = part.keys("attention")
        layers = layers_of(key.removesuffix("/heads") for key in keys if key.endswith("/heads"))
        like = attention_context(label, part)
        for site in layers:
            heads = {site: part.get("attention", f"{site}/heads")}
            seen_rows = {site: part.get("attention", f"{site}/rows")} if f"{site}/rows" in keys else {}
            found.rows += attention_rows(heads, seen_rows, like=like, layers=layers)
    if "logits" in settings.sites and "hidden" not in settings.sites:
        found.rows += logits_rows(part, attention_context(label, part))
    found.rows += [Row(**record) for record in part.about.get("rows", ())]
    return found


def _written(about: Mapping[str, Any]) -> Checkpoint:
    return Checkpoint(**{name: value for name, value in about.items() if name not in ("series", "sha256")})


def _alarms(checkpoints: Mapping[str, Checkpoint], collected: Collected) -> list[str]:
    """Weights that look wrong, and checkpoints that read other tokens than most."""
    weights = [
        (one, Weights(collected[label].about["checkpoint"]["sha256"], np.array(collected[label].about["sketch"])))
        for label, one in checkpoints.items()
    ]
    tokens = {one: report_of(collected[label].about).get("tokens") for label, one in checkpoints.items()}
    usual = max(tokens.values(), key=list(tokens.values()).count)
    return [
        *(f"suspicious: {alarm}" for alarm in suspicious(weights)),
        *(f"{describe(one)} read {n} tokens, others {usual}" for one, n in tokens.items() if n != usual),
    ]
