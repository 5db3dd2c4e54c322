"""`anisoscope attention`: queries, keys and attention rows of one model, by layer and head.

One pass over the data (`attention_pass`), then the rows of `attention`. Besides, the invariance on which the split of
scores rests is checked on a window of the data: taking the mean key away must change no probability, taking the mean
query away does. The run keeps the drift direction of every head as arrays (`block.3.query`, `.key`, and `.q_filter` in
the convention of published Q-Filters files), and the sums.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from anisoscope.errors import StoreError
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.plan import Settings, default_folder, reuse_or_begin
from anisoscope.runs.store import Existing, Run, write_run
from anisoscope.runs.table import Row
from anisoscope.studies.measure.study import Machine, MeasureSettings, open_data
from anisoscope.studies.sweep.dynamics import agreeing

if TYPE_CHECKING:
    from anisoscope.inputs.sources import Source
    from anisoscope.models.batches.plan import Batches
    from anisoscope.models.open import OpenModel


class ReadingSettings(Settings):
    """What both commands ask about the data and the attention."""

    data: list[str] = Field(default_factory=list)
    documents: str = "auto"
    column: str | None = None
    length: float | None = None
    limit: int | None = None
    before_rotary: bool = False
    sample: int = 128
    seed: int = 0
    dtype: str = "float32"

    def measuring(self, **others: Any) -> MeasureSettings:
        """The same question put to the hidden states."""
        shared = {
            name: getattr(self, name) for name in ("data", "documents", "column", "length", "limit", "seed", "dtype")
        }
        return MeasureSettings(**{**shared, "models": [], "neighbours": False, **others})


class AttentionSettings(ReadingSettings):
    """What `anisoscope attention` does."""

    command = "attention"

    model: str
    revision: str | None = None
    tower: str | None = None
    modality: str | None = None


def attention_study(
    settings: AttentionSettings, *, machine: Machine | None = None, out: Path | None = None,
    existing: Existing = "resume",
) -> Measurement:  # fmt: skip
    """Queries, keys and attention rows of one model, by layer and head; `arrays` holds the drift directions."""
    from anisoscope.models.batches.plan import make_batches
    from anisoscope.models.open import open_model
    from anisoscope.studies.attention.rows import attention_rows, drift_directions, measure_attention

    machine = machine or Machine()
    folder = out or default_folder(settings, name=Path(settings.model).name)
    finished = reuse_or_begin(folder, settings, existing=existing)
    if finished is not None:
        check_same_data(finished, settings)
        return Measurement.of_run(finished)
    started = time.monotonic()
    model = open_model(
        settings.model, revision=settings.revision, tower=settings.tower, modality=settings.modality,
        dtype=settings.dtype, device=machine.device, trust_remote_code=machine.trust_remote_code,
        models_dir=machine.models_dir,
    )  # fmt: skip
    source = open_data(settings.measuring(), model.modality)
    batches = make_batches(
        model, source, length=settings.length, batch_tokens=machine.batch_tokens, limit=settings.limit
    )
    options = {"before_rotary": settings.before_rotary, "sample": settings.sample, "seed": settings.seed}
    sums = measure_attention(model, tracked(batches, f"running {model.name}"), **options)
    protocol = {**batches.protocol, "attention": sums.protocol, "dtype": settings.dtype, "data": source.name}
    words = "; ".join(f"{key}: {value}" for key, value in protocol.items())
    like = Row(model=model.name, revision=model.revision, protocol=words)
    rows = attention_rows(sums.heads, sums.rows, like=like) + _removal_rows(model, source, settings, like)
    run = write_run(
        folder, command=settings.command, settings=settings.as_dict(), rows=rows, arrays=drift_directions(sums.heads),
        state=sums.state(), protocol=protocol, notes=model.notes, seconds=time.monotonic() - started,
        data={"name": source.name, "fingerprint": source.fingerprint(), **vars(batches.report)},
        model={"name": model.name, "revision": model.revision, "family": model.family, "modality": model.modality},
        verdict=attention_verdict(rows, {site: layer.queries.d ** -0.5 for site, layer in sums.heads.items()}),
    )  # fmt: skip
    return Measurement.of_run(run)


def _removal_rows(model: OpenModel, source: Source, settings: AttentionSettings, like: Row) -> list[Row]:
    """What taking the mean key or the mean query away does to any probability, on one window of the data."""
    from anisoscope.models.batches.plan import make_batches
    from anisoscope.studies.attention.rows import removal_effects

    batches = make_batches(model, source, length=settings.length, batch_tokens=1, limit=1)
    note = "greatest change of a probability in one window"
    return [
        replace(like, site=site, metric=metric, value=value, null=0.0, note=note)
        for site, effect in removal_effects(model, next(iter(batches))[1]).items()
        for metric, value in (("mean_key_removal", effect.key), ("mean_query_removal", effect.query))
    ]


def attention_verdict(rows: Sequence[Row], null_sd: dict[str, float]) -> str:
    """How many heads agree or oppose beyond chance, how sharp attention is, how much of it is salience."""
    words = []
    found = agreeing(rows, null_sd)
    if found is not None:
        words.append(f"cos(Q̄, K̄) beyond ±1.96/√d in {found[0] + found[1]} of {found[2]} heads "
                     f"({found[0]} common, {found[1]} opposite)")  # fmt: skip
    for metric, name in (("entropy_normalised", "entropy over log n"), ("salience_share", "salience share")):
        of_heads = [
            row.value for row in rows if row.metric == metric and row.head is not None and row.value is not None
        ]
        if of_heads:
            words.append(f"median {name} {np.median(of_heads):.3g}")
    return "; ".join(words)


def check_same_data(run: Run, settings: ReadingSettings) -> None:
    """A run stands for its settings only while the data is what it was."""
    now = open_data(settings.measuring(), run.manifest["model"]["modality"]).fingerprint()
    then = run.manifest["data"]["fingerprint"]
    if now != then:
        raise StoreError(
            "the data changed since this was measured", where=run.folder, got=f"fingerprint {now[:12]}",
            expected=then[:12], do="choose another --out, or --existing replace to measure again",
        )  # fmt: skip


def tracked(batches: Batches, what: str) -> Iterator[tuple[int, Any]]:
    from anisoscope.runs.progress import track

    with track(what, total=batches.total, unit="windows") as bar:
        for index, batch in batches:
            yield index, batch
            bar.advance(len(batch))
