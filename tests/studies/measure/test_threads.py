"""Sites are measured side by side; the numbers are those of one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import anisoscope
from anisoscope.models.embedded_series import EMBEDDED
from anisoscope.runs.work.ahead import in_order
from anisoscope.studies.measure import hidden

TEXTS = [f"Sentence {number} says that clouds lie {number % 7} steps from the origin." for number in range(40)]


def test_rows_do_not_depend_on_how_many_sites_are_measured_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = []
    for at_a_time in (1, 3):
        monkeypatch.setattr(hidden, "side_by_side", lambda d, threads, n=at_a_time: n)
        tables.append(anisoscope.measure(EMBEDDED / "seed-0/checkpoint-64", TEXTS).table().to_pylist())
    one, three = tables
    assert len({row["site"] for row in one}) > 3
    for a, b in zip(one, three, strict=True):
        numbers = {name for name, value in a.items() if isinstance(value, float)}
        assert {name: a[name] for name in numbers} == pytest.approx({name: b[name] for name in numbers}, 1e-9, 1e-12)
        assert {n: v for n, v in a.items() if n not in numbers} == {n: v for n, v in b.items() if n not in numbers}


def test_results_come_in_order_and_few_at_a_time() -> None:
    made = []

    def calls() -> Iterator[Callable[[], int]]:
        for number in range(8):
            made.append(number)
            yield lambda number=number: number * number

    results = in_order(calls(), workers=2, threads=2)
    assert next(results) == 0
    assert len(made) <= 3
    assert list(results) == [number * number for number in range(1, 8)]


def test_an_error_is_raised_in_its_turn() -> None:
    results = in_order([lambda: 1, lambda: 1 // 0, lambda: 3], workers=2, threads=2)
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)
