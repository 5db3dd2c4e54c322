"""The embeddings of a model with two towers, of the last position, of checkpoints and of a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import anisoscope
import zoo
from anisoscope.accumulate.moments import Moments
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.work.collected import split
from anisoscope.watch.monitor import AnisotropyMonitor

torch.set_num_threads(1)

TEXTS = ["a small cat", "the dog runs home today", "red", "the old tree"]


def kept(found: Measurement, ending: str) -> Any:
    """What the reservoir of a site holds."""
    [state] = [part for key, part in split(found.state).items() if key.endswith(ending)]
    return Moments.from_state(state).reservoir.sample()


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("prompt", ["", "a "])
def test_the_embedding_of_a_text_is_that_of_clip(prompt: str, saved: bool, tmp_path: Path) -> None:
    module, processor = zoo.module("clip"), zoo.processor("clip")
    named: Any = {"model": str(zoo.save("clip", tmp_path / "clip"))} if saved else {"model": module}
    extra = {} if saved else {"processor": processor}
    asked: Any = {"tower": "text", "sites": ["embedding"], "neighbours": False, "spectrum": False, **extra}
    found = anisoscope.measure(named["model"], TEXTS, prompt=prompt, **asked)
    ours = kept(found, "|embedding|embedding.text").x
    theirs = []
    for text in TEXTS:  # one by one: nothing is padded
        with torch.no_grad():
            read = processor.tokenizer(prompt + text, return_tensors="pt")
            output = module(**read, pixel_values=torch.zeros(1, 3, 32, 32))
        theirs.append(output.text_embeds[0].numpy())  # of unit norm
    ours = ours / np.linalg.norm(ours, axis=1, keepdims=True)
    np.testing.assert_allclose(np.sort(ours, axis=0), np.sort(np.array(theirs), axis=0), atol=1e-6)


def test_the_embedding_of_an_image_is_that_of_clip(tmp_path: Path) -> None:
    module, processor = zoo.module("clip"), zoo.processor("clip")
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 255, (40, 36, 3), dtype=np.uint8)) for _ in range(4)]
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / f"{number}.png")
    found = anisoscope.measure(
        module, tmp_path, processor=processor, tower="vision", sites=["embedding"], neighbours=False, spectrum=False
    )
    ours = kept(found, "|embedding|embedding.image").x
    with torch.no_grad():
        pixels = processor.image_processor(pictures, return_tensors="pt")["pixel_values"]
        theirs = module.visual_projection(module.vision_model(pixels).pooler_output).numpy()
    assert {row.site for row in found.rows if row.metric == "mean_cosine"} == {"embedding.image"}
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(np.sort(ours, axis=0), np.sort(theirs, axis=0), atol=1e-5)


@pytest.mark.parametrize("specials", ["keep", "drop"])
def test_the_last_position_is_the_last_that_counts(specials: str) -> None:
    module, tokenizer = zoo.module("bert"), zoo.processor("bert")
    options: Any = {"processor": tokenizer, "sites": ["block.1"], "neighbours": False, "specials": specials}
    found = anisoscope.measure(module, TEXTS, positions="last", **options)
    ours = kept(found, "|hidden|block.1").x
    theirs = []
    for text in TEXTS:
        with torch.no_grad():
            states = module(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
        theirs.append(states[2][0, -1 if specials == "keep" else -2].numpy())
    np.testing.assert_allclose(np.sort(ours, axis=0), np.sort(np.array(theirs), axis=0), atol=1e-5)
    assert "positions: the last of each window" in found.rows[0].protocol


def test_a_sweep_and_a_monitor_see_the_embedding(tmp_path: Path) -> None:
    """The pooled vector of a checkpoint is the same in `measure`, in `sweep` and in a training."""
    folder = zoo.save("gpt2", tmp_path / "series" / "checkpoint-8")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    data: Any = {"documents": "lines", "pool": "mean"}
    alone = anisoscope.measure(folder, tmp_path / "texts.txt", sites=["embedding"], neighbours=False, **data)
    swept = anisoscope.sweep(tmp_path / "series", tmp_path / "texts.txt", sites=["hidden", "embedding"], **data)
    only = anisoscope.sweep(tmp_path / "series", tmp_path / "texts.txt", sites=["embedding"], **data)
    monitor = AnisotropyMonitor(TEXTS, zoo.processor("gpt2"), pool="mean", steps=[8])
    monitor.observe(zoo.module("gpt2"), 8)
    value = alone.value("mean_cosine", site="embedding")
    seen = [row.value for row in monitor.rows if (row.site, row.metric) == ("embedding", "mean_cosine")]
    assert [swept.value("mean_cosine", site="embedding"), only.value("mean_cosine"), *seen] == pytest.approx(
        [value] * 3, rel=1e-5
    )
    assert swept.sites()[0] == "embeddings"
