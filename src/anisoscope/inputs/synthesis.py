"""Synthesised sounds and images, computed from a seed: every modality can be tried with no data at all.

24 clips of 1 to 3 s at 16 kHz: chords, sweeps, bursts of noise, and vowels (pulses at the pitch of a voice, each
ringing at the formants of Peterson & Barney, 1952). 48 images of 224 × 224: gradients, gratings, shapes, and noise from
white to 1/f². Values are computed in float64 and rounded to 16 and 8 bits, so that they, and with them the fingerprint,
do not depend on the last bit of a sine.

>>> len(clips()), len(pictures())
(24, 48)
"""

from __future__ import annotations

import math

import numpy as np

from anisoscope.inputs.sources import Clip, Picture

RATE = 16_000  # samples per second
SIDE = 224  # pixels
FORMANTS = {  # Hz, of men's voices
    "heed": (270, 2290, 3010),
    "hid": (390, 1990, 2550),
    "had": (660, 1720, 2410),
    "hod": (730, 1090, 2440),
    "hawed": (570, 840, 2410),
    "whod": (300, 870, 2240),
}


def clips(*, seed: int = 0) -> list[Clip]:
    """Six each of chord, sweep, bursts and vowel."""
    rng = np.random.default_rng(seed)
    waves: dict[str, np.ndarray] = {}
    for number, vowel in enumerate(FORMANTS):
        seconds = 1.0 + 0.4 * number
        time = np.arange(round(seconds * RATE)) / RATE
        waves[f"chord.{number}"] = _chord(time, root=110.0 * 2 ** (number / 4))
        waves[f"sweep.{number}"] = _sweep(time, low=80.0 * (number + 1), high=1000.0 * (number + 1))
        waves[f"bursts.{number}"] = _bursts(time, rng, per_second=2 + number)
        waves[f"vowel.{vowel}"] = _vowel(time, FORMANTS[vowel], pitch=100.0 + 20 * number)
    return [Clip(key, _sixteen_bits(wave), RATE) for key, wave in sorted(waves.items())]


def _sixteen_bits(wave: np.ndarray) -> np.ndarray:
    """Scaled to a peak of one half and rounded as a recording would be."""
    scaled = np.rint(wave * (0.5 * 32_768 / np.abs(wave).max()))
    return (scaled / 32_768).astype(np.float32)


def _fade(time: np.ndarray) -> np.ndarray:
    """Rise and fall of 50 ms at the ends, so that nothing clicks."""
    return np.clip(np.minimum(time, time[-1] - time) / 0.05, 0.0, 1.0)


def _chord(time: np.ndarray, *, root: float) -> np.ndarray:
    tones = [root * ratio for ratio in (1, 5 / 4, 3 / 2, 2)]
    partials = [np.sin(2 * math.pi * tone * k * time) / k**2 for tone in tones for k in (1, 2, 3, 4)]
    return _fade(time) * np.exp(-time) * np.sum(partials, axis=0)


def _sweep(time: np.ndarray, *, low: float, high: float) -> np.ndarray:
    """A tone that rises exponentially from `low` to `high`."""
    growth = math.log(high / low) / time[-1]
    return _fade(time) * np.sin(2 * math.pi * low * np.expm1(growth * time) / growth)


def _bursts(time: np.ndarray, rng: np.random.Generator, *, per_second: int) -> np.ndarray:
    gate = (time * per_second) % 1.0
    return _fade(time) * rng.standard_normal(len(time)) * np.exp(-8 * gate)


def _vowel(time: np.ndarray, formants: tuple[int, ...], *, pitch: float) -> np.ndarray:
    """Each pulse of the voice rings at every formant and dies before a few more have come; the pitch sways a little."""
    sway = 2 * math.pi * 5 * time
    cycles = pitch * time + 0.3 * np.sin(sway)
    since = (cycles % 1.0) / (pitch + 0.3 * 2 * math.pi * 5 * np.cos(sway))  # seconds since the last pulse
    rings = [
        np.exp(-math.pi * (60 + 0.04 * formant) * since) * np.sin(2 * math.pi * formant * since) / (k + 1)
        for k, formant in enumerate(formants)
    ]
    return _fade(time) * np.sum(rings, axis=0)


def pictures(*, seed: int = 0) -> list[Picture]:
    """Twelve each of gradient, grating, shapes and noise, in two colours each."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:SIDE, 0:SIDE] / (SIDE - 1) - 0.5  # (SIDE, SIDE), -0.5…0.5
    planes: dict[str, np.ndarray] = {}
    for number in range(12):
        angle = math.pi * number / 12
        planes[f"gradient.{number:02d}"] = 0.5 + 0.7 * (x * math.cos(2 * angle) + y * math.sin(2 * angle))
        planes[f"grating.{number:02d}"] = _grating(x, y, angle=angle, waves=2 + 2 * number)
        planes[f"shapes.{number:02d}"] = _shapes(x, y, rng, count=1 + number)
        planes[f"noise.{number:02d}"] = _noise(rng, slope=number / 5)
    return [Picture(key, Image.fromarray(_coloured(plane, rng))) for key, plane in sorted(planes.items())]


def _grating(x: np.ndarray, y: np.ndarray, *, angle: float, waves: int) -> np.ndarray:
    """A sine grating under a Gaussian window."""
    along = x * math.cos(angle) + y * math.sin(angle)
    return 0.5 + 0.5 * np.sin(2 * math.pi * waves * along) * np.exp(-4 * (x**2 + y**2))


def _shapes(x: np.ndarray, y: np.ndarray, rng: np.random.Generator, *, count: int) -> np.ndarray:
    """Discs and boxes of different grey, the later over the earlier."""
    plane = np.full_like(x, 0.1)
    for number in range(count):
        across, down = rng.uniform(-0.35, 0.35, 2)
        size, grey = rng.uniform(0.06, 0.22), rng.uniform(0.3, 1.0)
        u, v = np.abs(x - across), np.abs(y - down)
        plane[np.hypot(u, v) < size if number % 2 else np.maximum(u, v) < size] = grey
    return plane


def _noise(rng: np.random.Generator, *, slope: float) -> np.ndarray:
    """Noise whose amplitude falls as 1 / frequency^slope: white, then like clouds."""
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(SIDE), np.fft.rfftfreq(SIDE), indexing="ij"))
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(rng.standard_normal((SIDE, SIDE))) / frequency**slope
    plane = np.fft.irfft2(spectrum, s=(SIDE, SIDE))
    return 0.5 + 0.2 * plane / plane.std()


def _coloured(plane: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Grey values (H, W) between two colours, as bytes (H, W, 3)."""
    dark, light = rng.uniform(0, 90, 3), rng.uniform(150, 255, 3)
    mixed = dark + np.clip(plane, 0, 1)[..., None] * (light - dark)
    return np.rint(mixed).astype(np.uint8)
