"""What the allocator holds and nobody uses goes back to the system, when a batch took more than those before it."""

from __future__ import annotations

import ctypes

import pytest

from anisoscope.runs.work import memory


def test_memory_is_given_back_when_the_peak_has_grown_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks, given = iter([100, 100, 120, 120]), []
    monkeypatch.setattr(memory, "_peak", lambda: next(peaks))
    monkeypatch.setattr(memory, "_trim", lambda: lambda kept: given.append(kept))
    tidy, after = memory.Tidy(), []
    for _ in range(4):
        tidy()
        after.append(len(given))
    assert after == [1, 1, 2, 2]


def test_where_the_library_cannot_trim_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    memory._trim.cache_clear()
    try:
        memory.Tidy()()
    finally:
        memory._trim.cache_clear()
