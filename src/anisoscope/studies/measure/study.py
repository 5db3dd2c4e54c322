"""Anisotropy by layer: one pass of a model over data, every site measured, and the drift tests over its layers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from anisoscope.errors import InputError, StoreError, UsageError
from anisoscope.inference.cloud import measure_cloud
from anisoscope.runs.measurement import Measurement, cloud_rows, verdict_of
from anisoscope.runs.plan import Settings, default_folder, reuse_or_begin
from anisoscope.runs.progress import track
from anisoscope.runs.store import Existing, Run
from anisoscope.runs.table import Row
from anisoscope.studies.measure.drift import drift_rows

if TYPE_CHECKING:
    from anisoscope.accumulate.moments import Moments
    from anisoscope.inputs.sources import Source
    from anisoscope.models.open import OpenModel


class MeasureSettings(Settings):
    """What `anisoscope measure` does. Batch size and device are not here: they change the speed, not the question."""

    command = "measure"

    models: list[str]
    revision: str | None = None
    tower: str | None = None
    modality: str | None = None
    data: list[str] = Field(default_factory=list)
    documents: str = "auto"
    column: str | None = None
    length: float | None = None
    limit: int | None = None
    sites: list[str] = Field(default_factory=lambda: ["*"])
    specials: str = "keep"
    maps: str = "positions"
    whisper_window: str = "speech"
    spectrum: bool = True
    neighbours: bool = True
    sample: int = 4096
    seed: int = 0
    dtype: str = "float32"


@dataclass(frozen=True)
class Machine:
    """Where and how fast, which no number may depend on."""

    device: str = "cpu"
    batch_tokens: int | None = None
    models_dir: Path | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Measured:
    """One model measured: rows, moments by site, and what has to be said."""

    rows: list[Row]
    moments: dict[str, Moments]
    protocol: dict[str, Any]
    data: dict[str, Any]
    model: dict[str, Any]
    notes: tuple[str, ...]

    def state(self) -> dict[str, Any]:
        """The sums of every site, as tensors to store."""
        from anisoscope.runs.engine import join_states

        return join_states(self.moments)


def measure_models(
    settings: MeasureSettings,
    *,
    machine: Machine | None = None,
    out: Path | None = None,
    existing: Existing = "resume",
) -> Measurement:
    """Measure one or several models and keep the run; a killed run continues, a finished one is used again."""
    if not settings.models:
        raise UsageError("no model was named", do="anisoscope measure MODEL, see `anisoscope models`")
    folder = out or default_folder(settings, name="+".join(Path(name).name for name in settings.models))
    machine = machine or Machine()
    finished = reuse_or_begin(folder, settings, existing=existing)
    if finished is not None:
        _check_same_data(finished, settings)
        return Measurement.of_run(finished)
    started = time.monotonic()
    measured: dict[str, Measured] = {}
    for number, name in enumerate(settings.models):
        measured[name] = measure_named(name, settings, machine, folder=folder / "partial" / f"model-{number}")
    rows = [row for one in measured.values() for row in one.rows]
    rows += drift_rows(rows)
    several = len(measured) > 1
    state = {
        (f"{name}|{key}" if several else key): tensor
        for name, one in measured.items()
        for key, tensor in one.state().items()
    }
    notes = [f"{name}: {note}" if several else note for name, one in measured.items() for note in one.notes]
    run = Measurement(
        tuple(rows), verdict_line(rows), tuple(notes), None, settings.command, settings.as_dict(),
        {name: one.protocol for name, one in measured.items()},
        {name: one.data for name, one in measured.items()},
        state=state,
    ).save(folder, seconds=time.monotonic() - started, model={n: one.model for n, one in measured.items()})  # fmt: skip
    return Measurement.of_run(run)


def _check_same_data(run: Run, settings: MeasureSettings) -> None:
    """A finished run stands for these settings only while the data is what it was."""
    for name, about in run.manifest["model"].items():
        now, then = open_data(settings, about["modality"]).fingerprint(), run.manifest["data"][name]["fingerprint"]
        if now != then:
            raise StoreError(
                "the data changed since this run was made", where=run.folder, got=f"fingerprint {now[:12]}",
                expected=then[:12], do="choose another --out, or --existing replace to measure again",
            )  # fmt: skip


def measure_named(name: str, settings: MeasureSettings, machine: Machine, *, folder: Path | None) -> Measured:
    """Open a model by name and measure it."""
    from anisoscope.models.open import open_model

    model = open_model(
        name, revision=settings.revision, tower=settings.tower, modality=settings.modality, dtype=settings.dtype,
        device=machine.device, trust_remote_code=machine.trust_remote_code, models_dir=machine.models_dir,
    )  # fmt: skip
    source = open_data(settings, model.modality)
    return measure_opened(model, source, settings, machine, folder=folder)


def open_data(settings: MeasureSettings, modality: str) -> Source:
    """The data of the settings for a modality; what is embedded where none is named."""
    from anisoscope.inputs.sources import open_places

    options: dict[str, Any] = {"documents": settings.documents, "column": settings.column} if modality == "text" else {}
    return open_places(settings.data, modality, **options)  # pyright: ignore[reportArgumentType]  # checked there


def measure_opened(
    model: OpenModel, source: Source, settings: MeasureSettings, machine: Machine, *, folder: Path | None = None
) -> Measured:
    """The pass over the data, then every site's metrics."""
    from anisoscope.capture.hidden import HiddenCapture
    from anisoscope.models.batches.plan import make_batches
    from anisoscope.runs.engine import SumSettings, run_pass

    batches = make_batches(
        model, source, length=settings.length, batch_tokens=machine.batch_tokens, limit=settings.limit
    )
    capture = HiddenCapture(
        model.module, sites=settings.sites, maps=settings.maps, specials=settings.specials,  # pyright: ignore
        whisper_window=settings.whisper_window,  # pyright: ignore  # both are checked by the capture
    )  # fmt: skip
    spectrum = settings.spectrum and settings.maps != "flatten"
    sums = SumSettings(spectrum=spectrum, sample=settings.sample, seed=settings.seed, device=machine.device)
    fingerprint = source.fingerprint()
    moments = run_pass(capture, batches, sums, folder=folder, data=fingerprint, what=f"running {model.name}")
    protocol = {
        **batches.protocol, **capture.protocol, "pairs": "all pairs of different vectors", "dtype": settings.dtype,
        "data": source.name,
    }  # fmt: skip
    rows, notes = site_rows(model, capture.sites, moments, settings, protocol)
    report = batches.report
    data = {"name": source.name, "fingerprint": fingerprint, **vars(report)}
    unreadable = [f"unreadable: {path}: {reason}" for path, reason in source.unreadable]
    lost = [f"{getattr(report, kind)} {what}" for kind, what in _LOSSES.items() if getattr(report, kind)]
    about = {"name": model.name, "revision": model.revision, "family": model.family, "modality": model.modality}
    everything = dict.fromkeys((*model.notes, *capture.notes, *lost, *unreadable, *notes))
    return Measured(rows, moments, protocol, data, about, tuple(everything))


_LOSSES = {
    "empty": "documents without a single token were passed over",
    "too_short": "windows shorter than the model can read were passed over",
    "truncated": "transcripts were cut to the decoder's length",
}


def site_rows(
    model: OpenModel,
    sites: Sequence[Any],
    moments: dict[str, Moments],
    settings: MeasureSettings,
    protocol: dict[str, Any],
) -> tuple[list[Row], list[str]]:
    """The rows of every site of a model, and the notes that concern them."""
    words = "; ".join(f"{key}: {value}" for key, value in protocol.items())
    layers = {site.name: site.layer for site in sites}
    rows, notes = [], []
    with track("computing metrics", total=len(moments), unit="sites") as bar:
        for name, sums in moments.items():
            if sums.sums().n < 2:
                raise InputError(
                    "there is nothing to measure at this site", where=name,
                    got=f"{sums.sums().n} usable vectors, {sums.sums().nonfinite} with NaN or infinite entries",
                    do="look for broken weights or inputs",
                )  # fmt: skip
            cloud = measure_cloud(
                sums,
                spectra=settings.spectrum,
                neighbours=settings.neighbours,
                things="tokens" if model.modality == "text" else "vectors",
            )
            rows += cloud_rows(
                cloud, site=name, layer=layers[name], model=model.name, revision=model.revision, protocol=words
            )
            notes += [f"{name}: {note}" for note in cloud.notes]
            bar.advance()
    return rows, _gather(notes)


def _gather(notes: Sequence[str]) -> list[str]:
    """One line for a note that many sites share."""
    by_text: dict[str, list[str]] = {}
    for note in notes:
        site, _, text = note.partition(": ")
        by_text.setdefault(text, []).append(site)
    return [
        f"{sites[0]}: {text}" if len(sites) == 1 else f"{text} ({len(sites)} sites, {sites[0]} first)"
        for text, sites in by_text.items()
    ]


def verdict_line(rows: Sequence[Row]) -> str:
    """The verdict of each model over its sites, in one line."""
    models = list(dict.fromkeys(row.model for row in rows))
    lines = {
        model: verdict_of(
            row.note.split(":")[0] for row in rows if row.model == model and row.metric == "verdict"
        )
        for model in models
    }  # fmt: skip
    return next(iter(lines.values())) if len(models) == 1 else "; ".join(f"{m}: {line}" for m, line in lines.items())
