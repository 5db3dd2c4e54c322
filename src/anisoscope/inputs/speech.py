"""Speech: wav, flac, ogg, mp3 and whatever else libsndfile decodes, mixed down to mono, resampled on demand.

Samples are float32 in [-1, 1). Channels are averaged. Silence is kept and noted, since a recording may be silent; a
file with NaN, infinite or absurdly large samples is refused, since no model survives it. A file that ends before its
header says is kept and noted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from anisoscope.errors import UsageError
from anisoscope.inputs.files import FoundFile, find_files, name_of
from anisoscope.inputs.sources import Clip, FileSource, MemorySource, Modality, Source, Unreadable, problem_of_samples

if TYPE_CHECKING:
    from soundfile import SoundFile

SUFFIXES = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aiff", ".aif", ".au", ".caf")
UNKNOWN_LENGTH = 0x7FFF_F000  # bytes; programs that stream and cannot go back to the header promise this or more

_PART = 2**21  # samples read at a time
_SHORT = re.compile(r"^ ?(?:data|SSND) : (\d+) \(should be (\d+)\)", re.MULTILINE)


def open_speech(where: str | Path | Sequence[str | Path] | Sequence[Clip]) -> Source[Clip]:
    """A file, folder or glob of recordings, a list of those, or a list of `Clip`."""
    places = [where] if isinstance(where, str | Path) else list(where)
    if places and all(isinstance(place, str | Path) for place in places):
        paths = cast("list[str | Path]", places)
        return SpeechFiles(find_files(paths, suffixes=SUFFIXES, what="audio"), name=name_of(paths))
    if not all(isinstance(place, Clip) for place in places):
        got = ", ".join(sorted({type(place).__name__ for place in places}))
        raise UsageError("not speech", got=f"a list with {got}", expected="paths, or `Clip` objects")
    return MemorySource(cast("list[Clip]", places), modality="speech", name="list")


class SpeechFiles(FileSource[Clip]):
    """One clip per file, its key the file's."""

    modality: Modality = "speech"

    def read(self, file: FoundFile) -> Iterator[Clip]:
        import soundfile

        try:
            with file.path.open("rb") as opened, soundfile.SoundFile(opened) as stream:
                samples = _all_of(stream)  # (samples, channels)
                rate, short = stream.samplerate, _what_is_missing(stream, len(samples))
        except soundfile.SoundFileError as problem:
            raise Unreadable(str(problem)) from problem
        if not len(samples):
            raise Unreadable("no samples")
        if problem := problem_of_samples(samples):
            raise Unreadable(problem)
        wave = samples.mean(axis=1, dtype=np.float32)
        if short is not None:
            self.note(file, f"cut off: {short}")
        if not wave.any():
            self.note(file, "silence: every sample is zero")
        yield Clip(file.key, wave, rate)


def _all_of(stream: SoundFile) -> np.ndarray:
    """The samples, in parts: a damaged header may announce more of them than any memory holds."""
    parts = [stream.read(_PART, dtype="float32", always_2d=True)]
    while len(parts[-1]) == _PART:
        parts.append(stream.read(_PART, dtype="float32", always_2d=True))
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def _what_is_missing(stream: SoundFile, read: int) -> str | None:
    """What the header promises and the file does not hold. Of wav and aiff only libsndfile's log still knows."""
    promised = stream.frames
    if read >= promised and (said := _SHORT.search(stream.extra_info)) and int(said[1]) < UNKNOWN_LENGTH:
        promised = round(read * int(said[1]) / max(int(said[2]), 1))
    rate = stream.samplerate
    return f"{read / rate:.1f} s of {promised / rate:.1f} s" if promised > read else None


def resample(wave: np.ndarray, rate: int, to: int) -> np.ndarray:
    """The wave at another rate: polyphase filtering by the exact ratio, ⌈samples · to / rate⌉ samples long.

    >>> resample(np.zeros(44_100, dtype=np.float32), 44_100, 16_000).shape
    (16000,)
    """
    if rate <= 0 or to <= 0:
        raise UsageError("a sampling rate must be positive", got=f"{rate} to {to}")
    if rate == to:
        return wave
    from scipy.signal import resample_poly

    common = math.gcd(rate, to)
    return resample_poly(wave, to // common, rate // common).astype(np.float32, copy=False)
