"""`measure --maps flatten` of ResNet-50 (random weights) on 60 images, d up to 802,816, against its forward pass."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from contest import arguments, compared, give, in_turn


def main() -> None:
    chosen = arguments(__doc__)

    import torch
    from PIL import Image
    from transformers import ConvNextImageProcessorPil, ResNetConfig, ResNetModel

    import anisoscope

    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    count = 8 if chosen.small else 60
    small = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]} if chosen.small else {}
    model = ResNetModel(ResNetConfig(**small)).eval()
    processor = ConvNextImageProcessorPil(size={"shortest_edge": 224}, crop_pct=0.875)
    with TemporaryDirectory() as folder:
        here, generator = Path(folder), np.random.default_rng(0)
        for number in range(count):
            coarse = generator.integers(0, 255, (14, 14, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((224, 224), Image.Resampling.BICUBIC).save(here / f"{number}.png")

        def forward() -> None:
            with torch.inference_mode():
                for some in range(0, count, 8):
                    names = [here / f"{number}.png" for number in range(some, min(some + 8, count))]
                    images: Any = [Image.open(name) for name in names]
                    model(**processor(images=images, return_tensors="pt"))

        def flatten() -> None:
            anisoscope.measure(model, here, processor=processor, modality="vision", maps="flatten")

        taken = in_turn({"forward": forward, "flatten": flatten}, turns=1)
    what = f"`measure --maps flatten` of ResNet-50, {count} images"
    give([compared(what, taken["flatten"], "bare forward pass", taken["forward"])])


if __name__ == "__main__":
    main()
