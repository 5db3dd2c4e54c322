"""Arms trained and measured alike, in pieces; means and intervals over seeds; what is said, shown and drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from rich.console import Console
from scipy import stats

from anisoscope.cli.options import values_of
from anisoscope.errors import StoreError, UsageError
from anisoscope.models import attention_kinds
from anisoscope.report.figures.variants import CHANGES, PANELS, figures
from anisoscope.report.terminal import tell
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.perform import perform, plan_of
from anisoscope.runs.store import open_run
from anisoscope.runs.study import find_study
from anisoscope.runs.table import Row
from anisoscope.studies.variants import ARMS, VariantsSettings, trained, trainings
from anisoscope.studies.variants.rows import averages, block_rows, comparable, differences, verdict
from anisoscope.studies.variants.story import summary
from anisoscope.training.series import read_log

SMALL = {"layers": 1, "hidden": 16, "heads": 2, "length": 32, "batch": 4, "validation_batches": 2, "warmup": 2}
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text").write_bytes(b"The quick brown fox jumps over the lazy dog.\n" * 300)
    return str(tmp_path / "text")


def asked(text: str, **changes: Any) -> dict[str, Any]:
    return {"data": [text], "texts": [text], "seeds": [0], "steps": 3, "recipe": SMALL, "limit": 3, **changes}


def test_the_arms_are_all_variants_of_attention() -> None:
    assert tuple(ARMS["attention"]) == attention_kinds.VARIANTS


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


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"arms": ["softmax", "gatd"]}, 'did you mean "gated"'),
        ({"compare": "atention"}, 'did you mean "attention"'),
        ({"recipe": {"hiden": 96}}, 'did you mean "hidden"'),
        ({"recipe": {"hidden": 97}}, "not a multiple"),
        ({"recipe": {"steps": 5}}, "give --steps"),
        ({"recipe": {"attention": "gated"}}, "every arm sets"),
        ({"seeds": "x"}, "seeds"),
        ({"data": []}, "no text to train on"),
        ({"plan": "absent.toml"}, "no such file"),
        ({"plan": {"wide": {"steps": 1}}}, "all arms share"),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_trained(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        VariantsSettings.check({"data": ["-"], **settings})


def test_a_plan_of_arms_is_read_and_recorded(tmp_path: Path) -> None:
    plan = tmp_path / "widths.toml"
    plan.write_text("[narrow]\nhidden = 32\n[wide]\nhidden = 64\nattention = 'gated'\n")
    settings = VariantsSettings.check({"data": ["-"], "plan": str(plan), "recipe": {"layers": 2, "heads": 2}})
    recipes = settings.chosen()
    assert {arm: (r.hidden, r.attention, r.layers) for arm, r in recipes.items()} == {
        "narrow": (32, "softmax", 2),
        "wide": (64, "gated", 2),
    }
    plan.unlink()
    assert VariantsSettings.check(json.loads(json.dumps(settings.as_dict()))).chosen() == recipes
    assert list(VariantsSettings.check({**settings.as_dict(), "arms": ["wide"]}).chosen()) == ["wide"]
    (tmp_path / "flat.toml").write_text("hidden = 32\n")
    with pytest.raises(UsageError, match="not a plan"):
        VariantsSettings.check({"data": ["-"], "plan": str(tmp_path / "flat.toml")})


def test_a_plan_holds_a_whole_grid_and_what_is_given_beside_it_goes_first(tmp_path: Path) -> None:
    plan = tmp_path / "grid.toml"
    plan.write_text(
        "data = ['text']\nsteps = 30\nseeds = '0-2'\nrecipe = {hidden = 32, heads = 2}\n"
        "[arms.healthy]\n[arms.fast]\nlearning_rate = 0.5\nseeds = [2]\n"
    )
    settings = VariantsSettings.check({"plan": str(plan)})
    recipes = settings.chosen()
    assert {arm: (r.hidden, r.steps, r.seeds, r.learning_rate) for arm, r in recipes.items()} == {
        "healthy": (32, 30, [0, 1, 2], 0.002),
        "fast": (32, 30, [2], 0.5),
    }
    assert list(trainings(settings)) == ["healthy, seed 0", "healthy, seed 1", "healthy, seed 2", "fast, seed 2"]
    assert VariantsSettings.check(json.loads(json.dumps(settings.as_dict()))) == settings
    assert VariantsSettings.check({"plan": str(plan), "steps": 5}).chosen()["fast"].steps == 5
    assert VariantsSettings.check({"plan": str(plan), "steps": 4096}).steps == 4096
    defaults = values_of(VariantsSettings, {"plan": str(plan), "steps": "4096", "limit": "64"})
    assert VariantsSettings.check(defaults) == settings, "what nobody wrote on the command line"


def test_a_training_that_diverges_is_a_row_and_the_grid_goes_on(text, tmp_path, monkeypatch) -> None:
    build, built = trained.pretrain, []

    def spoilt(recipe: Any, *given: Any, **options: Any) -> Any:
        built.append(recipe.attention)
        if recipe.attention == "no_bias":
            monkeypatch.setattr("torch.nn.functional.cross_entropy", lambda *_, **__: torch.tensor(torch.nan))
        try:
            return build(recipe, *given, **options)
        finally:
            monkeypatch.undo()
            monkeypatch.setattr(trained, "pretrain", spoilt)

    monkeypatch.setattr(trained, "pretrain", spoilt)
    settings, out = asked(text, arms=["softmax", "no_bias"], seeds=[0, 1]), tmp_path / "out"
    found = perform("variants", settings, out=out)
    failed = [(row.model, row.seed, row.value, row.step) for row in found.rows if row.metric == "diverged_at"]
    assert failed == [("no_bias", None, 0.0, 0), ("no_bias", 0, 0.0, 0), ("no_bias", 1, 0.0, 0)]
    assert {row.model for row in found.rows if row.metric == "mean_cosine"} == {"softmax"}
    assert any("NaN at step 0" in note for note in found.notes)
    assert built == ["softmax", "no_bias"] * 2
    (out / "manifest.json").unlink()
    assert perform("variants", settings, out=out).rows == found.rows, "and it is not trained again"
    assert built == ["softmax", "no_bias"] * 2 + ["softmax"] * 2


def test_losses_of_different_tasks_are_not_subtracted() -> None:
    recipes = VariantsSettings(data=["-"], plan={"a": {}, "b": {"attention": "gated"}, "c": {"mask": 0.3}}).chosen()
    changes = [Row(model=arm, metric=name) for arm in "bc" for name in ("validation_loss_difference", "entropy")]
    kept = comparable(changes, recipes, control="a")
    assert [(row.model, row.metric) for row in kept] == [
        ("b", "validation_loss_difference"),
        ("b", "entropy"),
        ("c", "entropy"),
    ]


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
    p = stats.ttest_rel(arm, control)[1]
    assert f"p {p:.2g}; {p:.2g} by Holm over 1; equivalent within ±0.769" in found.note
    (unpaired,) = averages(rows[:3])
    assert unpaired.low is not None
    assert unpaired.high is not None
    assert unpaired.low < 0 < unpaired.high


def rows_of(arm: str, losses: list[float], cosines: list[float]) -> list[Row]:
    rows = [Row(model=arm, metric="validation_loss", value=v, seed=s) for s, v in enumerate(losses)]
    return rows + [
        Row(model=arm, site=f"block.{k}", layer=k, metric="mean_cosine", value=v + 0.1 * k, seed=s)
        for s, v in enumerate(cosines)
        for k in (0, 1)
    ]


def compared(*arms: list[Row]) -> list[Row]:
    rows = [row for arm in arms for row in arm]
    rows = [*block_rows(rows), *rows]
    return [*averages(rows), *differences(rows, control="softmax"), *rows]


def test_the_verdict_of_many_arms_says_what_passes_holm_by_metric() -> None:
    softmax = rows_of("softmax", [2.0, 2.1, 2.2], [0.3, 0.4, 0.5])
    alike = [rows_of(f"arm-{k}", [2.1, 2.0, 2.3], [0.32, 0.43, 0.51]) for k in range(3)]  # the interval leaves 0 out
    rows = compared(softmax, *alike, rows_of("gated", [2.1, 2.0, 2.3], [0.1, 0.2, 0.301]))
    assert differences(rows, control="softmax")[-1].low is not None
    assert verdict(rows, control="softmax") == (
        "Control softmax: loss 2.100, mean cosine 0.450 (3 seeds). By Holm's test over 8 differences, loss differs in "
        "none, mean cosine in gated (-0.200)."
    )


def test_the_verdict_says_higher_and_lower_where_intervals_leave_zero_out() -> None:
    softmax = rows_of("softmax", [2.0, 2.1, 2.2], [0.3, 0.4, 0.5])
    rows = compared(softmax, rows_of("gated", [2.1, 2.0, 2.3], [0.1, 0.21, 0.3]))
    assert verdict(rows, control="softmax") == (
        "Control softmax: loss 2.100, mean cosine 0.450 (3 seeds); "
        "gated: mean cosine lower by 0.197 ± 0.014, loss not seen to differ."
    )
    assert summary(rows)["gated"]["mean_cosine"].site == "blocks"
    one = compared(rows_of("softmax", [2.0], [0.3]), rows_of("gated", [2.1], [0.1]))
    assert verdict(one, control="softmax") == (
        "Control softmax: loss 2.000, mean cosine 0.350 (one seed, so no intervals); "
        "gated: loss +0.100, mean cosine -0.200."
    )


def test_the_story_fits_eighty_columns() -> None:
    arms = ("softmax", "query_centred", "softmax_one")
    rows = compared(*(rows_of(arm, [2.0 + i, 2.4 - i], [0.3, 0.4 - 0.1 * i]) for i, arm in enumerate(arms)))
    for metric in ("entropy_normalised", "max_probability", "query_drift_ratio", "query_key_alignment", "isoscore"):
        for end in ("", "_difference"):
            rows += [
                Row(model=arm, site="blocks", metric=metric + end, value=-0.1234567, low=-0.2, high=-0.01)
                for arm in arms[1 if end else 0 :]
            ]
    console = Console(width=80, record=True, force_terminal=False)
    tell(find_study("variants"), Measurement(tuple(rows), verdict="", command="variants"), console=console)
    printed = console.export_text()
    lines = [line.split() for line in printed.splitlines()]
    assert ["softmax", "2.2", "0.4", *["-0.1235"] * 5] in lines
    assert ["softmax_one", "+0.000", "±", "25.412", "-0.100", "±", "1.271", *["-0.123", "±", "0.113"] * 2] in lines
    assert max(map(cell_len, printed.splitlines())) <= 80


def test_a_study_goes_on_in_pieces_and_a_finished_one_is_used_again(text, tmp_path, monkeypatch) -> None:
    settings, out = asked(text, arms=["softmax", "no_bias"], seeds=[0, 1]), tmp_path / "out"
    measure, begun = trained.measure_checkpoint, []

    def killed(job: Any, checkpoint: Path, label: str) -> Any:
        begun.append(label)
        part = measure(job, checkpoint, label)
        if label == "softmax, seed 1":
            raise KeyboardInterrupt
        return part

    monkeypatch.setattr(trained, "measure_checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        perform("variants", settings, out=out)
    assert begun == ["softmax, seed 0", "no_bias, seed 0", "softmax, seed 1"]
    monkeypatch.undo()
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("training/*/*/checkpoint-3/model.safetensors")}
    assert len(stamps) == 3
    kept = [path for path in out.glob("partial/*-seed-*/*.json") if json.loads(path.read_text())["finished"]]
    assert len(kept) == 3, "the sums of all passes are kept"
    forwards: list[str] = []
    monkeypatch.setattr("anisoscope.runs.job.run_pass", counted(forwards))
    study = perform("variants", settings, out=out)
    assert forwards == ["running no_bias, seed 1"], "what was measured is not run again"
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps

    table = summary(study.rows)
    assert list(table) == ["softmax", "no_bias"]
    measures = {
        *("validation_loss", "mean_cosine", "entropy_normalised", "max_probability"),
        *("query_drift_ratio", "query_key_alignment", "isoscore"),
    }
    assert table["softmax"].keys() == measures
    assert table["no_bias"].keys() == measures | {f"{name}_difference" for name in measures}
    losses = [read_log(out / "training" / "no_bias", seed)[-1]["validation_loss"] for seed in (0, 1)]
    assert table["no_bias"]["validation_loss"].value == pytest.approx(np.mean(losses))
    assert perform("variants", settings, out=out).rows == study.rows
    assert len(forwards) == 1
    _, again = plan_of(out / "run.toml")
    assert again.as_dict() == VariantsSettings.check(settings).as_dict()
    drawn = {name: draw(open_run(out)) for name, draw in figures(open_run(out)).items()}
    assert {name: len(figure.axes) for name, figure in drawn.items()} == {
        "variants": len(PANELS) + 1,
        "variants-differences": len(CHANGES),
    }


def test_a_study_stopped_in_its_first_training_goes_on(text, tmp_path, monkeypatch) -> None:
    out, train = tmp_path / "out", trained.pretrain

    def stopped(*given: Any, **options: Any) -> None:
        train(*given, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(trained, "pretrain", stopped)
    with pytest.raises(KeyboardInterrupt):
        perform("variants", asked(text, arms=["softmax"]), out=out)
    monkeypatch.undo()
    assert perform("variants", asked(text, arms=["softmax"]), out=out).rows


def counted(names: list[str]) -> Any:
    from anisoscope.runs.work.passes import run_pass

    return lambda *given, what, **options: (names.append(what), run_pass(*given, what=what, **options))[1]


def test_replace_trains_and_measures_anew_and_changed_text_is_noticed(text, tmp_path) -> None:
    settings, out = asked(text, arms=["softmax"]), tmp_path / "out"
    before = perform("variants", settings, out=out)
    Path(text).write_bytes(b"pack my box with five dozen liquor jugs\n" * 300)
    with pytest.raises(StoreError, match="the data text changed"):
        perform("variants", settings, out=out)
    (out / "training" / "softmax" / "stale").touch()
    (out / "partial").mkdir()
    (out / "partial" / "stale").touch()
    after = perform("variants", settings, out=out, existing="replace")
    assert not list(out.rglob("stale"))
    fresh = perform("variants", settings, out=tmp_path / "fresh")
    values = [[row.value for row in found.rows] for found in (before, after, fresh)]
    assert values[1] == values[2] != values[0]


def test_a_trained_checkpoint_is_measured_as_attention_and_measure_do(text, tmp_path) -> None:
    """One pass with both observers gives the numbers of the studies that look at one thing each."""
    out = tmp_path / "out"
    found = perform("variants", asked(text, arms=["query_centred"]), out=out)
    checkpoint = str(out / "training/query_centred/seed-0/checkpoint-3")
    options = {"data": [text], "limit": 3}
    hidden = perform("measure", {"models": [checkpoint], "neighbours": False, **options})
    attention = perform("attention", {"model": checkpoint, **options})
    rows = [row for row in found.rows if row.seed == 0 and row.layer is not None and row.metric in trained.HIDDEN]
    rows += [row for row in found.rows if row.seed == 0 and row.head is not None and row.metric in trained.ATTENTION]
    assert len(rows) > 10
    known = {(row.site, row.metric, row.positions): row for row in (*hidden.rows, *attention.rows)}
    for row in rows:
        other = known[row.site, row.metric, row.positions]
        assert (row.value, row.low, row.n) == pytest.approx((other.value, other.low, other.n), abs=1e-6), row


def test_a_checkpoint_is_measured_with_the_attention_it_was_trained_with(text, tmp_path) -> None:
    found = perform("variants", asked(text, arms=["softmax", "cosine"]), out=tmp_path / "out")
    for metric in ("mean_cosine", "entropy"):
        rows = [row for row in found.rows if row.metric == metric]
        first, other = ([row.value for row in rows if row.model == arm] for arm in ("softmax", "cosine"))
        assert first
        assert first != other


def test_without_a_folder_nothing_is_trained(text) -> None:
    with pytest.raises(UsageError, match="folder"):
        perform("variants", asked(text))


def test_a_field_of_a_recipe_that_is_nested_too_deep_is_text() -> None:
    nested = "[" * 100_000
    assert values_of(VariantsSettings, {"recipe": [f"hidden={nested}"]}) == {"recipe": {"hidden": nested}}
