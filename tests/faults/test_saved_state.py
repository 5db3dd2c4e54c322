"""The state that a killed command left: damage to it is named, and it decides how the work goes on."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch

import cases
from anisoscope.errors import StoreError
from anisoscope.runs.work.saved import Saved, find_saved
from anisoscope.runs.work.units import Unit


@pytest.mark.parametrize("command", ["vectors", "measure"])
def test_a_damaged_state_is_named_and_not_continued(command: str, world: Path, tmp_path: Path, command_line) -> None:
    words = [*cases.words_of(command, world), "--out", tmp_path / "run"]
    assert cases.run(*words, signal_=signal.SIGKILL, after=2).code == -signal.SIGKILL
    (state,) = (tmp_path / "run" / "partial").rglob("*.safetensors")
    whole = state.read_bytes()
    flipped = bytearray(whole)
    flipped[-5] ^= 1
    for content in (bytes(flipped), whole[:-8], None):
        state.unlink() if content is None else state.write_bytes(content)
        refused = command_line(*words)
        assert (refused.code, refused.out) == (1, "")
        assert "the state of the unfinished run is damaged" in refused.err
        assert "--existing replace" in refused.err
    state.write_bytes(whole)
    assert command_line(*words).code == 0


def test_a_pass_goes_on_in_batches_of_the_size_that_it_began_with(world: Path, tmp_path: Path) -> None:
    words = [*cases.words_of("attention", world), "--out", tmp_path / "run"]
    at = words.index("--batch-tokens") + 1
    done = []
    for size in ("40", "100000"):
        words[at] = size
        assert cases.run(*words, signal_=signal.SIGKILL, after=2).code == -signal.SIGKILL
        (header,) = cases.states(tmp_path / "run")
        assert not header["finished"]
        done.append(header["done"])
    assert done[1] <= 2 * done[0] + 2 < 24  # not all the rest at once


def test_a_state_outside_its_folder_is_refused(tmp_path: Path) -> None:
    saved = Saved(tmp_path / "state", Unit(), {"model": "a"})
    saved.save({"n": torch.ones(2)})
    shutil.move(saved.folder / saved.state, tmp_path / "elsewhere")
    header = json.loads(saved.header.read_text())
    saved.header.write_text(json.dumps({**header, "state": "../elsewhere"}))
    with pytest.raises(StoreError, match="the state of the unfinished run is damaged"):
        find_saved(saved.folder, saved.identity)


@pytest.mark.parametrize("change", [{"done": 48}, {"finished": True}])
def test_a_header_that_says_more_than_its_sums_hold_is_refused(tmp_path: Path, change: dict) -> None:
    saved = Saved(tmp_path / "state", Unit(), {"model": "a"}, done=16)
    saved.save({"n": torch.ones(2)})
    assert [found.done for found in find_saved(saved.folder, saved.identity)] == [16]
    saved.header.write_text(json.dumps({**json.loads(saved.header.read_text()), **change}))
    with pytest.raises(StoreError, match="the state of the unfinished run is damaged"):
        find_saved(saved.folder, saved.identity)
