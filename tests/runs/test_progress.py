"""Progress goes to standard error, as lines where there is no terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from anisoscope.runs import progress
from anisoscope.runs.progress import track


def test_short_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with track("measuring", total=3) as bar:
        bar.advance(3)
    assert capsys.readouterr() == ("", "")


def test_long_work_logs_lines_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    stream = io.StringIO()
    with track("measuring", total=4, unit="vectors", stream=stream) as bar:
        bar.advance(1)
        bar.describe("counting")
        bar.advance(1)
    assert stream.getvalue().splitlines() == [
        "measuring: 25% (1 of 4 vectors), 20 s elapsed, 60 s left",
        "counting: 50% (2 of 4 vectors), 40 s elapsed, 40 s left",
        "counting: 2 vectors in 60 s",
    ]


@pytest.mark.parametrize(
    ("work", "amount", "place", "said"),
    [
        ({"what": "reading", "unit": "lines"}, 5, 0, "reading: 5 lines, 20 s elapsed"),
        ({"what": "measuring", "unit": "models", "total": 1}, 1, -1, "measuring: 1 model in 40 s"),
    ],
)
def test_no_time_is_left_of_unknown_work_and_one_is_not_a_plural(monkeypatch, work, amount, place, said) -> None:
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    stream = io.StringIO()
    with track(**work, stream=stream) as bar:
        bar.advance(amount)
    assert stream.getvalue().splitlines()[place] == said


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_on_standard_error_that_vanishes(monkeypatch, capsys) -> None:
    monkeypatch.setattr(progress, "_PATIENCE", -1.0)
    with track("measuring", total=2, stream=Terminal()) as bar:
        bar.advance(1)
        bar.describe("still measuring")
        bar.advance(1)
    assert capsys.readouterr().out == ""


def test_a_bar_of_unknown_length_says_what_is_gone_and_asks_nothing(monkeypatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr(progress, "_PATIENCE", -1.0)
    monkeypatch.setattr("rich.console.Console", lambda stderr: Console(file=said, force_terminal=True, width=80))
    with track("running", unit="windows", stream=Terminal()) as bar:
        bar.advance(64)
    assert "64 windows 0:00:0" in Text.from_ansi(said.getvalue()).plain
    assert "?" not in Text.from_ansi(said.getvalue()).plain
