"""Pictures to pixels: each is one window, prepared by the model's own image processor, and batched in order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from anisoscope.errors import ModelError
from anisoscope.models.batches.plan import Batch, Selection, Window, main_input

if TYPE_CHECKING:
    from anisoscope.models.open import OpenModel

PIXELS_PER_POSITION = 256  # a patch of 16 × 16


class ImageFeed:
    look_ahead = 1  # pictures are large, and come out of the processor in one size

    keeps = False

    def __init__(self, model: OpenModel, items: Selection) -> None:
        self.items = items
        self.processor = getattr(model.processor, "image_processor", model.processor)
        if not callable(self.processor):
            got = type(self.processor).__name__
            raise ModelError("a vision model needs its image processor", got=got, do="pass it as processor=")
        self.main_input = main_input(model.module)
        self.protocol = {"windows": f"one picture each, through {type(self.processor).__name__}"}

    def expected(self) -> int | None:
        return self.items.count

    def windows(self, tally: Counter[str]) -> Iterator[Window]:
        for picture in self.items:
            tally["documents"] += 1
            pixels = self.processor(images=picture.image, return_tensors="pt")["pixel_values"][0]  # (3, H, W)
            size = math.ceil(pixels.shape[-2] * pixels.shape[-1] / PIXELS_PER_POSITION)
            yield Window(picture.key, 0, pixels, 1, size, form=tuple(pixels.shape), whole=True)

    def collate(self, windows: list[Window]) -> Batch:
        pixels = torch.stack([window.data for window in windows])  # (B, 3, H, W)
        valid = torch.ones(len(windows), 1, dtype=torch.bool)
        keys, starts = [window.key for window in windows], [0] * len(windows)
        return Batch({self.main_input: pixels}, keys, starts, valid, torch.zeros_like(valid))
