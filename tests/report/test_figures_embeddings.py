"""Pictures of a gate and of two clouds: every point stands where its row says."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

import anisoscope
import report_runs
from anisoscope.report.figures import figures_of
from anisoscope.report.figures.calibrate import figure_calibration
from anisoscope.runs.store import Run


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, rng = tmp_path_factory.mktemp("clouds"), np.random.default_rng(0)
    x = rng.standard_normal((600, 8)) + 0.5
    for name, y in {"old": x, "new": x + 0.4 * rng.standard_normal(x.shape)}.items():
        np.save(folder / f"{name}.npy", y)
    return [folder / "old.npy", folder / "new.npy"]


def drawn(panel) -> list[float]:
    return [float(line.get_xdata()[0]) for line in panel.lines if line.get_marker() == "o"]


def test_a_gate_shows_every_rule_with_its_limits(files: list[Path], tmp_path: Path) -> None:
    run = anisoscope.gate(*files, out=tmp_path / "gate").run
    assert run is not None
    panels = figures_of(run)["gate"](run).axes
    metrics = ("mean_cosine_difference", "neighbour_overlap", "partner_cosine")
    assert [drawn(panel) for panel in panels] == [[row.value] for name in metrics for row in run.rows(metric=name)]
    assert [panel.get_title("left") for panel in panels] == [
        "vectors, average cosine: moves by at most 0.02: cannot say",
        "vectors, neighbours kept: at least 0.95: fails",
        "vectors, cosine of partners: at least 0.99: fails",
    ]
    bands = [(p.patches[0].get_x(), p.patches[0].get_x() + p.patches[0].get_width()) for p in panels]  # pyright: ignore
    assert bands[0] == pytest.approx((-0.02, 0.02))
    assert (bands[1][0], bands[2][0]) == pytest.approx((0.95, 0.99))


def test_limits_on_both_sides_are_a_band_and_a_run_without_them_has_no_picture(
    files: list[Path], tmp_path: Path
) -> None:
    rules = tmp_path / "gate.toml"
    rules.write_text('[[rule]]\nmetric = "mean_norm"\nat_least = 0.5\nat_most = 2e3\n')
    run = anisoscope.gate(*files, rules=rules, out=tmp_path / "gate").run
    assert run is not None
    (band,) = figures_of(run)["gate"](run).axes[0].patches
    assert (band.get_x(), band.get_x() + band.get_width()) == (0.5, 2000.0)  # pyright: ignore
    old = replace(run, manifest={name: value for name, value in run.manifest.items() if name != "verdicts"})
    assert not figures_of(old)


def test_two_clouds_show_cosines_and_what_they_share(files: list[Path], tmp_path: Path) -> None:
    found = anisoscope.vectors(files[0], against=files[1], aligned=True, neighbours=False, out=tmp_path / "run")
    assert found.run is not None
    left, right = figures_of(found.run)["two_clouds"](found.run).axes
    within = [found.value("mean_cosine", site=site) for site in ("vectors", "against")]
    assert drawn(left) == [*within, found.value("cosine_between"), found.value("partner_cosine")]
    assert found.value("linear_cka") in drawn(right)
    alone = anisoscope.vectors(files[0], neighbours=False, out=tmp_path / "alone").run
    assert alone is not None
    assert not figures_of(alone)


def test_intervals_are_announced_only_where_they_are_drawn(tmp_path: Path) -> None:
    def told(run: Run, name: str) -> bool:
        return "bars: 95 %" in (figures_of(run)[name](run).get_supxlabel() or "")

    judged = report_runs.gate_run(tmp_path / "gate")
    assert told(judged, "gate")
    without = [{**one, "low": None, "high": None} for one in judged.manifest["verdicts"]]
    assert not told(replace(judged, manifest={**judged.manifest, "verdicts": without}), "gate")
    assert not told(report_runs.clouds_run(tmp_path / "clouds"), "two_clouds")


def test_the_titles_of_a_calibration_stand_apart(files: list[Path], tmp_path: Path) -> None:
    run = anisoscope.calibrate(files[0], out=tmp_path / "run").run
    assert run is not None
    figure = figure_calibration(run)
    figure.canvas.draw()
    titles = [
        title for panel in figure.axes for title in panel.findobj(Text) if title.get_text() == panel.get_title("left")
    ]
    boxes = [title.get_window_extent() for title in titles]
    assert [title.get_text() for title in titles][::3] == ["as they are", "whitening"]
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))
