"""Interventions as a run: settings, a verdict in words, a folder."""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field

from anisoscope.runs.measurement import Measurement
from anisoscope.runs.plan import Settings, default_folder, reuse_or_begin
from anisoscope.runs.store import Existing
from anisoscope.runs.table import Row
from anisoscope.studies.interventions import NAMES, intervene
from anisoscope.studies.layers import Machine


class InterveneSettings(Settings):
    """What `anisoscope intervene` does."""

    command = "intervene"

    model: str
    data: list[str] = Field(default_factory=list)
    what: list[str] = Field(default_factory=lambda: list(NAMES))
    layers: str = "*block.*"
    length: int | None = None
    limit: int | None = None
    head: bool = True
    seed: int = 0


def intervene_model(
    settings: InterveneSettings,
    *,
    machine: Machine | None = None,
    out: Path | None = None,
    existing: Existing = "resume",
) -> Measurement:
    """Open the model, run the interventions and keep them."""
    from anisoscope.inputs.sources import open_places
    from anisoscope.models.batches import make_batches
    from anisoscope.models.open import open_model

    machine = machine or Machine()
    folder = out or default_folder(settings, name=Path(settings.model).name)
    finished = reuse_or_begin(folder, settings, existing=existing)
    if finished is not None:
        return Measurement.of_run(finished)
    started = time.monotonic()
    model = open_model(
        settings.model, head=settings.head, device=machine.device, models_dir=machine.models_dir,
        trust_remote_code=machine.trust_remote_code,
    )  # fmt: skip
    source = open_places(settings.data, "text")
    batches = make_batches(
        model, source, length=settings.length, limit=settings.limit, batch_tokens=machine.batch_tokens
    )
    rows = intervene(model, batches, what=tuple(settings.what), layers=settings.layers, seed=settings.seed)
    protocol = {**batches.protocol, "blocks": settings.layers, "means": "of the same windows, in a pass before"}
    data = {"name": source.name, "fingerprint": source.fingerprint()}
    found = Measurement(
        tuple(rows), verdict(rows), (), None, settings.command, settings.as_dict(), protocol, data
    ).save(folder, seconds=time.monotonic() - started)  # fmt: skip
    return Measurement.of_run(found)


def verdict(rows: list[Row]) -> str:
    """One line: which removal costs most, against its control, and whether the mean key was invisible."""
    value = {(row.site, row.metric): row.value for row in rows}
    metric = "kl" if ("untouched", "loss") in value else "last_cosine"
    names = [row.site for row in rows if row.metric == metric and not row.site.endswith((".control", "untouched"))]
    if metric != "kl":
        shown = ", ".join(f"{name} {value[name, metric]:.2f}" for name in names)
        return f"average cosine at the last block: untouched {value['untouched', metric]:.2f}, {shown}"
    parts = [f"{n} {value[n, 'loss_change']:+.3f} (control {value[f'{n}.control', 'loss_change']:+.3f})" for n in names]
    invisible = value.get(("mean_key", "kl"))
    seen = "" if invisible is None else f"; the mean key is {'invisible' if invisible < 1e-6 else 'visible'} to softmax"
    return f"loss {value['untouched', 'loss']:.3f} nats; change by {', '.join(parts)}{seen}"
