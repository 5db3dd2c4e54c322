"""The figures by layer show every number of the run, its interval and its null, and cover none of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from scipy.stats import spearmanr

from anisoscope.report.figures.measure import figure_drift_tests, figure_layers, figures
from anisoscope.report.figures.style import PALETTE, colour, glyph, marker, save
from anisoscope.report.figures.style.curves import ramp
from anisoscope.runs.store import Run, write_run
from anisoscope.runs.table import Row

SITES = ("embeddings", "block.0", "block.1", "block.2", "final_norm")
COSINES = (0.05, 0.2, 0.35, 0.6, 0.1)
PLACES = (("tokens", "a"), ("tokens", "b"), ("speech", "c"))


def layer_rows(model: str, sites=SITES, cosines=COSINES, *, dimension: float = 64.0) -> list[Row]:
    rows = [
        Row(model=model, site=site, metric="mean_cosine", value=value, low=value - 0.01, high=value + 0.02, n=500)
        for site, value in zip(sites, cosines, strict=True)
    ]
    return [*rows, *(Row(model=model, site=site, metric="dimension", value=dimension) for site in sites)]


def p_rows(model: str, *, sign: float = 1.0, **p: float | None) -> list[Row]:
    rows = [Row(model=model, site="layers", metric=f"spearman_{against}_p", value=v) for against, v in p.items()]
    return rows + [Row(model=model, site="layers", metric=f"spearman_{against}", value=sign * 0.5) for against in p]


def run_of(rows: list[Row], folder: Path, name: str = "run") -> Run:
    return write_run(folder / name, command="measure", settings={}, rows=rows, protocol={})


def texts_in(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(lambda part: hasattr(part, "get_text")) if text.get_text()]


def curves(figure: Figure, colour: str) -> list[Any]:
    return [line for line in figure.axes[0].lines if line.get_color() == colour and len(line.get_xdata()) > 1]


def markers(figure: Figure, colour: str) -> list[Any]:
    return [
        line
        for line in figure.axes[0].lines
        if line.get_color() == colour and line.get_marker() != "None" and len(line.get_xdata()) == 1
    ]


def test_a_line_goes_through_every_site_in_order(tmp_path):
    figure = figure_layers(run_of(layer_rows("owner/small"), tmp_path))
    (line,) = curves(figure, PALETTE[0])
    np.testing.assert_allclose(line.get_ydata(), COSINES)
    assert "small" in texts_in(figure)


def test_the_band_is_the_interval(tmp_path):
    figure = figure_layers(run_of(layer_rows("m"), tmp_path))
    band, _ = (part for part in figure.axes[0].collections if isinstance(part, PolyCollection))
    corners = band.get_paths()[0].vertices
    for k, value in enumerate(COSINES):
        here = corners[corners[:, 0] == k, 1]
        assert here.min() == pytest.approx(value - 0.01)
        assert here.max() == pytest.approx(value + 0.02)


def test_averages_are_compared_with_the_average_of_isotropic_pairs(tmp_path):
    rows = layer_rows("a", dimension=256.0) + layer_rows("b", dimension=4.0)
    figure = figure_layers(run_of(rows, tmp_path))
    dotted = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert [set(line.get_ydata()) for line in dotted] == [{0}]
    assert any(text.startswith("isotropic: 0 ± ") for text in texts_in(figure))
    bands = [part.get_paths()[0].vertices[:, 1] for part in figure.axes[0].collections]
    reach = [band.max() for band in bands if (band.max() + band.min()) == 0]
    n = next(row.n for row in rows if row.metric == "mean_cosine")
    assert reach == pytest.approx([1.96 * (2 / (d * n * (n - 1))) ** 0.5 for d in (256, 4)])


def test_what_a_norm_made_has_an_open_marker_and_the_axis_says_so(tmp_path):
    figure = figure_layers(run_of(layer_rows("m"), tmp_path))
    faces = [mark.get_markerfacecolor() for mark in markers(figure, PALETTE[0])]
    assert faces == [*[PALETTE[0]] * 4, "white"]
    assert "open marker" in figure.axes[0].get_xlabel()
    plain = figure_layers(run_of(layer_rows("m", SITES[:4], COSINES[:4]), tmp_path / "plain"))
    assert "open marker" not in plain.axes[0].get_xlabel()


def test_encoder_and_decoder_are_two_lines_with_a_border_between(tmp_path):
    sites = ("encoder.embeddings", "encoder.block.0", "decoder.embeddings", "decoder.block.0")
    figure = figure_layers(run_of(layer_rows("m", sites, COSINES[:4]), tmp_path))
    lengths = [len(line.get_xdata()) for line in curves(figure, PALETTE[0]) if line.get_linestyle() == "-"]
    assert lengths == [2, 2]
    assert [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_linestyle() == "--"] == [1.5]


def test_every_number_is_inside_the_panel(tmp_path):
    rows = layer_rows("high", cosines=(0.9, 0.99, 0.97, 0.95, 0.9)) + layer_rows("low", cosines=(-0.2, 0, 0, 0, 0))
    bottom, top = figure_layers(run_of(rows, tmp_path)).axes[0].get_ylim()
    assert bottom < -0.21
    assert top > 0.99


def test_labels_do_not_cover_each_other_nor_the_panel(tmp_path):
    rows = [row for k in range(4) for row in layer_rows(f"model-{k}", cosines=np.add(COSINES, 0.002 * k))]
    figure = figure_layers(run_of(rows, tmp_path))
    figure.canvas.draw()
    panel = figure.axes[0].get_window_extent()
    labels = [part for part in figure.axes[0].findobj(Annotation) if "model-" in part.get_text()]
    boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: box.y0)
    assert len(boxes) == 4
    assert all(box.x0 >= panel.x1 for box in boxes)
    assert all(lower.y1 <= upper.y0 + 1 for lower, upper in pairwise(boxes))


def test_the_name_of_the_null_avoids_the_curves(tmp_path):
    figure = figure_layers(run_of(layer_rows("m", cosines=(0.0, 0.5, 0.6, 0.5, 0.0)), tmp_path))
    figure.canvas.draw()
    axes = figure.axes[0]
    (name,) = (part for part in axes.findobj(Annotation) if "isotropic" in part.get_text())
    box = name.get_window_extent()
    for mark in markers(figure, PALETTE[0]):
        x, y = axes.transData.transform((mark.get_xdata()[0], mark.get_ydata()[0]))
        assert not (box.x0 <= x <= box.x1 and box.y0 <= y <= box.y1)


def test_every_line_of_many_has_its_own_look():
    looks = {(colour(index), marker(index)) for index in range(81)}
    assert len(looks) == 81
    assert len({(colour(index), glyph(index)) for index in range(81)}) == 81


def test_the_drift_tests_show_each_p_beside_the_line_of_significance(tmp_path):
    rows = p_rows("a", drift_norm=0.2, drift_ratio=0.003) + p_rows("b", drift_norm=0.04, drift_ratio=None)
    figure = figure_drift_tests(run_of(rows, tmp_path))
    axes = figure.axes[0]
    assert [offsets[:, 0].tolist() for offsets, _ in drawn_points(figure)] == [[0.2, 0.04], [0.003]]
    assert [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"] == [0.05]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]


def test_the_protocol_of_the_paper_draws_its_own_p_values(tmp_path):
    drift = (1.0, 4.0, 2.0, 5.0, 3.0)
    rows = [Row(model="m", site=s, metric="drift_norm", value=v) for s, v in zip(SITES, drift, strict=True)]
    run = run_of(layer_rows("m") + rows + p_rows("m", drift_norm=0.2), tmp_path)
    ours, paper = (figure_drift_tests(run, protocol=name) for name in ("ours", "paper"))
    listed = [0, 1, 2, 4]  # the library lists the state after the final norm in place of the last block's
    expected = spearmanr(np.take(COSINES, listed), np.take(drift, listed)).pvalue
    assert drawn_points(ours)[0][0][:, 0].tolist() == [0.2]
    assert drawn_points(paper)[0][0][:, 0].tolist() == pytest.approx([expected])
    assert "permutation" in ours.axes[0].get_xlabel()
    assert "asymptotic" in paper.axes[0].get_xlabel()


def drawn_points(figure: Figure) -> list[Any]:
    """Places and faces of the points of every kind."""
    parts = [part for part in figure.axes[0].collections if isinstance(part, PathCollection)]
    return [(part.get_offsets(), part.get_facecolors()) for part in parts if len(part.get_offsets())]


def test_a_negative_correlation_has_an_open_marker(tmp_path):
    rows = p_rows("a", drift_norm=0.2) + p_rows("b", sign=-1.0, drift_norm=0.04)
    ((_, faces),) = drawn_points(figure_drift_tests(run_of(rows, tmp_path)))
    assert [tuple(face) == (1, 1, 1, 1) for face in faces] == [False, True]


def test_several_runs_are_grouped_by_the_folder_that_holds_them(tmp_path):
    runs = [run_of(p_rows(name, drift_norm=0.1), tmp_path / group, name) for group, name in PLACES]
    figure = figure_drift_tests(runs)
    assert {"tokens", "speech"} <= set(texts_in(figure))
    borders = [line.get_ydata()[0] for line in figure.axes[0].lines if line.get_linestyle() == "-"]
    assert borders == [1.5]
    assert "tokens" not in texts_in(figure_drift_tests(runs[0]))


def test_a_run_without_layers_to_correlate_has_no_drift_figure(tmp_path):
    nothing = run_of(layer_rows("m") + p_rows("m", drift_norm=None, drift_ratio=None), tmp_path / "a")
    something = run_of(layer_rows("m") + p_rows("m", drift_norm=0.5, drift_ratio=0.5), tmp_path / "b")
    assert list(figures(nothing)) == ["cosine-by-layer"]
    assert list(figures(something)) == ["cosine-by-layer", "drift-tests"]


def test_the_same_run_gives_the_same_bytes(tmp_path):
    run = run_of(layer_rows("m"), tmp_path)
    first, second = (save(figure_layers(run), tmp_path / name, "figure", formats=("svg",)) for name in ("a", "b"))
    assert first[0].read_bytes() == second[0].read_bytes()


def test_no_model_is_drawn_in_grey_which_stands_for_nulls() -> None:
    for one in PALETTE:
        red, green, blue = (int(one[at : at + 2], 16) for at in (1, 3, 5))
        assert max(red, green, blue) - min(red, green, blue) > 40


@pytest.mark.parametrize("n", [1, 3, 24])
def test_lines_by_depth_stand_out_from_white(n: int) -> None:
    """A contrast of 3 to 1, which WCAG asks of graphics."""
    from matplotlib.colors import to_rgb

    linear = np.array(
        [[v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(c)] for c in ramp(n)]
    )
    assert (1.05 / (linear @ [0.2126, 0.7152, 0.0722] + 0.05)).min() >= 3
