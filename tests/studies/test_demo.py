"""The demo's own parts: vectors counted from text that every Python carries."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anisoscope.runs.study import find_study
from anisoscope.studies.demo import CONTEXTS, WORDS, count_vectors, jobs


def test_word_vectors_are_log_counts_of_neighbours() -> None:
    words, vectors = count_vectors()
    assert vectors.shape == (WORDS, CONTEXTS)
    assert len(set(words)) == WORDS
    assert np.isfinite(vectors).all()
    assert (vectors >= 0).all()
    counts = np.expm1(vectors[:CONTEXTS].astype(float)).round()
    assert np.array_equal(counts, counts.T), "to stand near is mutual"
    assert counts[words.index("of"), words.index("the")] > 100


def test_every_study_of_the_demo_takes_its_settings() -> None:
    for study, settings, _ in jobs(Path("words.npz")).values():
        assert set(settings) <= set(find_study(study).settings.check(settings).as_dict())
