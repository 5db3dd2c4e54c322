"""Labels of models that appear together."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anisoscope.models.labels import labels


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["/x/A/model", "/x/B/model"], ["A/model", "B/model"]),
        (["/x/A/s/model", "/x/B/s/model", "/x/other"], ["A/s/model", "B/s/model", "other"]),
        (["/x/A/model/", "/x/B/model"], ["A/model", "B/model"]),
        (["gpt2", "openai-community/gpt2"], ["gpt2", "openai-community/gpt2"]),
        (["x", "x", "x (2)", "x"], ["x", "x (3)", "x (2)", "x (4)"]),
        (["/x/m", "/x/m"], ["m", "m (2)"]),
        (["/model", "/a/model"], ["model", "a/model"]),
        (["owner/name", "/x/owner/name"], ["owner/name", "name"]),
        ([], []),
    ],
)
def test_labels_are_short_and_unique(names: list[str], expected: list[str]) -> None:
    assert labels(names) == expected


def test_a_relative_folder_gets_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("A/model", "B/model"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert labels(["A/model", "./B/model"]) == ["A/model", "B/model"]


@given(st.lists(st.sampled_from(["/a/m", "/b/m", "/a/b/m", "/m", "m", "o/m", "/c/a/b/m", "m (2)"]), max_size=9))
def test_no_two_labels_are_the_same(names: list[str]) -> None:
    found = labels(names)
    assert len(set(found)) == len(found) == len(names)
