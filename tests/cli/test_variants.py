"""What `anisoscope variants` prints: an arm a line, its change against the control below each mean."""

from __future__ import annotations

import pytest

from anisoscope.cli import variants as command
from anisoscope.errors import UsageError
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.table import Row
from anisoscope.studies.variants.rows import averages, differences


def test_means_and_changes_are_printed(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    losses = {"softmax": (2.0, 2.4), "query_centred": (2.1, 2.7)}
    rows = [
        Row(model=arm, metric="validation_loss", value=v, seed=s)
        for arm, vs in losses.items()
        for s, v in enumerate(vs)
    ]
    rows = [*averages(rows), *differences(rows, control="softmax"), *rows]
    command._show(Measurement(tuple(rows), verdict="as sharp, as anisotropic"))
    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines()]
    assert ["softmax", "2.2", "–", "–", "–", "–", "–"] in lines
    place = next(i for i, line in enumerate(lines) if line[:2] == ["query_centred", "2.4"])
    assert lines[place + 1] == ["+0.200", "±", "1.271"]  # t with one degree of freedom: 12.706 · 0.1
    assert "verdict: as sharp, as anisotropic" in printed


def test_fields_of_the_recipe_are_read_as_toml() -> None:
    assert [command._field(text) for text in ("hidden=96", "dropout=0.1", "arch=gpt2", "seeds=[1, 2]")] == [
        ("hidden", 96),
        ("dropout", 0.1),
        ("arch", "gpt2"),
        ("seeds", [1, 2]),
    ]
    with pytest.raises(UsageError, match="name=value"):
        command._field("hidden")
