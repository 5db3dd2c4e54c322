"""The first screen: one sentence, then cards in order of importance whose counts agree."""

from __future__ import annotations

import re

import numpy as np
import pytest

import anisoscope
import report_runs
import zoo
from anisoscope.report.page.data import find_subjects, run_labels
from anisoscope.report.page.lead import lead
from anisoscope.report.page.summary import cards
from anisoscope.report.page.write import page_html
from anisoscope.runs.store import Run, write_run
from anisoscope.runs.table import Row


def told(runs):
    labels = run_labels(runs)
    subjects = find_subjects(runs, labels)
    return lead(runs, labels, subjects), cards(runs, labels, subjects)


def test_a_card_says_verdict_kind_highest_and_lowest_site(tmp_path):
    sentence, (beta, alpha) = told([report_runs.layers_run(tmp_path / "run", layers=6)])
    assert (beta.title, alpha.title) == ("org/beta", "org/alpha")  # the more anisotropic first
    assert alpha.verdict == "drifted at 4 of 8 sites"
    assert beta.kinds == (("drifted", 6), ("weakly anisotropic", 2))
    assert beta.verdict == "drifted at 6 of 8 sites"
    assert [fact.where for fact in beta.facts] == ["final_norm", "embeddings"]
    assert sentence.startswith("Of 2 models, org/beta has the highest average cosine: 0.26 (0.24 to ")


def test_models_that_were_measured_twice_are_not_counted_twice(tmp_path):
    runs = [report_runs.layers_run(tmp_path / str(layers), layers=layers) for layers in (6, 4)]
    assert told(runs)[0].startswith("Of 4 measurements, ")


def test_the_training_speaks_first_and_names_its_peak(tmp_path):
    runs = report_runs.every_run(tmp_path)
    sentence, found = told(runs)
    assert sentence == "The average cosine of org/series is highest at the end of its training: " + (
        "0.45 at step 5,000 (block.2)."
    )
    assert [card.origin.split(" · ")[0] for card in found][:3] == ["sweep", "measure", "measure"]
    assert found[-1].title == "Isotropic reference"


@pytest.mark.parametrize(
    ("course", "said"),
    [
        ((0.05, 0.98, 0.14), "During training, the average cosine of m reaches 0.98 at step 64 (block.0)"),
        ((0.6, 0.2, 0.14), "The average cosine of m is highest at the beginning: 0.6 at step 0 (block.0)"),
    ],
)
def test_the_headline_of_a_training_is_its_extreme(course, said, tmp_path):
    rows = [
        Row(model="m", site="block.0", metric="mean_cosine", value=value, step=step)
        for step, value in zip((0, 64, 8192), course, strict=True)
    ]
    run = write_run(tmp_path / "run", command="sweep", settings={}, rows=rows, protocol={})
    assert told([run])[0] == said + "; at the end, step 8,192, no site is above 0.14."


def test_what_the_parts_of_blocks_add_is_not_the_peak_of_a_training(tmp_path):
    rows = [
        Row(model="m", site=site, layer=layer, step=step, metric="mean_cosine", value=value)
        for step, block, part in ((0, 0.05, 0.93), (64, 0.98, 0.99), (128, 0.14, 0.5))
        for site, layer, value in (("block.0", 0, block), ("block.0.attention", None, part))
    ]
    run = write_run(tmp_path / "run", command="sweep", settings={}, rows=rows, protocol={})
    said = "During training, the average cosine of m reaches 0.98 at step 64 (block.0); at the end, step 128, no site"
    assert told([run])[0].startswith(said)


def test_a_series_is_judged_by_its_last_step(tmp_path):
    _, (card,) = told([report_runs.series_run(tmp_path / "run", steps=(0, 700))])
    assert card.title == "org/series, step 700"
    assert {row.step for row in card.cosines} == {700}
    assert [row.step for row in card.course] == [0, 700]


@pytest.mark.parametrize(
    "make",
    [
        "calibrate_run",
        "advise_run",
        "null_run",
        "compare_run",
        "gate_run",
        "block_run",
        "intervene_run",
        "variants_run",
    ],
)
def test_every_study_has_a_card_with_numbers_that_says_its_name_once(tmp_path, make):
    command = make.removesuffix("_run")
    sentence, (card,) = told([getattr(report_runs, make)(tmp_path / command)])
    assert sentence
    assert card.facts
    assert all(fact.value != "–" for fact in card.facts)
    assert card.origin in (command, "")
    assert card.title != command


def test_one_cloud_is_not_said_to_lie_at_itself(tmp_path):
    sentence, (card,) = told([report_runs.vectors_run(tmp_path / "words")])
    assert sentence == "Any two of the 4,096 vectors in words have cosine 0.40 (0.38 to 0.42) on average; " + (
        "isotropic vectors would have 0."
    )
    assert card.title == "words"
    assert [(fact.name, fact.where) for fact in card.facts] == [("average cosine", "")]


def test_a_verdict_may_be_a_line_or_words_with_a_sentence(tmp_path):
    run = report_runs.block_run(tmp_path / "run")
    judged = {"words": ["amplifies"], "sentence": "The block amplifies drift.", "numbers": []}
    changed = Run(run.folder, {**run.manifest, "verdict": judged})
    sentence, (card,) = told([changed])
    assert sentence == card.verdict == "The block amplifies drift."
    assert "The block amplifies drift." in page_html([changed])


def test_a_verdict_about_many_models_shows_its_first_sentence(tmp_path):
    said = " ".join(f"m{k}: the output cosine is above the input cosine at {k} of 11 drift norms." for k in range(9))
    rows = [Row(model=f"m{k}", site="output", metric="fixed_point", value=1.0) for k in range(9)]
    run = write_run(tmp_path / "run", command="block", settings={}, rows=rows, protocol={}, verdict=said)
    page = page_html([run])
    first, rest = said.split(". ", 1)
    assert f">{first}.</p><details><summary>the others</summary><p>{rest}</p>" in page


def test_a_norm_with_a_part_taken_away_is_no_site_of_the_model(tmp_path):
    sites = {"block.0": 0.2, "block.0.unit_gain": 0.9, "block.0.as_it_is": 0.2}
    rows = [Row(model="m", site=site, metric="mean_cosine", value=value) for site, value in sites.items()]
    run = write_run(tmp_path / "run", command="final-norm", settings={}, rows=rows, protocol={})
    assert told([run])[0] == "In m the average cosine reaches 0.2 at block.0; isotropic vectors would have 0."


def test_a_page_of_one_study_of_many_models_bears_its_name(tmp_path):
    page = page_html([report_runs.variants_run(tmp_path / "my-arms")])
    assert "<title>my-arms · anisoscope</title>" in page


def test_a_card_has_the_notes_of_its_own_model(tmp_path):
    models = [str(zoo.save(name, tmp_path / name)) for name in ("bert", "gpt2")]
    found = anisoscope.measure(models, data=["two short texts", "are too few for a spectrum"], out=tmp_path / "run")
    of_models = found.run.manifest["about"]
    _, both = told([found.run])
    assert sorted(card.notes for card in both) == sorted(tuple(of_models[model]["notes"]) for model in of_models)
    assert all(card.notes for card in both)
    assert set(found.notes) >= {f"{label}: {note}" for label in of_models for note in of_models[label]["notes"]}


def test_two_clouds_speak_of_each_other_and_a_page_of_files_bears_their_names(tmp_path):
    x = np.random.default_rng(0).standard_normal((300, 8)) + 1
    np.save(tmp_path / "old.npy", x)
    np.save(tmp_path / "new.npy", x + 0.1)
    files = {"files": [str(tmp_path / "old.npy")], "against": [str(tmp_path / "new.npy")], "aligned": True}
    found = anisoscope.vectors(**files, out=tmp_path / "pair")
    _, (card,) = told([found.run])
    assert "between them" in card.verdict
    page = page_html([found.run, report_runs.variants_run(tmp_path / "arms")])
    assert '<h1 id="summary-title">pair and arms</h1>' in page


def test_the_title_counts_models_as_the_line_above_it(tmp_path):
    page = page_html([report_runs.layers_run(tmp_path / "layers"), report_runs.variants_run(tmp_path / "arms")])
    models = int(re.search(r"(\d+) models ·", page)[1])
    assert models > 2
    assert f"and {models - 1} more</h1>" in page


def test_of_two_equal_measurements_none_is_said_to_be_higher(tmp_path):
    runs = [report_runs.layers_run(tmp_path / name, ("org/alpha",)) for name in ("before", "after")]
    assert told(runs)[0].startswith("In both measurements the average cosine reaches 0.15")
