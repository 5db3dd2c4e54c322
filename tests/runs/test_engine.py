"""A pass that is killed at any batch and continued ends with the very sums of an uninterrupted one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from anisoscope.capture.masks import RowIndex
from anisoscope.errors import StoreError
from anisoscope.runs import engine
from anisoscope.runs.engine import Pass, SumSettings, run_pass

WINDOWS, LENGTH, D = 11, 5, 4
SITES = ("embeddings", "block.0")


@dataclass
class FakeBatch:
    """Some windows of the plan: window w is row w % 3 of document w // 3."""

    windows: range

    @property
    def keys(self) -> list[str]:
        return [f"document {w // 3}" for w in self.windows]

    @property
    def starts(self) -> list[int]:
        return [LENGTH * (w % 3) for w in self.windows]

    def __len__(self) -> int:
        return len(self.windows)


class FakeBatches:
    """Eleven windows, `batch_tokens` at a time."""

    total = WINDOWS

    def __init__(self, batch_tokens: int) -> None:
        self.batch_tokens = batch_tokens

    def iterate(self, start_at: int = 0) -> Iterator[tuple[int, FakeBatch]]:
        for start in range(start_at, WINDOWS, self.batch_tokens):
            yield start, FakeBatch(range(start, min(start + self.batch_tokens, WINDOWS)))


class FakeCapture:
    """Gives each window vectors that depend on the window alone; fails before the batch that holds `dies_at`."""

    sites = tuple(SimpleNamespace(name=name) for name in SITES)

    def __init__(self, dies_at: int | None = None) -> None:
        self.dies_at = dies_at

    def run(self, batch: FakeBatch, sink) -> None:
        if self.dies_at in batch.windows:
            raise KeyboardInterrupt
        position = np.tile(np.arange(LENGTH), len(batch))
        rows = RowIndex(np.repeat(np.arange(len(batch)), LENGTH), position, position == 0)
        for number, name in enumerate(SITES):
            vectors = [torch.randn(LENGTH, D, generator=torch.Generator().manual_seed(w)) for w in batch.windows]
            sink(name, torch.cat(vectors) + number, rows)


def states(moments) -> dict[str, torch.Tensor]:
    return engine.join_states(moments)


def perform(folder: Path | None, *, dies_at: int | None = None, batch_tokens: int = 2, data: str = "d"):
    return run_pass(FakeCapture(dies_at), FakeBatches(batch_tokens), SumSettings(), folder=folder, data=data)  # pyright: ignore


@pytest.fixture(autouse=True)
def _save_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SAVE_EVERY", -1.0)
    monkeypatch.setattr(engine, "_SAVING_SHARE", 1e9)


@pytest.mark.parametrize("dies_at", [0, 3, 10])
def test_a_killed_pass_ends_with_the_same_sums(tmp_path: Path, dies_at: int) -> None:
    straight = states(perform(None))
    with pytest.raises(KeyboardInterrupt):
        perform(tmp_path / "pass", dies_at=dies_at)
    assert Pass.resume(tmp_path / "pass", batch_tokens=2, data="d").done == dies_at // 2 * 2
    resumed = states(perform(tmp_path / "pass"))
    assert resumed.keys() == straight.keys()
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)
    assert Pass.resume(tmp_path / "pass", batch_tokens=2, data="d").done == WINDOWS  # it need not be made again


def test_whoever_continues_keeps_the_batch_size(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        perform(tmp_path / "pass", dies_at=6, batch_tokens=2)
    batches = FakeBatches(5)
    run_pass(FakeCapture(), batches, SumSettings(), folder=tmp_path / "pass", data="d")  # pyright: ignore
    assert batches.batch_tokens == 2


def test_other_data_is_not_continued(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        perform(tmp_path / "pass", dies_at=6)
    with pytest.raises(StoreError, match="data changed"):
        perform(tmp_path / "pass", data="other")


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        perform(tmp_path / "pass", dies_at=6)
    state = next((tmp_path / "pass").glob("state-*.safetensors"))
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(StoreError, match="damaged"):
        perform(tmp_path / "pass")


def test_one_state_is_kept_and_none_by_halves(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        perform(tmp_path / "pass", dies_at=8)
    assert sorted(path.name for path in (tmp_path / "pass").iterdir()) == ["pass.json", "state-8.safetensors"]


def test_a_full_disk_names_the_folder_and_keeps_the_former_state(tmp_path: Path, monkeypatch) -> None:
    import safetensors.torch
    from safetensors import SafetensorError

    def full(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with pytest.raises(KeyboardInterrupt):
        perform(tmp_path / "pass", dies_at=4)
    with monkeypatch.context() as patched:
        patched.setattr(safetensors.torch, "save_file", full)
        with pytest.raises(StoreError, match="No space left"):
            perform(tmp_path / "pass")
    assert Pass.resume(tmp_path / "pass", batch_tokens=2, data="d").done == 4
    resumed, straight = states(perform(tmp_path / "pass")), states(perform(None))
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)


def test_site_names_with_bars_survive() -> None:
    moments = perform(None)
    odd = {"a|b.c": moments["block.0"]}
    parts = engine.split_states(engine.join_states(odd))
    assert list(parts) == ["a|b.c"]
    assert "meta" in parts["a|b.c"]
