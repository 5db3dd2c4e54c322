"""Arms trained and measured alike, in pieces; means and intervals over seeds; one figure."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from anisoscope.errors import UsageError
from anisoscope.models import attention_kinds as attention_variants
from anisoscope.report.figures.variants import CHANGES, PANELS, figure_variants, figures
from anisoscope.runs.store import open_run, write_run
from anisoscope.runs.table import Row
from anisoscope.studies.variants import study as variants
from anisoscope.studies.variants.rows import averages, block_rows, differences, summary, verdict
from anisoscope.studies.variants.study import ARMS, VariantsSettings, run_variants
from anisoscope.training.pretrain import pretrain
from anisoscope.training.recipe import make_recipe
from anisoscope.training.series import read_log

SMALL = {"layers": 2, "hidden": 16, "heads": 2, "length": 32, "batch": 4, "validation_batches": 2}


def test_the_arms_are_all_variants_of_attention() -> None:
    assert tuple(ARMS["attention"]) == attention_variants.VARIANTS


def test_arms_differ_in_nothing_but_the_arm() -> None:
    recipes = VariantsSettings(data=["-"], steps=10, recipe=SMALL).chosen()
    for arm, recipe in recipes.items():
        assert recipe.attention == arm
        assert recipe.model_copy(update={"attention": "softmax"}) == recipes["softmax"]
    objectives = VariantsSettings(data=["-"], compare="objectives").chosen()
    assert {arm: (recipe.arch, recipe.objective) for arm, recipe in objectives.items()} == {
        "mlm": ("bert", "mlm"),
        "clm": ("gpt2", "clm"),
        "headless": ("bert", "headless"),
        "headless_clm": ("gpt2", "headless"),
    }
    with pytest.raises(UsageError, match="softermax"):
        VariantsSettings(data=["-"], arms=["softermax"]).chosen()


def test_means_and_intervals_over_seeds() -> None:
    values = [0.2, 0.5, 0.3]
    rows = [
        Row(model="gated", site="block.0", layer=0, metric="entropy", value=v, seed=s) for s, v in enumerate(values)
    ]
    rows.append(Row(model="gated", site="block.0.head.1", head=1, metric="entropy", value=9.0, seed=0))
    rows.append(Row(model="gated", site="block.1", layer=1, metric="entropy", value=0.7, seed=0))
    several, single = averages(rows)
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert (several.value, several.low, several.high) == pytest.approx((np.mean(values), low, high))
    assert several.seed is None
    assert (single.value, single.low, single.high) == (0.7, None, None)


def test_differences_are_taken_within_a_seed() -> None:
    """Seeds that differ much from each other hide nothing of a change that is the same in all of them."""
    control, arm = [1.0, 5.0, 9.0], [0.4, 4.5, 8.3]
    rows = [Row(model="softmax", metric="validation_loss", value=v, seed=s) for s, v in enumerate(control)]
    rows += [Row(model="gated", metric="validation_loss", value=v, seed=s) for s, v in enumerate(arm)]
    rows += [Row(model="gated", metric="validation_loss", value=100.0, seed=3)]  # a seed that the control has not
    (found,) = differences(rows, control="softmax")
    expected = stats.ttest_rel(arm, control).confidence_interval(0.95)
    assert (found.model, found.metric, found.seed) == ("gated", "validation_loss_difference", None)
    assert (found.value, found.low, found.high) == pytest.approx((-0.6, expected.low, expected.high))
    (unpaired,) = averages(rows[:3])
    assert unpaired.low is not None
    assert unpaired.low < 0 < unpaired.high


def test_the_verdict_says_higher_and_lower_where_intervals_leave_zero_out() -> None:
    def rows_of(arm: str, losses: list[float], cosines: list[float]) -> list[Row]:
        rows = [Row(model=arm, metric="validation_loss", value=v, seed=s) for s, v in enumerate(losses)]
        return rows + [
            Row(model=arm, site=f"block.{k}", layer=k, metric="mean_cosine", value=v + 0.1 * k, seed=s)
            for s, v in enumerate(cosines)
            for k in (0, 1)
        ]

    rows = rows_of("softmax", [2.0, 2.1, 2.2], [0.3, 0.4, 0.5]) + rows_of("gated", [2.1, 2.0, 2.3], [0.1, 0.21, 0.3])
    rows = [*block_rows(rows), *rows]
    rows = [*averages(rows), *differences(rows, control="softmax"), *rows]
    assert verdict(rows, control="softmax") == (
        "softmax (control): loss 2.100, mean cosine 0.450; gated: loss 2.133, mean cosine 0.253 (lower)"
    )
    assert summary(rows)["gated"]["mean_cosine"].site == "blocks"


def test_a_study_goes_on_in_pieces_and_a_finished_one_is_used_again(tmp_path, monkeypatch) -> None:
    torch.set_num_threads(1)
    text = tmp_path / "text"
    text.write_bytes(b"The quick brown fox jumps over the lazy dog.\n" * 300)
    settings = VariantsSettings(
        arms=["softmax", "no_bias"], data=[str(text)], texts=[str(text)], seeds=[0, 1], steps=6, recipe=SMALL, limit=4
    )
    out = tmp_path / "out"

    def killed(*args, **options):
        raise KeyboardInterrupt

    measure = variants.measure_checkpoint
    monkeypatch.setattr(variants, "measure_checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        run_variants(settings, out=out)
    assert not (out / "manifest.json").exists()
    measured: list[str] = []
    monkeypatch.setattr(
        variants, "measure_checkpoint", lambda path, *a, **o: measured.append(path.parts[-3]) or measure(path, *a, **o)
    )
    lines: list[str] = []
    study = run_variants(settings, out=out, announce=lines.append)

    assert sorted(lines) == sorted(f"{arm}, seed {seed}: complete" for arm in ("softmax", "no_bias") for seed in (0, 1))
    assert sorted(measured) == ["no_bias", "no_bias", "softmax", "softmax"]
    table = summary(study.rows)
    assert list(table) == ["softmax", "no_bias"]
    measures = {
        "validation_loss", "mean_cosine", "entropy_normalised", "max_probability", "query_drift_ratio",
        "query_key_alignment",
    }  # fmt: skip
    assert table["softmax"].keys() == measures
    assert table["no_bias"].keys() == measures | {f"{name}_difference" for name in measures}
    losses = [read_log(out / "training" / "no_bias", seed)[-1]["validation_loss"] for seed in (0, 1)]
    assert table["no_bias"]["validation_loss"].value == pytest.approx(np.mean(losses))
    again = run_variants(settings, out=out)
    assert again.rows == study.rows
    assert len(measured) == 4
    drawn = {name: draw(open_run(out)) for name, draw in figures(open_run(out)).items()}
    assert {name: len(figure.axes) for name, figure in drawn.items()} == {
        "variants": len(PANELS) + 1,
        "variants_differences": len(CHANGES),
    }


def test_a_checkpoint_is_measured_with_the_attention_it_was_trained_with(tmp_path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"The quick brown fox jumps over the lazy dog.\n" * 300)
    settings = VariantsSettings(data=[str(text)], texts=[str(text)], limit=2)
    recipe = make_recipe(data=[str(text)], attention="query_centred", steps=2, **SMALL)
    *_, (_, _, checkpoint) = pretrain(recipe, tmp_path / "training")
    revised = variants.measure_checkpoint(checkpoint, settings, like=Row())
    config = checkpoint / "config.json"
    config.write_text(config.read_text().replace('"anisoscope_attention": "query_centred",', ""))
    plain = variants.measure_checkpoint(checkpoint, settings, like=Row())
    for metric in ("mean_cosine", "entropy"):
        found, other = ([row.value for row in rows if row.metric == metric and row.layer] for rows in (revised, plain))
        assert found
        assert found != other


def test_a_single_seed_is_drawn_without_intervals(tmp_path) -> None:
    rows = [Row(model="softmax", metric="validation_loss", value=2.0)]
    rows += [
        Row(model="softmax", site="block.0", layer=0, metric=metric, value=0.5, null=0.1) for metric, _, _ in PANELS
    ]
    run = write_run(tmp_path, command="variants", settings={}, rows=rows, protocol={})
    figure = figure_variants(run)
    assert [axes.get_title(loc="left") for axes in figure.axes[1:]] == [title for _, title, _ in PANELS]
    assert list(figures(run)) == ["variants"], "without a control there is no difference to draw"
