"""Small models of every architecture, something for them to read, and a way to see what a capture delivers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import zoo
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.inputs.sources import Clip, Document, MemorySource, Picture
from anisoscope.models.batches.plan import Batches, make_batches
from anisoscope.models.open import OpenModel, open_model

torch.set_num_threads(1)  # the models are tiny: more threads only wait for each other

TEXTS = (
    "The representations of a transformer drift together as it trains.",
    "A cloud of vectors that leaves the origin looks narrow from there, although nothing about it has become narrow.",
    "Queries and keys drift as well.",
    "Sounds and pictures",
)


@cache
def _opened(name: str) -> OpenModel:
    name, _, tower = name.partition(":")
    return open_model(zoo.module(name), processor=zoo.processor(name), tower=tower or None)


@cache
def _source(modality: str) -> MemorySource[Any]:
    rng = np.random.default_rng(0)
    if modality == "text":
        items: list[Any] = [Document(str(k), text) for k, text in enumerate(TEXTS)]
    elif modality == "speech":
        lengths = (8000, 16000, 12345, 8000)
        items = [Clip(str(k), rng.standard_normal(n, dtype=np.float32) / 10, 16000) for k, n in enumerate(lengths)]
    else:
        pixels = rng.integers(0, 256, (4, 70, 90, 3), dtype=np.uint8)
        items = [Picture(str(k), Image.fromarray(one)) for k, one in enumerate(pixels)]
    return MemorySource(items, modality=modality, name="test")  # type: ignore[arg-type]


@pytest.fixture
def opened() -> Callable[[str], OpenModel]:
    return _opened


@pytest.fixture
def batches_for() -> Callable[..., Batches]:
    """`batches_for(model, **options)`: the test data of the model's modality, in windows of 24 tokens."""

    def make(model: OpenModel, **options: Any) -> Batches:
        if model.modality == "text":
            options.setdefault("length", 24)
        return make_batches(model, _source(model.modality), **options)

    return make


@pytest.fixture
def gather() -> Callable[..., dict[str, tuple[list[tuple[str, int]], torch.Tensor]]]:
    """What a capture delivers over all batches: for each site the (sequence, place in it) and the vectors, sorted."""

    def run(capture: HiddenCapture, batches: Any) -> dict[str, tuple[list[tuple[str, int]], torch.Tensor]]:
        places: dict[str, list[tuple[str, int]]] = {}
        states: dict[str, list[torch.Tensor]] = {}
        for _, batch in batches:

            def sink(site: str, vectors: torch.Tensor, rows: Any, batch: Any = batch) -> None:
                origin = zip(rows.row.tolist(), rows.position.tolist(), strict=True)
                places.setdefault(site, []).extend((batch.keys[row], batch.starts[row] + at) for row, at in origin)
                states.setdefault(site, []).append(vectors.clone())

            capture.run(batch, sink)
        seen = {}
        for site, here in places.items():
            assert len(set(here)) == len(here), "a position was delivered twice"
            order = sorted(range(len(here)), key=here.__getitem__)
            seen[site] = [here[k] for k in order], torch.cat(states[site])[order]
        return seen

    return run
