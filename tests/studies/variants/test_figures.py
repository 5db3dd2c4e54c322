"""The figures of variants: arms that can be told apart, losses that can be compared."""

from __future__ import annotations

import pytest

from anisoscope.report.figures.variants import CHANGES, FEW, PANELS, figure_variants, figures
from anisoscope.runs.store import open_run, write_run
from anisoscope.runs.table import Row


@pytest.mark.parametrize("arms", [6, 20])
def test_each_arm_is_told_apart(arms: int, tmp_path) -> None:
    """A few by colour and marker, many by a row of their own, the lowest loss on top."""
    rows = [Row(model=f"arm_{k:02}", metric="validation_loss", value=2.0 + k) for k in range(arms)]
    write_run(tmp_path, rows=rows, command="variants", settings={})
    axes = figure_variants(open_run(tmp_path)).axes[0]
    looks = {(bar.lines[0].get_color(), bar.lines[0].get_marker()) for bar in axes.containers}
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert len(looks) == arms or (names == [f"arm {k:02}" for k in reversed(range(arms))] and arms > FEW)


def test_the_differences_of_many_arms_are_rows_by_their_loss(tmp_path) -> None:
    names = ["validation_loss", *(metric for metric, _ in CHANGES)]
    rows = [Row(model="softmax", metric="validation_loss", value=2.0)] + [
        Row(model=f"arm_{k}", site="" if name == names[0] else "blocks", metric=f"{name}_difference", value=change)
        for k, change in enumerate((0.2, -0.1, 0.0, 0.3, 0.1, -0.2, 0.4))
        for name in names
    ]
    run = write_run(tmp_path, command="variants", settings={}, rows=rows)
    figure = figures(run)["variants-differences"](run)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        f"arm {k}" for k in (6, 3, 0, 4, 2, 1, 5)
    ]
    for axes in figure.axes:
        points = [tuple(float(at) for at in bar.lines[0].get_xydata()[0]) for bar in axes.containers]
        assert points == [(0.4, 0), (0.3, 1), (0.2, 2), (0.1, 3), (0.0, 4), (-0.1, 5), (-0.2, 6)]


def test_a_single_seed_is_drawn_without_intervals(tmp_path) -> None:
    rows = [Row(model="softmax", metric="validation_loss", value=2.0)]
    rows += [
        Row(model="softmax", site="block.0", layer=0, metric=metric, value=0.5, null=0.1) for metric, _, _ in PANELS
    ]
    run = write_run(tmp_path, command="variants", settings={}, rows=rows)
    figure = figure_variants(run)
    assert [axes.get_title(loc="left") for axes in figure.axes[1:]] == [title for _, title, _ in PANELS]
    assert list(figures(run)) == ["variants"], "without a control there is no difference to draw"


def test_losses_of_different_objectives_share_no_axis(tmp_path) -> None:
    rows = [
        Row(model=arm, metric="validation_loss", value=loss) for arm, loss in (("clm", 2.34), ("headless_clm", 5.71))
    ]
    run = write_run(tmp_path, command="variants", settings={"compare": "objectives"}, rows=rows)
    axes = figure_variants(run).axes[0]
    words = [text.get_text() for text in axes.texts]
    assert words == ["clm: 2.34 nats", "headless clm: 5.71 nats", "different tasks: not to be compared"]
    assert not axes.lines
