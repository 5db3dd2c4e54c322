"""The study of vocabularies: series, frequency, what it refuses, what it tells."""

from __future__ import annotations

from pathlib import Path

import pytest

import zoo
from anisoscope.errors import AnisoscopeError
from anisoscope.models import open as opening
from anisoscope.report.figures.vocabulary import figure_m1, figure_m4
from anisoscope.report.page.sections.vocabulary import pictures
from anisoscope.runs.perform import perform
from anisoscope.runs.store import open_run
from anisoscope.studies.vocabulary import story


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("series")
    return [str(zoo.save("gpt_neox", root / f"checkpoint-{step}", seed=step)) for step in (0, 1000)]


def test_a_series_keeps_its_steps_and_pictures(series: list[str], tmp_path: Path) -> None:
    measured = perform("vocabulary", {"models": series, "points": 50}, out=tmp_path / "run")
    assert {row.step for row in measured.rows} == {0, 1000}
    run = open_run(tmp_path / "run")
    assert run.arrays()["1000/vocabulary.output/points"].shape == (50, 2)
    found = [row.value for row in run.rows(site="vocabulary.input", metric="partition_both")]
    assert found[0] != found[1]
    assert str(measured.verdict).startswith("At step 1,000, the input matrix has I(W) = ")
    assert "the output matrix" in str(measured.verdict)


def test_the_story_has_one_line_for_each_step_and_matrix(series: list[str]) -> None:
    told = story(perform("vocabulary", {"models": series}).rows)
    (table,) = told.tables
    assert [cells[:2] for cells in table.cells] == [
        ["0", "input"],
        ["0", "output"],
        ["1,000", "input"],
        ["1,000", "output"],
    ]
    widths = [max(map(len, column)) for column in zip(table.columns, *table.cells, strict=True)]
    assert sum(widths) + len(widths) <= 80
    assert [cells[1] for cells in told.more[0].cells] == ["input.centred", "output.centred"] * 2


def test_a_text_gives_frequencies(series: list[str], tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("the dog saw the cat and the bird\nthe end\n" * 4)
    settings = {"models": series[:1], "data": [str(tmp_path / "book.txt")], "documents": "lines"}
    whole, part = (perform("vocabulary", {**settings, "limit": limit}) for limit in (None, 1))
    rows = [row for row in whole.rows if row.metric == "spearman_log_frequency_norm"]
    assert len(rows) == 2 * len(dict.fromkeys(row.site.removesuffix(".centred") for row in rows))
    assert "occur" in rows[0].protocol
    assert rows[0].protocol != next(row for row in part.rows if row.metric == rows[0].metric).protocol


def test_a_text_that_is_not_there_is_refused_before_a_model_is_opened(
    series: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "open_model", lambda *_, **__: pytest.fail("a model was opened"))
    with pytest.raises(AnisoscopeError, match=r"typo\.txt"):
        perform("vocabulary", {"models": series, "data": [str(tmp_path / "typo.txt")]}, out=tmp_path / "run")
    with pytest.raises(AnisoscopeError, match=r"typo\.txt"):  # a bare name too: it is a place, never a text
        perform("vocabulary", {"models": series, "data": ["typo.txt"]})


def test_a_revision_after_the_name_opens_that_revision(tmp_path: Path) -> None:
    from anisoscope.runs.settings import Machine

    for step in (0, 8):
        zoo.save("gpt2", tmp_path / "mirror" / "owner" / f"small@step{step}", seed=step)
    names = ["owner/small@step0", "owner/small@step8"]
    machine = Machine(models_dir=str(tmp_path / "mirror"))
    settings = {"models": names, "head": False}
    measured = perform("vocabulary", settings, machine=machine, out=tmp_path / "run")
    assert {(row.step, row.revision) for row in measured.rows} == {(0, "step0"), (8, "step8")}
    again = perform("vocabulary", settings, machine=machine, out=tmp_path / "run")  # both are what they were
    assert again.verdict == measured.verdict


def test_a_checkpoint_without_a_head_is_refused_with_the_option_that_leaves_it_out(tmp_path: Path) -> None:
    zoo.module("bert", head=False).save_pretrained(tmp_path / "body")
    body = str(tmp_path / "body")
    with pytest.raises(AnisoscopeError, match="--no-head"):
        perform("vocabulary", {"models": [body]})
    assert {row.site for row in perform("vocabulary", {"models": [body], "head": False}).rows} == {
        "vocabulary.input",
        "vocabulary.input.centred",
    }


def test_models_that_are_no_series_are_told_by_name(tmp_path: Path) -> None:
    folders = [str(zoo.save(name, tmp_path / name)) for name in ("gpt2", "gpt_neox")]
    found = perform("vocabulary", {"models": folders, "points": 50}, out=tmp_path / "run")
    assert {row.step for row in found.rows} == {None}
    assert [cells[:2] for cells in story(found.rows).tables[0].cells] == [
        ["gpt2", "input"],
        ["gpt_neox", "input"],
        ["gpt_neox", "output"],
    ]
    apart = [str(perform("vocabulary", {"models": [folder]}).verdict) for folder in folders]
    told = [f"{name}: {one[0].lower()}{one[1:]}" for name, one in zip(("gpt2", "gpt_neox"), apart, strict=True)]
    assert str(found.verdict) == " ".join(told)
    run = open_run(tmp_path / "run")
    assert [(one["site"], one["of"]) for one in pictures(run, run.arrays())] == [
        ("vocabulary.input", " of gpt2"),
        ("vocabulary.input", " of gpt_neox"),
        ("vocabulary.output", " of gpt_neox"),
    ]
    assert [panel.get_title("left") for panel in figure_m4(run).axes[:2]] == ["gpt2", "gpt_neox"]
    inputs, outputs = figure_m1(run).axes[:2]
    assert {line.get_linestyle() for line in inputs.get_lines()} == {"None"}
    assert {round(float(x)) for line in outputs.get_lines() for x in line.get_xdata()} == {1}  # of the second model
