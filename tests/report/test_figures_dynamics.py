"""Figures 11–15, 19–23 and the heat maps of heads, drawn from stored runs that were made up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

from anisoscope.errors import StoreError
from anisoscope.report.figures import attention as heads
from anisoscope.report.figures import sweep as dynamics
from anisoscope.report.figures.style import save
from anisoscope.report.figures.style.curves import label_lines, spread, step_axis
from anisoscope.runs.store import Run, open_run, write_run
from anisoscope.runs.table import Row

STEPS, LAYERS, HEADS, D, POINTS = (0, 4, 16, 64, 256), 3, 4, 16, 30


@pytest.fixture(autouse=True)
def close() -> Iterator[None]:
    yield
    plt.close("all")


def cosine(seed: int, layer: int, head: int, step: int) -> float:
    """Grows with the step; head 2 of block 1 ends highest, head 3 of block 2 lowest."""
    end = {(1, 2): 0.95, (2, 3): -0.9}.get((layer, head), 0.1 * (head - 1)) * (1 if seed == 0 else 0.5)
    return end * STEPS.index(step) / (len(STEPS) - 1)


def rows_of(seed: int) -> list[Row]:
    rows = []
    for step in STEPS:
        for layer in range(LAYERS):
            common = {"step": step, "seed": seed, "layer": layer, "site": f"block.{layer}", "model": "made up"}
            rows.append(Row(metric="entropy", value=4 - layer * step / 256, low=3.0, high=4.2, null=4.5, **common))
            rows.append(Row(metric="mean_cosine", value=0.1 * layer, **common))
            rows.append(Row(metric="dimension", value=64.0, **common))
            for head in range(HEADS):
                value = cosine(seed, layer, head, step)
                mine = {**common, "head": head, "site": f"block.{layer}.head.{head}"}
                ends = {"low": value - 0.02, "high": value + 0.02}
                rows.append(Row(metric="query_key_cosine", value=value, null=0.0, **ends, **mine))
                rows.append(Row(metric="query_key_dot", value=20 * value, null=0.0, **mine))
    return rows


def arrays_of(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {f"seed-{seed}/steps": np.array(STEPS)}
    for layer in range(LAYERS):
        base = f"seed-{seed}/block.{layer}"
        for side in ("query", "key"):
            arrays[f"{base}/{side}_mean"] = rng.normal(size=(len(STEPS), HEADS, D))
        for plane in ("union", "keys", "queries"):
            arrays[f"{base}/{plane}/share"] = np.full((HEADS, D), 1 / D)
            for side in ("query", "key"):
                mean = rng.normal(size=(len(STEPS), HEADS, 1, 2))
                arrays[f"{base}/{plane}/{side}"] = np.concatenate([mean, mean - 0.1, mean + 0.1], axis=2)
                arrays[f"{base}/{plane}/{side}_points"] = rng.normal(size=(len(STEPS), HEADS, POINTS, 2))
    return arrays


def stored(folder: Path, seeds: tuple[int, ...]) -> Run:
    write_run(
        folder,
        command="sweep",
        settings={},
        protocol={},
        rows=[row for seed in seeds for row in rows_of(seed)],
        arrays={name: array for seed in seeds for name, array in arrays_of(seed).items()},
        model={"series": "made up"},
    )
    return open_run(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return stored(tmp_path_factory.mktemp("run"), (0, 1))


def texts(figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(plt.Text))


def test_a_run_of_several_seeds_and_steps_has_all_figures(run: Run, tmp_path: Path) -> None:
    names = {f"query-key-clouds{plane}" for plane in ("", "-on-keys", "-on-queries")}
    names |= {f"mean-path-{kind}" for kind in ("common", "opposite")}
    names |= {f"mean-paths-on-{plane}" for plane in ("keys", "queries")}
    names |= {f"{what}-by-step" for what in ("alignment", "mean-product", "entropy", "cosine")} | {"alignment-by-seed"}
    assert set(dynamics.figures(run)) == names
    assert set(dynamics.figures(stored(tmp_path / "one", (0,)))) == names - {"alignment-by-seed"}


def test_a_figure_with_parts_is_written_in_three_formats(run: Run, tmp_path: Path) -> None:
    written = save(dynamics.figure_11(run), tmp_path, "figure_11")
    assert [path.suffix for path in written] == [".svg", ".pdf", ".png"]
    assert all(path.stat().st_size > 1000 for path in written)


def test_the_shown_heads_are_those_of_greatest_and_least_cosine_at_the_last_step(run: Run) -> None:
    common, opposite = dynamics.chosen_heads(run, 0)
    assert (common.site, common.head, common.cosine) == ("block.1", 2, 0.95)
    assert (opposite.site, opposite.head, opposite.cosine) == ("block.2", 3, -0.9)
    for figure in (dynamics.figure_11(run), dynamics.figure_12(run)):
        told = texts(figure)
        assert "block.1 head 2, cos(Q̄, K̄) = +0.95 at the last step" in told
        assert "most opposite direction" in told


@pytest.mark.parametrize(
    ("figure", "words"), [("11", "queries and keys"), ("19", "keys alone"), ("20", "queries alone")]
)
def test_clouds_have_a_panel_for_each_shown_step_and_both_sides(run: Run, figure: str, words: str) -> None:
    drawn = getattr(dynamics, f"figure_{figure}")(run)
    assert len(drawn.axes) == 8
    for axes in drawn.axes:
        clouds = [part for part in axes.collections if len(part.get_offsets()) == POINTS]
        assert len(clouds) == 2
    assert f"SVD of {words}, all steps" in texts(drawn)
    shown = [axes.get_title(loc="left") for axes in drawn.axes[:4]]
    assert (shown[0], shown[-1]) == ("step 0", "step 256")


def test_paths_have_an_arrow_from_checkpoint_to_checkpoint(run: Run) -> None:
    for draw, panels in ((dynamics.figure_12a, 1), (dynamics.figure_12b, 1), (dynamics.figure_21, 2)):
        figure = draw(run)
        assert len(figure.axes) == panels
        for axes in figure.axes:
            arrows = [text for text in axes.texts if getattr(text, "arrow_patch", None) is not None]
            assert len(arrows) == 2 * (len(STEPS) - 1)


def test_heads_of_a_layer_are_concatenated_one_line_per_seed(run: Run) -> None:
    drawn, arrays = dynamics.figure_23(run), run.arrays()
    panels = [axes for axes in drawn.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == [f"block.{layer}" for layer in range(LAYERS)]
    query, key = (arrays[f"seed-1/block.2/{side}_mean"][-1].ravel() for side in ("query", "key"))
    curves = [line for line in panels[2].lines if len(line.get_xdata()) == len(STEPS)]
    assert len(curves) == 2
    expected = query @ key / np.linalg.norm(query) / np.linalg.norm(key)
    assert curves[1].get_ydata()[-1] == pytest.approx(expected)


def test_cosines_have_a_panel_per_layer_a_line_per_head_and_the_null_band(run: Run) -> None:
    drawn, lines = dynamics.figure_13(run), HEADS
    panels = [axes for axes in drawn.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == [f"block.{layer}" for layer in range(LAYERS)]
    for axes in panels:
        assert len([line for line in axes.lines if len(line.get_xdata()) == len(STEPS)]) == lines
        assert len(axes.collections) == lines  # the intervals
        (band,) = axes.patches
        low, high = band.get_y(), band.get_y() + band.get_height()
        assert (low, high) == pytest.approx((-1.96 / D**0.5, 1.96 / D**0.5))


def test_products_keep_their_order_of_magnitude_readable(run: Run) -> None:
    drawn = dynamics.figure_14(run)
    assert len([axes for axes in drawn.axes if axes.get_visible()]) == LAYERS
    assert drawn.axes[0].get_yscale() == "symlog"


def test_entropy_has_a_line_per_layer_under_that_of_uniform_attention(run: Run) -> None:
    (axes,) = dynamics.figure_15(run).axes
    curves = [line for line in axes.lines if len(line.get_xdata()) == len(STEPS)]
    assert len(curves) == 2 * LAYERS  # the second seed as hairlines
    uniform = [line for line in axes.lines if set(line.get_ydata()) == {4.5}]
    assert len(uniform) == 1
    assert {text.get_text() for text in axes.texts} >= {"block.0", "block.1", "block.2", "uniform: log n"}


def test_hidden_states_are_compared_with_the_average_of_isotropic_pairs(run: Run) -> None:
    (axes,) = dynamics.figure_hidden(run).axes
    assert [set(line.get_ydata()) for line in axes.lines if line.get_linestyle() == ":"] == [{0}]
    assert any(text.get_text() == "isotropic: 0" for text in axes.texts)


def test_bands_are_announced_only_where_they_are_drawn(run: Run) -> None:
    assert "bands: 95 %" in texts(dynamics.figure_15(run))
    assert "bands" not in texts(dynamics.figure_hidden(run))  # its rows have no intervals


@pytest.mark.parametrize("number", ["11", "12a", "12b", "13", "14", "15", "19", "20", "21", "22", "23"])
def test_a_title_begins_with_the_number_of_the_paper(run: Run, number: str) -> None:
    drawn = getattr(dynamics, f"figure_{number}")(run)
    assert any(text.get_text().startswith(f"{number}  ") for text in drawn.findobj(plt.Text))


def crossing(figure) -> list[tuple[str, str]]:
    """Pairs of words that cover each other."""
    figure.canvas.draw()
    panels = [axes for axes in figure.axes if axes.get_visible()]
    aside = {tick for axes in panels for axis in (axes.xaxis, axes.yaxis) for tick in outside(axis)}
    drawn = {part for owner in (figure, *panels) for part in owner.findobj(plt.Text)} - aside
    boxes = {part: part.get_window_extent().padded(-1) for part in drawn if part.get_visible() and part.get_text()}
    return [(one.get_text(), two.get_text()) for one, two in combinations(boxes, 2) if boxes[one].overlaps(boxes[two])]


def outside(axis) -> list[plt.Text]:
    """The labels of ticks beyond the ends of an axis, which are not drawn."""
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high]


@pytest.fixture(scope="module", params=["doubling", "published"])
def long_run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Run:
    """Four layers at the steps of a small training that is looked at ever more rarely, and of the MultiBERTs."""
    published = [*range(0, 200_000, 20_000), *range(200_000, 2_000_001, 100_000)]
    steps = np.array([0, *2 ** np.arange(14)] if request.param == "doubling" else published)
    short, rows = stored(tmp_path_factory.mktemp("short"), (0, 1)), []
    for row in short.rows():
        of_layers = (row.layer, 3) if row.layer == 0 else (row.layer,)
        for layer in of_layers if row.step == 0 else ():
            site = row.site.replace(f"block.{row.layer}", f"block.{layer}")
            rows += [replace(row, layer=layer, site=site, step=int(step), value=3 * np.cos(step)) for step in steps]
    long = {
        name: array[np.arange(len(steps)) % len(array)] for name, array in short.arrays().items() if "share" not in name
    }
    arrays = short.arrays() | long | {f"seed-{seed}/steps": steps for seed in (0, 1)}
    arrays |= {name.replace("block.0", "block.3"): array for name, array in arrays.items()}
    folder = tmp_path_factory.mktemp("long")
    return write_run(
        folder, command="sweep", settings={}, protocol={}, rows=rows, arrays=arrays, model={"series": "made up"}
    )


@pytest.mark.parametrize("number", ["11", "12a", "12b", "13", "14", "19", "21", "23"])
def test_no_words_cover_each_other(long_run: Run, number: str) -> None:
    """Titles, ticks, names of heads, colours and captions."""
    assert crossing(getattr(dynamics, f"figure_{number}")(long_run)) == []


@pytest.mark.parametrize("number", ["13", "14", "23"])
def test_ticks_are_steps_and_both_ends_are_among_them(long_run: Run, number: str) -> None:
    drawn = getattr(dynamics, f"figure_{number}")(long_run)
    steps = long_run.arrays()["seed-0/steps"]
    for axes in drawn.axes:
        ticks = axes.get_xticks()
        assert {float(tick) for tick in ticks} <= {float(step) for step in steps}
        assert (ticks[0], ticks[-1]) == (steps[0], steps[-1])
        assert 3 <= len(ticks) <= 5


@pytest.mark.parametrize(("number", "names"), [("11", ("queries", "keys")), ("12a", ("Q̄", "K̄")), ("21", ("Q̄", "K̄"))])
def test_the_names_of_queries_and_keys_stand_outside_what_is_drawn(run: Run, number: str, names: tuple) -> None:
    drawn = getattr(dynamics, f"figure_{number}")(run)
    drawn.canvas.draw()
    for axes in drawn.axes if number != "11" else (drawn.axes[3], drawn.axes[7]):
        found = [part for part in axes.texts if part.get_text() in names]
        assert {part.get_text() for part in found} == set(names)
        assert len({part.get_color() for part in found}) == 2
        assert not any(axes.get_window_extent().overlaps(part.get_window_extent()) for part in found)


def test_a_run_without_heads_says_what_it_lacks(tmp_path: Path) -> None:
    write_run(tmp_path, command="sweep", settings={}, protocol={}, rows=[Row(step=0, metric="mean_cosine", value=0.1)])
    empty = open_run(tmp_path)
    assert dynamics.figures(empty) == {}
    with pytest.raises(StoreError, match="does not hold"):
        dynamics.chosen_heads(empty, None)


# -- heads -------------------------------------------------------------------------------------------------------------


def test_heat_maps_show_every_head_and_circle_those_within_the_null(tmp_path: Path) -> None:
    rows = [
        Row(site=f"{site}.head.{h}", metric=metric, head=h, value=v, low=v - 0.05, high=v + 0.05, null=null, model="m")
        for metric, null in (("query_key_cosine", 0.0), ("entropy_normalised", 1.0))
        for site, of_heads in (("block.0", (0.9, 0.1)), ("block.1", (-0.6, 0.97, 0.3)))
        for h, v in enumerate(of_heads)
    ]
    arrays = {f"{site}.query": np.ones((3, D)) for site in ("block.0", "block.1")}
    write_run(tmp_path, command="attention", settings={}, protocol={}, rows=rows, arrays=arrays)
    run = open_run(tmp_path)
    drawn = heads.figures(run)
    assert set(drawn) == {"query_key_cosine", "entropy_normalised"}
    axes = drawn["query_key_cosine"](run).axes[0]
    cells = axes.images[0].get_array()
    assert np.ma.filled(cells, np.nan) == pytest.approx(np.array([[0.9, 0.1, np.nan], [-0.6, 0.97, 0.3]]), nan_ok=True)
    circles = {tuple(place) for place in axes.collections[0].get_offsets().tolist()}
    assert circles == {(1.0, 0.0), (2.0, 1.0)}  # |cos| below 1.96/√16
    axes = drawn["entropy_normalised"](run).axes[0]
    assert {tuple(place) for place in axes.collections[0].get_offsets().tolist()} == {(1.0, 1.0)}
    with pytest.raises(StoreError, match="no salience_share"):
        heads.figure_heads(run, metric="salience_share")


# -- curves ------------------------------------------------------------------------------------------------------------


def test_steps_that_get_sparser_have_a_logarithmic_axis() -> None:
    _, (log, even) = plt.subplots(1, 2)
    step_axis(log, np.array([0, 1, 2, 4, 8, 16, 32, 64]))
    step_axis(even, np.array([0, 20_000, 40_000, 60_000]))
    assert (log.get_xscale(), even.get_xscale()) == ("symlog", "linear")


def test_three_steps_have_three_ticks_and_no_label_twice() -> None:
    _, (few, many) = plt.subplots(1, 2)
    few.plot([0, 1, 2], [0, 1, 2])
    step_axis(few, np.array([0, 1, 2]))
    assert [label.get_text() for label in few.get_xticklabels()] == ["0", "1", "2"]
    many.plot(range(8), range(8))
    step_axis(many, np.arange(8))
    labels = [label.get_text() for label in many.get_xticklabels()]
    assert len(set(labels)) == len(labels)


def test_labels_keep_their_distance_and_their_order() -> None:
    heights = spread(np.array([0.1, 0.11, 0.12, 0.9]), 0.1)
    assert (np.diff(heights) >= 0.1 - 1e-12).all()
    assert heights[1] == pytest.approx(0.11)
    _, axes = plt.subplots()
    axes.set_ylim(0, 2)
    label_lines(axes, [(1.0, "middle", "k"), (0.0, "low", "k")], gap=0.1)
    assert {text.get_text(): text.xy[1] for text in axes.texts} == pytest.approx({"middle": 0.5, "low": 0.0})
