"""Into how many units an interrupted run was cut is read off its headers, or the damage is named."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anisoscope.errors import StoreError
from anisoscope.runs.work.ray_engine import _former_cut
from anisoscope.runs.work.saved import Saved
from anisoscope.runs.work.units import Unit


def job(folder: Path) -> Any:
    return SimpleNamespace(folder=folder, machine=SimpleNamespace(shard=None))


def test_units_that_were_begun_say_how_many_there_are(tmp_path: Path) -> None:
    assert _former_cut(job(tmp_path)) is None
    Saved(tmp_path / "partial" / "model", Unit(1, 8), {}).save({})
    assert _former_cut(job(tmp_path)) == 8


@pytest.mark.parametrize("written", ["{", "{}", '{"unit": [0, 2, 0, []]}'])
def test_a_damaged_header_is_named(tmp_path: Path, written: str) -> None:
    header = tmp_path / "partial" / "model" / "0-of-2.json"
    header.parent.mkdir(parents=True)
    header.write_text(written)
    with pytest.raises(StoreError, match=r"0-of-2\.json"):
        _former_cut(job(tmp_path))
