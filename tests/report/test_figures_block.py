"""Figures 6–10, 17, 18 and M1–M4: each is drawn from a stored run and shows what it must."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from transformers import BertConfig

import zoo
from anisoscope.errors import StoreError
from anisoscope.geometry.nulls.isotropic import cosine_quantile
from anisoscope.report.figures import block, final_norm, measure, null, vocabulary
from anisoscope.report.figures.style import save
from anisoscope.runs.perform import perform
from anisoscope.runs.store import Run, write_run
from anisoscope.runs.table import Row
from anisoscope.studies.block.experiment import Experiment, run_experiment

mpl.use("agg")


@pytest.fixture(autouse=True)
def close() -> Iterator[None]:
    yield
    plt.close("all")


def stored(folder: Path, command: str, rows: list[Row], arrays: dict[str, np.ndarray] | None = None) -> Run:
    return write_run(folder, command=command, settings={}, rows=rows, arrays=arrays, protocol={})


@pytest.fixture(scope="module")
def block_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    small = zoo.sizes(hidden=32, heads=4, inner=64, vocab_size=200, max_position_embeddings=64)
    config = BertConfig(**small, initializer_range=0.1)
    sizes = {"norms": (0.0, 1.0, 5.0, 10.0), "sequences": 1, "length": 32}
    rows, arrays = run_experiment(Experiment(config, "bert", seeds=3, **sizes))
    more, further = run_experiment(Experiment(zoo.config("convnext"), "convnext", seeds=2, **sizes))
    return stored(tmp_path_factory.mktemp("block") / "run", "block", [*rows, *more], {**arrays, **further})


def texts_of(figure) -> str:
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    return " ".join([*titles, *(text.get_text() for axes in figure.axes for text in axes.texts)])


def test_every_figure_of_a_block_run_is_drawn_and_saved(block_run: Run, tmp_path: Path) -> None:
    figures = block.figures(block_run)
    assert {name.partition("_bert")[0] for name in figures if "bert" in name} == {
        "block-cosine",
        "block-norm",
        "block-scores",
        "block-query-key-cosine",
        "block-query-key-norm",
        "block-row-probabilities",
        "block-sequence-probabilities",
    }
    assert {name for name in figures if "convnext" in name} == {"block-cosine_convnext", "block-norm_convnext"}
    assert "blocks-side-by-side" in figures
    for name, draw in figures.items():
        paths = save(draw(block_run), tmp_path, name, formats=("svg",))
        assert paths[0].stat().st_size > 5000


def test_figure_6b_marks_the_fixed_point_and_root_d(block_run: Run) -> None:
    figure = block.figure_6b(block_run, model="bert")
    words = texts_of(figure)
    fixed = block_run.rows(model="bert", metric="fixed_point", seed=None)[0]
    assert f"{fixed.value:.4f}" in words
    assert f"{32**0.5:.2f}" in words
    heights = [line.get_ydata()[0] for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert heights == pytest.approx([32**0.5])


def test_a_missing_fixed_point_is_said(block_run: Run) -> None:
    assert "no crossing" in texts_of(block.figure_6b(block_run, model="convnext"))


def test_curves_carry_the_average_the_band_and_the_draws(block_run: Run) -> None:
    found = block.curve(block_run, "bert", "output", "norm_of_mean")
    assert found.draws.shape == (3, 4)
    np.testing.assert_allclose(found.mean, found.draws.mean(0))
    assert (found.low <= found.mean).all()
    assert (found.mean <= found.high).all()


def test_figure_7_shows_the_draws_that_move_most(block_run: Run) -> None:
    means = block_run.arrays()["bert/scores_by_head"][:, -1].mean(-1)
    words = texts_of(block.figure_7(block_run, model="bert"))
    assert f"draw {means.argmin()}" in words
    assert f"draw {means.argmax()}" in words


@pytest.mark.parametrize(("number", "metric"), [("9", "max_probability"), ("10", "sequence_max_probability")])
def test_probabilities_are_shown_as_per_cent_of_the_uniform_one(block_run: Run, number: str, metric: str) -> None:
    axes = getattr(block, f"figure_{number}")(block_run, model="bert").axes[0]
    found = block.curve(block_run, "bert", "softmax", metric)
    expected = 100 * (found.mean * 32 - 1)  # 32 keys
    assert any(np.allclose(line.get_ydata(), expected) for line in axes.lines if len(line.get_ydata()) == 4)
    assert axes.get_ylim()[1] >= 5


def test_an_uneven_axis_says_so(block_run: Run) -> None:
    assert "logarithmic" in block.figure_6a(block_run, model="bert").axes[-1].get_xlabel()


def test_another_run_is_refused(tmp_path: Path) -> None:
    other = stored(tmp_path / "run", "vectors", [Row(site="vectors", metric="mean_cosine", value=0.1)])
    with pytest.raises(StoreError, match="no block study"):
        block.figure_6a(other)
    with pytest.raises(StoreError, match="no vocabularies"):
        vocabulary.figure_m1(other)
    with pytest.raises(StoreError, match="no norm closes"):
        final_norm.figure_m3(other)


def test_figure_17_has_one_named_curve_for_each_dimension() -> None:
    figure = null.figure_17((16, 256))
    assert len(figure.axes[0].lines) == 2
    assert "16" in texts_of(figure)
    assert "256" in texts_of(figure)


def test_figure_18_puts_sites_at_their_dimension_above_the_quantile(tmp_path: Path) -> None:
    rows = [
        Row(model="m", site=f"block.{k}", metric=metric, value=value)
        for k, cosine in enumerate((0.3, 0.6))
        for metric, value in (("mean_cosine", cosine), ("dimension", 64.0))
    ]
    run = stored(tmp_path / "run", "measure", rows)
    assert [standing.site for standing in null.standings(run)] == ["block.0", "block.1"]
    figure = null.figure_18([run])
    points = figure.axes[0].lines[-2] if len(figure.axes[0].lines[-1].get_xdata()) != 2 else figure.axes[0].lines[-1]
    curve = figure.axes[0].lines[0]
    height = np.interp(64, curve.get_xdata(), curve.get_ydata())
    assert height == pytest.approx(float(cosine_quantile(0.95, 64)), abs=0.01)
    assert len(points.get_xdata()) == 2
    assert null.figure_18([]).axes[0].get_title(loc="left") == "18  Cosine of isotropic pairs"  # nothing was measured


def test_models_of_one_dimension_are_told_apart_in_figure_18(tmp_path: Path) -> None:
    rows = [
        Row(model=f"owner/m{k:02}", site=f"block.{site}", metric=metric, value=value)
        for k in range(20)
        for site in range(3)
        for metric, value in (("mean_cosine", 0.3 + 0.1 * site), ("dimension", 64.0))
    ]
    figure = null.figure_18([stored(tmp_path / "run", "measure", rows)])
    (axes,) = figure.axes
    models = [line for line in axes.lines if line.get_label().startswith("m")]
    assert len({(line.get_color(), line.get_marker()) for line in models}) == 20
    columns = [float(x) for line in models for x in set(line.get_xdata())]
    assert len(set(columns)) == 20  # a column each
    assert np.abs(np.log(np.array(columns) / 64)).max() < 0.16
    assert not axes.texts  # the null is named in the legend, not over points
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 21
    assert any("95 % of isotropic pairs" in text.get_text() for text in legend.get_texts())


def test_the_legends_of_m3_hide_no_curve(tmp_path: Path) -> None:
    values = {"gain_norm": 6.0, "bias_norm": 1.0, "bias_over_gain": 0.2, "cosine_implied": 0.04, "mean_cosine": 0.9}
    rows = [
        Row(model="m", step=step, site="final_norm", metric=metric, value=value * (1 + k) / 3)
        for k, step in enumerate((0, 64, 8192))
        for metric, value in {**values, "cosine_above_implied": 0.5}.items()
    ]
    figure = final_norm.figure_m3(stored(tmp_path / "run", "final-norm", rows))
    figure.canvas.draw()
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend() is not None]
    assert legends
    for legend in legends:
        assert not any(legend.get_window_extent().overlaps(axes.get_window_extent()) for axes in figure.axes)


@pytest.mark.parametrize("number", ["6a", "6b", "7", "8a", "8b", "9", "10"])
def test_the_title_of_a_block_begins_with_the_number_of_the_paper(block_run: Run, number: str) -> None:
    figure = getattr(block, f"figure_{number}")(block_run, model="bert")
    assert any(text.get_text().startswith(f"{number}  ") for text in figure.findobj(plt.Text))


def test_a_stand_in_is_called_one_in_titles_curves_and_ticks(tmp_path: Path) -> None:
    name = "stand-in/pythia-70m"
    values = {"mean_cosine": 0.5, "dimension": 64.0, "spearman_drift_norm": 0.4, "spearman_drift_norm_p": 0.2}
    norms = {"mean_cosine_inter": 0.4, "gain_norm": 6.0, "bias_norm": 1.0, "cosine_above_implied": 0.5}
    rows = [Row(model=name, site="final_norm", metric=m, value=v) for m, v in {**values, **norms}.items()]
    rows += [Row(model=name, site="vocabulary.output", metric="partition_one_sided", value=0.5)]
    run = stored(tmp_path / "run", "measure", rows, {"0/vocabulary.output/points": np.arange(8.0).reshape(4, 2)})
    drawn = [measure.figure_layers(run), measure.figure_drift_tests(run), null.figure_18([run])]
    drawn += [
        vocabulary.figure_m1(run),
        vocabulary.figure_m4(run),
        final_norm.figure_m2(run),
        final_norm.figure_m3(run),
    ]
    for figure in drawn:
        named = [text.get_text() for text in figure.findobj(plt.Text) if "pythia" in text.get_text()]
        assert named
        assert all(name in text for text in named)


def test_vocabulary_figures_over_a_series(tmp_path: Path) -> None:
    folders = [str(zoo.save("gpt_neox", tmp_path / f"checkpoint-{step}", seed=step)) for step in (0, 1)]
    run = perform("vocabulary", {"models": folders, "points": 60}, out=tmp_path / "run").run
    assert run is not None
    m1, m4 = vocabulary.figure_m1(run), vocabulary.figure_m4(run)
    assert len(m1.axes) == 2
    assert len(m4.axes) == 4
    dotted = [line for line in m1.axes[0].lines if line.get_linestyle() == ":"]
    reference = [row.null for row in run.rows(site="vocabulary.input", metric="partition_one_sided")]
    np.testing.assert_allclose(dotted[0].get_ydata(), np.array(reference, float))
    assert all(save(figure, tmp_path, name, formats=("png",)) for name, figure in (("m1", m1), ("m4", m4)))


def test_counted_tokens_have_a_colour_key(tmp_path: Path) -> None:
    rows = [Row(model="m", site="vocabulary.output", metric="partition_one_sided", value=0.5)]
    arrays = {"0/vocabulary.output/points": np.arange(8.0).reshape(4, 2)}
    counted = arrays | {"0/vocabulary.output/counts": np.array([0, 1, 10, 1000])}
    plain, keyed = (stored(tmp_path / name, "vocabulary", rows, a) for name, a in (("a", arrays), ("b", counted)))
    assert [axes.get_ylabel() for axes in vocabulary.figure_m4(keyed).axes[1:]] == [
        "times seen in the text; grey: never"
    ]
    assert len(vocabulary.figure_m4(plain).axes) == 1


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_norm_figures_of_pre_and_post_norm_models(name: str, tmp_path: Path) -> None:
    texts = [f"line {k}, and {k * k} more" for k in range(30)]
    folders = [str(zoo.save(name, tmp_path / f"checkpoint-{step}", seed=step)) for step in (0, 1)]
    for models in (folders[:1], folders):
        out = tmp_path / f"run-{len(models)}"
        run = perform("final-norm", {"models": models, "length": 24}, out=out, given={"data": texts}).run
        assert run is not None
        assert len(final_norm.closing_norms(run.rows())) == len(models) * (3 if name == "bert" else 1)
        for label, draw in final_norm.figures(run).items():
            assert save(draw(run), tmp_path, label, formats=("png",))[0].stat().st_size > 5000
        named = {label.get_text() for axes in final_norm.figure_m3(run).axes for label in axes.get_yticklabels()}
        assert ("before the norm" in named) == (name == "gpt2" and len(models) == 1)  # one norm, once: bars with names
        stack = final_norm.figure_m2(run)
        assert len(stack.axes) == 1  # a series is one model: its last step
        assert Path(models[-1]).name in texts_of(stack)
