"""The demo: the main job on what is embedded, offline, in a few minutes.

1. Word vectors counted from the embedded English text are measured and calibrated: every similarity is high. Why?
2. The embedded series of checkpoints, where the package carries one: the last checkpoint by layer, then along training.
3. An untrained block under a drift, at small size.
4. What isotropy would look like.

Each part is a run folder of its own, resumable and reusable like any other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anisoscope.runs.measurement import Measurement
from anisoscope.runs.store import atomic

WORDS, CONTEXTS, REACH = 2000, 96, 4


@dataclass(frozen=True)
class Part:
    """One part of the demo: the folder of its run, and what was seen, in a line."""

    name: str
    measurement: Measurement
    seen: str


def demo(out: Path) -> list[Part]:
    """Run every part; what was seen, part by part."""
    import torch

    torch.set_num_threads(1)  # models this small run slower on more
    out.mkdir(parents=True, exist_ok=True)
    parts: list[Callable[[Path], Part]] = [_vectors, _calibration]
    parts += [_layers, _sweep] if _has_series() else []
    return [part(out) for part in [*parts, _block, _null]]


def count_vectors() -> tuple[list[str], NDArray[np.float32]]:
    """Word vectors of the embedded text, (words, contexts): log(1 + how often a context word stands within 4 words)."""
    from anisoscope.inputs.embedded import embedded

    documents = [re.findall(r"[a-z]+", document.text.lower()) for document in embedded("text")]
    frequency = Counter(word for words in documents for word in words)
    common = [word for word, _ in frequency.most_common(WORDS)]
    row = {word: i for i, word in enumerate(common)}
    column = {word: i for i, word in enumerate(common[:CONTEXTS])}
    counts = np.zeros((len(common), len(column)))
    for words in documents:
        for place, word in enumerate(words):
            if word not in row:
                continue
            for near in words[max(0, place - REACH) : place] + words[place + 1 : place + 1 + REACH]:
                if near in column:
                    counts[row[word], column[near]] += 1
    return common, np.log1p(counts).astype(np.float32)


def _vectors(out: Path) -> Part:
    from anisoscope.studies.vectors import VectorsSettings, measure_files

    file = _word_file(out)
    found = measure_files(VectorsSettings(files=[str(file)]), out=out / "vectors")
    cosine, used = found.value("mean_cosine"), found.value("participation_ratio_unbiased")
    numbers = f"average cosine {cosine:.2f}, {used:.1f} of {CONTEXTS} dimensions in use"
    return Part("vectors", found, f"word vectors of the embedded text: {found.verdict} ({numbers})")


def _word_file(out: Path) -> Path:
    file = out / "word-vectors.npy"
    if not file.exists():
        with atomic(file) as partial, partial.open("wb") as stream:
            np.save(stream, count_vectors()[1])
    return file


def _calibration(out: Path) -> Part:
    from anisoscope.studies.calibrate import CalibrateSettings, calibrate_files

    found = calibrate_files(CalibrateSettings(files=[str(_word_file(out))]), out=out / "calibrate")
    return Part("calibrate", found, f"as similarities: {found.verdict}")


def _has_series() -> bool:
    from anisoscope.models.embedded_series import EMBEDDED

    return any(EMBEDDED.glob("seed-*/checkpoint-*/config.json"))


def _layers(out: Path) -> Part:
    from anisoscope.models.embedded_series import embedded_series
    from anisoscope.studies.measure.study import MeasureSettings, measure_models

    last = max((step, folder) for seed, step, folder in embedded_series() if seed == 0)
    settings = MeasureSettings(models=[str(last[1])], limit=8, length=128)
    found = measure_models(settings, out=out / "layers")
    cosines = [row for row in found.rows if row.metric == "mean_cosine" and row.positions == "all"]
    first, top = cosines[0], max(cosines, key=lambda row: row.value or 0.0)
    seen = (
        f"byte-level BERT at step {last[0]:,}: average cosine {first.value:.2f} at {first.site}, "
        f"{top.value:.2f} at {top.site}; verdict {found.verdict}"
    )
    return Part("layers", found, seen)


def _sweep(out: Path) -> Part:
    from anisoscope.studies.sweep.study import SweepSettings, sweep_series

    found = sweep_series(SweepSettings(series="embedded", seeds=[0], limit=5, length=128), out=out / "sweep")
    return Part("sweep", found, f"along its training: {found.verdict}")


def _block(out: Path) -> Part:
    from anisoscope.studies.block.study import BlockPlan, run_blocks

    found = run_blocks(BlockPlan(norms=[0, 5, 10, 20, 30, 45, 60], seeds=3, sequences=1, length=128), out=out / "block")
    return Part("block", found, f"untrained BERT layer under a drift: {found.verdict}")


def _null(out: Path) -> Part:
    from anisoscope.studies.null import NullSettings, null_study

    found = null_study(NullSettings(dim=[16, 64, 256, 768, 4096]), out=out / "null")
    quantile = {row.site: row.value for row in found.rows if row.metric == "cosine_q95"}
    seen = "95 % of isotropic pairs stay below cosine " + ", ".join(f"{v:.3f} ({site})" for site, v in quantile.items())
    return Part("null", found, seen)
