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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.errors import StoreError
from anisoscope.models.embedded_series import embedded_series
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.perform import perform
from anisoscope.runs.settings import Machine
from anisoscope.runs.writing import atomic, is_free

WORDS, CONTEXTS, REACH = 2000, 96, 4


_BLOCK = {"norms": [0, 5, 10, 20, 30, 45, 60], "seeds": 3, "sequences": 1, "length": 128}
WORD_FILE = "word-vectors.npz"


@dataclass(frozen=True)
class Part:
    """One part of the demo: the folder of its run, and what it looks at."""

    name: str
    measurement: Measurement
    what: str

    @property
    def seen(self) -> str:
        verdict = self.measurement.verdict
        return f"{self.what}: {verdict if isinstance(verdict, str) else verdict.sentence}"


def demo(out: Path) -> list[Part]:
    """Run every part; what was seen, part by part."""
    if not is_free(out) and not (out / WORD_FILE).exists():
        raise StoreError("this folder holds something else", where=out, do="choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    file = _word_file(out)
    machine = Machine(threads=1)  # models this small run slower on more
    return [
        Part(name, perform(study, settings, machine=machine, out=out / name), what)
        for name, (study, settings, what) in jobs(file).items()
    ]


def jobs(file: Path) -> dict[str, tuple[str, dict[str, Any], str]]:
    """What is run on the words of a file and on the embedded models: by name, the study, its settings, what it is."""
    last = max((step, folder) for seed, step, folder in embedded_series() if seed == 0)
    few, words = {"limit": 8, "length": 128}, {"files": [str(file)], "column": "vectors"}
    return {
        "vectors": ("vectors", {**words, "ids": "word", "keep_text": True}, "word vectors of the embedded text"),
        "calibrate": ("calibrate", words, "as similarities"),
        "layers": ("measure", {"models": [str(last[1])], **few}, f"a byte-level BERT, step {last[0]:,}"),
        "sweep": ("sweep", {"series": "embedded", "seeds": [0], **few}, "along its training"),
        "block": ("block", _BLOCK, "an untrained BERT layer under a drift"),
        "null": ("null", {"dim": [16, 64, 256, 768, 4096]}, "what isotropy gives"),
    }


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


def _word_file(out: Path) -> Path:
    file = out / WORD_FILE
    if not file.exists():
        with atomic(file) as partial, partial.open("wb") as stream:
            words, vectors = count_vectors()
            np.savez(stream, vectors=vectors, word=np.array(words))
    return file
