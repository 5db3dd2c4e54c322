"""Clips to windows of sound at the model's rate.

A clip is resampled and cut into consecutive windows of 30 seconds (or what the model's own window holds: Whisper, the
spectrogram transformer); the last may be short, and is left out and counted when it is shorter than one frame.

Padding is harmless where the convolutions normalise by layer, and where the window is always full (Whisper). Where they
normalise over the whole recording (`feat_extract_norm="group"`: wav2vec2-base, HuBERT-base) it changes the real frames,
so only windows of equal length share a batch, and no mask is given, as these models were trained. Unknown models get
the same treatment, and so does wav2vec2-conformer, whose convolutions between attention and MLP reach into padding.

Whisper's decoder reads its start tokens or, for clips of a single window whose transcript is given, those and the text.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import ModelError, UsageError
from anisoscope.inputs.speech import resample
from anisoscope.models.batches.plan import Batch, Selection, Window, main_input
from anisoscope.models.batches.text import special_ends, start_token

if TYPE_CHECKING:
    from anisoscope.models.open import OpenModel

UNPADDED = ("wav2vec2-conformer",)
DEFAULT_SECONDS = 30.0
POSITIONS_PER_SECOND = 50


class SpeechFeed:
    look_ahead = 32  # 30 seconds at 16 kHz are 2 MB
    keeps = False

    def __init__(
        self, model: OpenModel, items: Selection, *, seconds: float | None, transcripts: Mapping[str, str]
    ) -> None:
        self.items, self.transcripts = items, transcripts
        self.extractor = getattr(model.processor, "feature_extractor", model.processor)
        if not hasattr(self.extractor, "sampling_rate"):
            got = type(self.extractor).__name__
            raise ModelError("a speech model needs its feature extractor", got=got, do="pass it as processor=")
        self.tokenizer = getattr(model.processor, "tokenizer", None)
        self.config, self.main_input = getattr(model.module, "config", None), main_input(model.module)
        self.rate: int = self.extractor.sampling_rate
        shortest, self.own_window = _window_limits(self.extractor)
        self.window = self._window(seconds, model.name)
        self.minimum = max(shortest, _receptive_field(self.config))
        self.masks = getattr(self.config, "feat_extract_norm", None) == "layer" and model.family not in UNPADDED
        self.decodes = "decoder_input_ids" in inspect.signature(model.module.forward).parameters
        self.protocol = self._protocol()

    def _protocol(self) -> dict[str, str]:
        words = {"windows": f"clips cut into windows of at most {self.window / self.rate:g} s at {self.rate} Hz"}
        if self.own_window is None and not self.masks:
            words["batches"] = "only windows of equal length share a batch: padding would change the states"
        if self.own_window is not None and not hasattr(self.extractor, "n_samples"):
            words["padding"] = "a short window is filled up by the extractor, and what it adds counts"
        if self.decodes:
            given = "the transcript where it is given, else " if self.transcripts else ""
            words["decoder"] = f"{given}the start tokens"
        return words

    def expected(self) -> int | None:
        return None

    def _window(self, seconds: float | None, name: str) -> int:
        """Samples in a window."""
        longest = self.own_window
        if seconds is None:
            return longest or round(DEFAULT_SECONDS * self.rate)
        samples = round(seconds * self.rate)
        if longest is not None and samples > longest:
            got, expected = f"{seconds:g} s", f"at most {longest / self.rate:g} s"
            raise UsageError("windows longer than the model hears", where=name, got=got, expected=expected)
        return samples

    def windows(self, tally: Counter[str]) -> Iterator[Window]:
        for clip in self.items:
            tally["documents"] += 1
            wave = resample(clip.wave, clip.rate, self.rate)
            tally["empty"] += not len(wave)
            tally["truncated"] += self._cuts_transcript(clip.key, len(wave))
            for start in range(0, len(wave), self.window):
                piece = wave[start : start + self.window]
                if len(piece) < self.minimum:
                    tally["too_short"] += 1
                    continue
                text = self.transcripts.get(clip.key) if len(wave) <= self.window else None
                size = math.ceil((self.own_window or len(piece)) * POSITIONS_PER_SECOND / self.rate)
                form = None if self.masks or self.own_window else len(piece)
                whole = len(wave) <= self.window
                yield Window(clip.key, start, (piece, text), len(piece), size, form, whole)

    def collate(self, windows: list[Window]) -> Batch:
        waves = [window.data[0] for window in windows]
        padding = {} if self.own_window else {"padding": True}
        features = self.extractor(
            waves, sampling_rate=self.rate, return_attention_mask=True, return_tensors="pt", **padding
        )
        inputs: dict[str, Tensor] = {self.main_input: features[self.extractor.model_input_names[0]]}
        mask = features.get("attention_mask")
        # without a mask (spectrogram transformer) the window is always full
        valid = torch.ones(inputs[self.main_input].shape[:2], dtype=torch.bool) if mask is None else mask.bool()
        if self.masks:
            inputs["attention_mask"] = valid.long()
        keys, starts = [window.key for window in windows], [window.start for window in windows]
        none = torch.zeros_like(valid)
        if not self.decodes:
            return Batch(inputs, keys, starts, valid, none)
        ids, decoder_valid, decoder_special = self._decoder([window.data[1] for window in windows])
        inputs |= {"decoder_input_ids": ids, "decoder_attention_mask": decoder_valid.long()}
        return Batch(inputs, keys, starts, valid, none, decoder_valid, decoder_special)

    def _decoder(self, texts: list[str | None]) -> tuple[Tensor, Tensor, Tensor]:
        """The decoder's ids, which are real, which are special; each (B, T)."""
        front = self._start_tokens()
        rows = [(front + self._text_ids(text))[: self._decoder_limit()] for text in texts]
        lengths = torch.tensor([len(row) for row in rows])
        places = torch.arange(int(lengths.max()))
        valid = places < lengths[:, None]
        ids = torch.full(valid.shape, start_token(self.config))
        ids[valid] = torch.tensor(np.concatenate(rows))
        return ids, valid, valid & (places < len(front))

    def _start_tokens(self) -> list[int]:
        return [start_token(self.config)] if self.tokenizer is None else special_ends(self.tokenizer)[0]

    def _text_ids(self, text: str | None) -> list[int]:
        if text is None:
            return []
        if self.tokenizer is None:
            raise ModelError("transcripts need the model's tokenizer", got="none", do="pass the whole processor")
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _decoder_limit(self) -> int | None:
        return getattr(self.config, "max_target_positions", None)

    def _cuts_transcript(self, key: str, samples: int) -> bool:
        limit = self._decoder_limit()
        if not self.decodes or limit is None or key not in self.transcripts or samples > self.window:
            return False
        return len(self._start_tokens()) + len(self._text_ids(self.transcripts[key])) > limit


def _window_limits(extractor: Any) -> tuple[int, int | None]:
    """The fewest samples that the extractor takes, and how many make a window that it always fills, if it does so."""
    if hasattr(extractor, "n_samples"):  # Whisper
        return 1, extractor.n_samples
    frames = getattr(extractor, "max_length", None)
    if frames is None:
        return 1, None
    shift, width = extractor.sampling_rate // 100, extractor.sampling_rate // 40  # a spectrogram's 10 and 25 ms
    return width, (frames - 1) * shift + width


def _receptive_field(config: Any) -> int:
    """The samples that one frame needs: 400 for the convolutions of wav2vec2."""
    samples = 1
    kernels, strides = getattr(config, "conv_kernel", ()), getattr(config, "conv_stride", ())
    for kernel, stride in reversed(list(zip(kernels, strides, strict=True))):
        samples = (samples - 1) * stride + kernel
    return samples
