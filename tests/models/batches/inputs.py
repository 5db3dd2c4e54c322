"""Small models, sources in memory, and the rows of batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image

import zoo
from anisoscope.inputs.sources import Clip, Document, MemorySource, Picture
from anisoscope.models.batches.plan import Batches
from anisoscope.models.open import OpenModel, open_model
from anisoscope.models.stand_ins import processors as stand_in_processors

PASSAGES = stand_in_processors.PASSAGE.split(". ")
LONG = " ".join(PASSAGES * 3)


@cache
def opened(name: str) -> OpenModel:
    return open_model(zoo.module(name), processor=zoo.processor(name))


def texts(*contents: str) -> MemorySource[Any]:
    return MemorySource([Document(f"doc {k}", text) for k, text in enumerate(contents)], modality="text", name="test")


def clips(*samples: int, rate: int = 16000) -> MemorySource[Any]:
    rng = np.random.default_rng(0)
    made = [Clip(f"clip {k}", rng.standard_normal(n, dtype=np.float32) / 10, rate) for k, n in enumerate(samples)]
    return MemorySource(made, modality="speech", name="test")


def pictures(*sizes: tuple[int, int]) -> MemorySource[Any]:
    rng = np.random.default_rng(0)
    made = [Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes]
    return MemorySource([Picture(f"picture {k}", one) for k, one in enumerate(made)], modality="vision", name="test")


def rows_of(batches: Batches, start_at: int = 0) -> Iterator[tuple[str, int, torch.Tensor]]:
    """The rows of all batches in order: sequence, start, real inputs."""
    for _, batch in batches.iterate(start_at):
        main = next(iter(batch.inputs.values()))
        for row, (key, start) in enumerate(zip(batch.keys, batch.starts, strict=True)):
            yield key, start, main[row][batch.valid[row]] if main.dim() < 4 else main[row]
