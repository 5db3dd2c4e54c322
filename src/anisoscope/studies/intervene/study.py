"""Interventions as a run: settings, a verdict in words, a folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from anisoscope.runs.measurement import Measurement
from anisoscope.runs.plan import Settings, default_folder, reuse_or_begin
from anisoscope.runs.store import Existing, write_run
from anisoscope.runs.table import Row
from anisoscope.studies.intervene.outcomes import NAMES, intervene
from anisoscope.studies.intervene.task import output_head
from anisoscope.studies.measure.study import Machine

if TYPE_CHECKING:
    from torch import nn

INVISIBLE = 1e-6  # nats: what rounding in single precision leaves of a KL divergence that is 0
_LOGITS = 2**26  # numbers in a batch of logits, by default: 256 MB, and two of them are held
_POSITIONS = 8192


class InterveneSettings(Settings):
    """What `anisoscope intervene` does."""

    command = "intervene"

    model: str
    data: list[str] = Field(default_factory=list)
    documents: str = "auto"
    column: str | None = None
    what: list[str] = Field(default_factory=lambda: list(NAMES))
    layers: str = "*block.*"
    before_rotary: bool = False
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
    from anisoscope.models.batches.plan import make_batches
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
    source = open_places(settings.data, "text", documents=settings.documents, column=settings.column)
    batches = make_batches(
        model, source, length=settings.length, limit=settings.limit,
        batch_tokens=machine.batch_tokens or batch_positions(model.module),
    )  # fmt: skip
    rows = intervene(
        model, batches, what=tuple(settings.what), layers=settings.layers, seed=settings.seed,
        before_rotary=settings.before_rotary,
    )  # fmt: skip
    rotary = "before" if settings.before_rotary else "after"
    protocol = {
        **batches.protocol, "blocks": settings.layers, "means": "of the same windows, in passes before",
        "queries and keys": f"{rotary} rotation", "states": "all positions of a window but the first",
    }  # fmt: skip
    run = write_run(
        folder, command=settings.command, settings=settings.as_dict(), rows=rows, protocol=protocol,
        data={"name": source.name, "fingerprint": source.fingerprint(), **vars(batches.report)},
        model={"name": model.name, "revision": model.revision, "family": model.family, "modality": model.modality},
        notes=model.notes, verdict=verdict(rows), seconds=time.monotonic() - started,
    )  # fmt: skip
    return Measurement.of_run(run)


def batch_positions(module: nn.Module) -> int:
    """How many positions a batch may have so that its logits stay small."""
    head = output_head(module)
    vocabulary = 1 if head is None else len(head.weight)
    return max(1, min(_POSITIONS, _LOGITS // vocabulary))


def verdict(rows: Sequence[Row]) -> str:
    """One line: which removal costs what, against its control, and whether the mean key was invisible."""
    value = {(row.site, row.metric): row.value for row in rows}
    metric = "kl" if ("untouched", "loss") in value else "last_cosine"
    names = [row.site for row in rows if row.metric == metric and not row.site.endswith((".control", "untouched"))]
    if metric != "kl":
        shown = "".join(f", {name} {value[name, metric]:.2f}" for name in names)
        return f"average cosine at the last block: untouched {value['untouched', metric]:.2f}{shown}"
    parts = [
        f"{n} {_signed(value[n, 'loss_change'])} (control {_signed(value[f'{n}.control', 'loss_change'])})"
        for n in names
    ]
    divergence = value.get(("mean_key", "kl"))
    seen = "" if divergence is None else f"; the mean key is {_visible(divergence)} to softmax"
    return f"loss {value['untouched', 'loss']:.3f} nats; change by {', '.join(parts)}{seen}"


def _visible(divergence: float) -> str:
    return "invisible" if abs(divergence) < INVISIBLE else "visible"


def _signed(change: float | None) -> str:
    """Three digits, and no minus before a zero.

    >>> _signed(-1e-9), _signed(-0.25), _signed(None)
    ('+0.000', '-0.250', '–')
    """
    return "–" if change is None else f"{round(change, 3) + 0.0:+.3f}"
