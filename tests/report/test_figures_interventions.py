"""The figure of interventions: what it draws, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from anisoscope.errors import StoreError
from anisoscope.report.figures.intervene import figure_interventions
from anisoscope.report.figures.variants import figure_variants
from anisoscope.runs.store import Run, open_run, write_run
from anisoscope.runs.table import Row


def written(folder: Path, values: dict[tuple[str, str], float | None]) -> Run:
    rows = [
        Row(
            site=site,
            metric=metric,
            value=v,
            low=None if v is None else v - 0.1,
            high=None if v is None else v + 0.1,
            null=0.0,
            model="m",
        )
        for (site, metric), v in values.items()
    ]
    write_run(folder, command="intervene", settings={}, protocol={}, rows=rows)
    return open_run(folder)


def test_every_intervention_has_a_line_with_its_control_beside_it(tmp_path: Path) -> None:
    run = written(
        tmp_path,
        {
            ("untouched", "loss_change"): 0.0,
            ("mean_query", "loss_change"): 2.0,
            ("mean_query.control", "loss_change"): -0.5,
            ("mean_hidden", "loss_change"): 0.25,
            ("untouched", "last_cosine_change"): 0.0,
            ("mean_query", "last_cosine_change"): None,
        },
    )
    figure = figure_interventions(run)
    loss, cosine = figure.axes
    assert [label.get_text() for label in loss.get_yticklabels()] == ["mean query", "mean hidden"]
    points = {(float(box[0].get_xdata()[0]), round(float(box[0].get_ydata()[0]))) for box in loss.containers}  # pyright: ignore
    assert points == {(2.0, 0), (-0.5, 0), (0.25, 1)}
    assert (loss.get_xscale(), cosine.get_xscale()) == ("symlog", "linear")
    assert not cosine.containers  # a missing value is no 0
    assert any(line.get_linestyle() == ":" and set(line.get_xdata()) == {0} for line in cosine.lines)  # pyright: ignore


def test_a_run_without_changes_is_refused(tmp_path: Path) -> None:
    run = written(tmp_path, {("block.0", "mean_cosine"): 0.5})
    with pytest.raises(StoreError, match="no changes"):
        figure_interventions(run)


def test_many_arms_are_rows_by_their_loss(tmp_path: Path) -> None:
    rows = []
    for k in range(8):
        at = {"model": f"arm_{k}", "low": None, "high": None}
        rows.append(Row(metric="validation_loss", site="", value=2 + 0.1 * (3 * k % 8), **at))
        for site, layer in (("blocks", None), ("block.0", 0), ("block.1", 1)):
            rows.append(
                Row(metric="mean_cosine", site=site, layer=layer, value=0.1 * k + 0.01 * (layer or 0), null=0.0, **at)
            )
    run = write_run(tmp_path / "run", command="variants", settings={}, rows=rows, verdict="")
    figure = figure_variants(run)
    loss, cosine, *_ = figure.axes
    names = [label.get_text() for label in loss.get_yticklabels()]
    assert names == [f"arm {k}" for k in sorted(range(8), key=lambda k: -(3 * k % 8))]
    means = [line.get_xdata()[0] for line in cosine.lines if line.get_marker() == "o"]
    assert means == pytest.approx([0.1 * int(name[-1]) for name in names])
    assert not [text for text in figure.texts if "95 %" in text.get_text()]  # one seed: no bars, and none announced
    known = [replace(row, low=0.0, high=9.0) for row in rows]
    several = figure_variants(write_run(tmp_path / "several", command="variants", settings={}, rows=known, verdict=""))
    assert [text for text in several.texts if "bars: 95 % intervals" in text.get_text()]
