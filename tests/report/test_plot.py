"""Views of a result for notebooks and print: the interactive figure, and pictures in a folder of one's own."""

from __future__ import annotations

from pathlib import Path

import anisoscope
import report_runs
from anisoscope.report.plot import plot
from anisoscope.results import Result


def test_a_training_is_drawn_over_evenly_spaced_steps_one_line_per_site_and_seed(tmp_path: Path) -> None:
    run = report_runs.series_run(tmp_path / "run", steps=(0, 8, 4096), seeds=(0, 1))
    rows = [row for row in run.rows() if (row.step, row.seed) != (8, 0)]  # a checkpoint that is missing
    figure = plot(rows, "mean_cosine")
    assert [line.name for line in figure.data][:2] == ["seed 0, block.0", "seed 1, block.0"]
    assert list(figure.data[0].x) == ["0", "4,096"]
    assert list(figure.layout.xaxis.categoryarray) == ["0", "8", "4,096"]
    assert figure.layout.xaxis.type == "category"


def test_a_folder_holds_the_pictures_of_the_last_measurement(tmp_path: Path) -> None:
    for name, dim in (("first", 16), ("second", 64)):
        anisoscope.null([dim], out=tmp_path / name)
        drawn = Result.figures(anisoscope.open_run(tmp_path / name), tmp_path / "figures")
        own = anisoscope.open_run(tmp_path / name).figures(tmp_path / f"of-{name}")
    svg = [path for path in drawn if path.suffix == ".svg"]
    assert svg
    for path in svg:
        twin = next(one for one in own if one.name == path.name)
        assert _without_dates(path) == _without_dates(twin)
    assert _without_dates(svg[0]) != _without_dates(tmp_path / "of-first" / svg[0].name)


def _without_dates(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if "dc:date" not in line and "id=" not in line and "#" not in line]
