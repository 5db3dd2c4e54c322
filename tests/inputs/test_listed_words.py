"""Words of a list that happen to be names of folders."""

from __future__ import annotations

import pytest

from anisoscope.errors import UsageError
from anisoscope.inputs.text import open_text


def test_a_word_beside_sentences_is_a_text_whatever_folder_is_called_like_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "a.txt").write_text("words")
    said = ["a fixed probe", "of a few", "texts"]
    assert [document.text for document in open_text(said)] == said
    for mixed in (["a.txt", "of a few"], ["texts", "txets"]):
        with pytest.raises(UsageError, match="texts and names of files in one list"):
            open_text(mixed)
