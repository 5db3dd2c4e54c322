"""The files of a figure are whole or not there."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from anisoscope.report.figures.style import save


def test_a_figure_that_was_not_written_to_its_end_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Figure.savefig

    def stopped(figure: Figure, path: Path, **options: object) -> None:
        write(figure, path, **options)
        if options["format"] == "png":
            Path(path).write_bytes(Path(path).read_bytes()[:100])
            raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", stopped)
    with pytest.raises(KeyboardInterrupt):
        save(plt.figure(), tmp_path, "layers")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layers.pdf", "layers.svg"]
    monkeypatch.undo()
    save(plt.figure(), tmp_path, "layers")
    assert (tmp_path / "layers.png").stat().st_size > 1000
