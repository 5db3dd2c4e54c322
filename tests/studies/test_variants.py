"""Arms trained and measured alike, in pieces; means and intervals over seeds; one figure."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from anisoscope.errors import UsageError
from anisoscope.report.figures.variants import PANELS, figure_variants
from anisoscope.runs.store import open_run, write_run
from anisoscope.runs.table import Row
from anisoscope.studies import variants
from anisoscope.studies.variants import ARMS, VariantsSettings, averages, run_variants, summary
from anisoscope.training import attention_variants

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
    assert table["softmax"].keys() == {
        "validation_loss", "last_mean_cosine", "entropy_normalised", "max_probability", "query_drift_ratio",
        "query_key_alignment",
    }  # fmt: skip
    losses = [row.value for row in study.rows if (row.model, row.metric) == ("no_bias", "validation_loss") and row.low]
    assert table["no_bias"]["validation_loss"] == losses[0]
    again = run_variants(settings, out=out)
    assert again.rows == study.rows
    assert len(measured) == 4
    assert len(figure_variants(open_run(out)).axes) == len(PANELS) + 1


def test_a_single_seed_is_drawn_without_intervals(tmp_path) -> None:
    rows = [Row(model="softmax", metric="validation_loss", value=2.0)]
    rows += [
        Row(model="softmax", site="block.0", layer=0, metric=metric, value=0.5, null=0.1) for metric, _, _ in PANELS
    ]
    run = write_run(tmp_path, command="variants", settings={}, rows=rows, protocol={})
    figure = figure_variants(run)
    assert [axes.get_title(loc="left") for axes in figure.axes[1:]] == [title for _, title, _ in PANELS]
