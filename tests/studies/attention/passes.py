"""One pass over the attention of a small model, as sums and as rows."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image

import zoo
from anisoscope.capture.inputs import model_inputs
from anisoscope.inputs.sources import Clip, Document, MemorySource, Picture
from anisoscope.models.batches.plan import Batches, make_batches
from anisoscope.models.open import OpenModel, open_model
from anisoscope.runs.table import Row
from anisoscope.runs.work.observers import AttentionSums
from anisoscope.studies.attention.rows import attention_rows

WORDS = ("queries", "keys", "drift", "together", "while", "attention", "grows", "sharp", "entropy", "falls", "slowly")


@cache
def source_of(modality: str) -> MemorySource[Any]:
    rng = np.random.default_rng(0)
    if modality == "text":
        items: list[Any] = [Document(str(k), " ".join(rng.choice(WORDS, size=rng.integers(4, 12)))) for k in range(24)]
    elif modality == "speech":
        items = [Clip(str(k), rng.standard_normal(6000, dtype=np.float32) / 10, 16000) for k in range(4)]
    else:
        items = [Picture(str(k), Image.fromarray(rng.integers(0, 256, (70, 90, 3), dtype=np.uint8))) for k in range(4)]
    return MemorySource(items, modality=modality, name="test")  # type: ignore[arg-type]


def measure_attention(model: OpenModel, batches: Any, **options: Any) -> AttentionSums:
    """The sums of attention over batches."""
    sums = AttentionSums(**options)
    for _, batch in batches:
        with torch.inference_mode(), sums.watch(model, batch):
            model.module(**model_inputs(model.module, batch.inputs))
    return sums


@cache
def model_of(name: str) -> OpenModel:
    return open_model(zoo.module(name), processor=zoo.processor(name))


def batches_of(model: OpenModel, **options: Any) -> Batches:
    if model.modality == "text":
        options = {"length": 24, "batch_tokens": 200, "limit": 6 if model.family == "canine" else None, **options}
    return make_batches(model, source_of(model.modality), **options)


@cache
def measured(name: str) -> tuple[AttentionSums, list[Row]]:
    model = model_of(name)
    sums = measure_attention(model, batches_of(model))
    return sums, attention_rows(
        sums.heads, sums.rows, like=Row(model=name, protocol=sums.about()["protocol"]["attention"])
    )


def by_metric(rows: list[Row], site: str) -> dict[str, Row]:
    return {row.metric: row for row in rows if row.site == site}
