"""Settings written as TOML read back as they were, by a parser that is not ours."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anisoscope.errors import UsageError
from anisoscope.runs import toml

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
SCALARS = (
    TEXT
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)  # fmt: skip
TABLES = st.dictionaries(TEXT, SCALARS | st.lists(SCALARS, max_size=3), max_size=4)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(table=TABLES, inner=TABLES)
def test_any_settings_survive(table: dict, inner: dict) -> None:
    plan = {**{f"k{key}": value for key, value in table.items()}, "settings": inner}
    assert tomllib.loads(toml.dumps(plan)) == plan


def test_missing_values_are_left_out_and_paths_become_text() -> None:
    plan = {"command": "x", "settings": {"a": None, "b": Path("c d/é.npy"), "t": (1, 2)}}
    assert tomllib.loads(toml.dumps(plan)) == {"command": "x", "settings": {"b": "c d/é.npy", "t": [1, 2]}}


def test_what_toml_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        toml.dumps({"a": object()})


def test_files_that_are_no_toml_are_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("command = ", encoding="utf-8")
    with pytest.raises(UsageError, match=r"not valid TOML.*bad\.toml"):
        toml.load(bad)
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not valid TOML"):
        toml.load(bad)
    with pytest.raises(UsageError, match="no such file"):
        toml.load(tmp_path / "absent.toml")
