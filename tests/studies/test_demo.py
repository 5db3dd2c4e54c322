"""The demo's own parts: vectors counted from text that every Python carries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anisoscope.errors import StoreError, UsageError
from anisoscope.runs.study import find_study
from anisoscope.studies.demo import CONTEXTS, WORDS, count_vectors, demo, jobs


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


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="something else"):
        demo(tmp_path)
    with pytest.raises(UsageError, match="this is a file"):
        demo(tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_a_kill_left_of_its_first_file_is_no_other_folder(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / ".words.npz.99999999@there.partial").touch()
    monkeypatch.setattr("anisoscope.studies.demo.jobs", lambda _: {})
    assert demo(tmp_path) == []
