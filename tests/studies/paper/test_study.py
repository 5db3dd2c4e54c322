"""`anisoscope paper`: the recipes are whole, runs are made and used again, and each scale says what it is."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

import zoo
from anisoscope.errors import StoreError, UsageError
from anisoscope.models import catalogue
from anisoscope.report.page.paper import Entry, read_folder, write_paper_page
from anisoscope.runs.finding import entries as studies
from anisoscope.runs.settings import Machine
from anisoscope.runs.study import find_study
from anisoscope.studies.paper import recipes
from anisoscope.studies.paper.checks import registry
from anisoscope.studies.paper.study import Scale, choose, describe, figures, perform, status

RUNS = recipes.runs()


def test_every_figure_of_both_papers_has_a_recipe() -> None:
    names = {re.sub(r"(?<=\d)[ab]$", "", figure.name) for figure in figures()}
    assert names == {*map(str, range(1, 24)), "M1", "M2", "M3", "M4"}
    assert [figure.name for figure in figures()][:4] == ["1", "2", "3a", "3b"]


def test_recipes_name_what_exists() -> None:
    for figure in figures():
        assert set(figure.runs) <= RUNS.keys()
        assert figure.caption
        for path in figure.draw:
            module, _, name = path.partition(".")
            assert callable(getattr(importlib.import_module(f"anisoscope.report.figures.{module}"), name))
    for stand_in in recipes.stand_ins().values():
        assert stand_in.get("made", "bert") in zoo.NAMES


def test_every_statement_says_where_it_stands_and_is_tested() -> None:
    for figure in figures():
        for said in figure.statements:
            assert said.quote
            assert said.section
            assert said.said_by in ("text", "picture")
            inspect.signature(registry()[said.check].read).bind(
                None, **said.options, **({"label": "bert"} if figure.by_input else {})
            )


def test_statements_name_models_that_their_runs_have() -> None:
    for figure in figures():
        there = {model.rpartition("/")[2] for run in figure.runs for model in RUNS[run].get("models", ())}
        for said in figure.statements:
            lists = ("models", "but", "higher", "lower", "isotropic", "anisotropic")
            named = {name for option in lists for name in said.options.get(option, ())}
            assert named <= there, (figure.name, named - there)
            assert said.options.get("group", figure.runs[0]) in figure.runs


@pytest.mark.parametrize("scale", ["demo", "local", "hub"])
@pytest.mark.parametrize("protocol", ["ours", "paper"])
def test_the_settings_of_every_run_are_accepted_by_its_study(scale: str, protocol: str) -> None:
    named = Scale(scale, ("t",), ("s",), ("i",), protocol=protocol, models_dir=".")
    for name, recipe in RUNS.items():
        if recipe["command"] not in studies() or (name == "training" and scale == "local"):
            continue
        settings = named.settings(name) | ({"models": ["m"]} if "models" in recipe else {})
        find_study(recipe["command"]).settings.check(settings, command=name)


def test_models_are_those_of_the_catalogue_and_have_stand_ins() -> None:
    for figure in ("1", "2", "3a", "3b", "4", "M1", "M3"):
        (recipe,) = choose([figure])
        assert {entry.id for entry in catalogue.catalogue(figure=figure)} == set(RUNS[recipe.runs[0]]["models"])
    for recipe in RUNS:
        for model in Scale("demo").models(recipe):
            assert model.rpartition("/")[2] in recipes.stand_ins()


@pytest.mark.parametrize(
    ("asked", "found"), [(["3"], ["3a", "3b"]), (["figure_13", "M1"], ["13", "M1"]), (["6b", "6"], ["6b", "6a"])]
)
def test_figures_are_chosen_by_name(asked: list[str], found: list[str]) -> None:
    assert [figure.name for figure in choose(asked)] == found


def test_an_unknown_figure_is_refused() -> None:
    with pytest.raises(UsageError, match="24"):
        choose(["24"])


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draw = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for number in range(4):
        Image.fromarray(draw.integers(0, 255, (48, 48, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Path:
    """A folder with figures 3b and 17 at the scale of the demo."""
    out = tmp_path_factory.mktemp("paper")
    results = perform(choose(["17", "3b"]), Scale("demo", images=(str(images),)), out=out)
    assert [status(result) for result in results] == ["holds", "stand-in only"]
    return out


def test_the_demo_says_stand_in_everywhere(demo: Path) -> None:
    page, pictures = write_paper_page(demo)
    assert pictures == 2
    found = read_folder(demo)
    assert found["scale"] == "demo"
    about = {entry.name: entry for entry in (Entry(demo, one) for one in found["figures"])}
    assert {row.model.partition("/")[0] for run in about["3b"].runs for row in run.rows(metric="mean_cosine")} == {
        "stand-in"
    }
    drawn = (demo / "figures" / "figure_3b.svg").read_text()
    assert "STAND-IN" in drawn
    assert "stand-in/mit-b0" in drawn
    assert "validation" in drawn  # the words are wrapped
    assert "STAND-IN" not in (demo / "figures" / "figure_17.svg").read_text()
    text = page.read_text()
    assert text.count("data:image/svg+xml") == 2
    assert "on the stand-ins" in text
    assert "vision (stand-ins)" in text
    assert not re.search(r'(src|href)="(?!data:|#)', text)  # nothing is requested


def test_runs_are_used_again_and_figures_are_not_drawn_twice(demo: Path, images: Path) -> None:
    write_paper_page(demo)
    patterns = (
        "runs/*/measurements.parquet",
        "runs/*/*/measurements.parquet",
        "figures/*",
        "stand-ins/*/*/config.json",
    )
    before = {path: path.stat().st_mtime_ns for pattern in patterns for path in demo.glob(pattern)}
    assert len(before) > 8
    perform(choose(["3b"]), Scale("demo", images=(str(images),)), out=demo)
    write_paper_page(demo)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [one["name"] for one in read_folder(demo)["figures"]] == ["3b", "17"]  # what was made before stays


def test_a_folder_holds_one_scale_and_one_protocol(demo: Path) -> None:
    with pytest.raises(StoreError, match="another scale"):
        perform(choose(["17"]), Scale("hub"), out=demo)
    with pytest.raises(StoreError, match="another protocol"):
        perform(choose(["17"]), Scale("demo", protocol="paper"), out=demo)


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="something other"):
        perform(choose(["17"]), Scale("demo"), out=tmp_path)
    (tmp_path / "results.json").write_text('{"scores": [1, 2]}')
    with pytest.raises(StoreError, match="something other"):
        perform(choose(["17"]), Scale("demo"), out=tmp_path)
    with pytest.raises(UsageError, match="this is a file"):
        perform(choose(["17"]), Scale("demo"), out=tmp_path / "thesis.tex")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.json", "thesis.tex"]


def test_the_hub_scale_opens_published_names(tmp_path: Path, images: Path) -> None:
    mirror = tmp_path / "mirror"
    for model in RUNS["vision"]["models"]:
        zoo.save(recipes.stand_ins()[model.rpartition("/")[2]]["made"], mirror / model)
    scale = Scale("hub", images=(str(images),))
    (found,) = perform(choose(["3b"]), scale, out=tmp_path / "out", machine=Machine(models_dir=str(mirror)))
    assert status(found) in ("holds", "fails")
    assert found.stands_in is None
    assert found.runs[0].rows(metric="mean_cosine")[0].model == "google/vit-base-patch16-224"


def test_other_weights_of_a_figure_are_refused(tmp_path: Path, images: Path) -> None:
    mirror, out = tmp_path / "mirror", tmp_path / "out"
    weights = zoo.save("resnet", mirror / "keras/resnet-50") / "model.safetensors"
    scale, machine = Scale("local", images=(str(images),), models_dir=str(mirror)), Machine(models_dir=str(mirror))
    perform(choose(["4"]), scale, out=out, machine=machine)
    tensors = load_file(weights)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, weights, metadata={"format": "pt"})
    (refused,) = perform(choose(["4"]), scale, out=out, machine=machine)
    assert "changed since this run was made" in (refused.failed or "")
    assert not refused.runs


def test_local_measures_what_is_there_and_says_whose_it_is(tmp_path: Path, images: Path) -> None:
    mirror = tmp_path / "mirror"
    zoo.save("resnet", mirror / "keras/resnet-50")
    scale = Scale("local", images=(str(images),), models_dir=str(mirror))
    convolutional, speech, training = perform(
        choose(["4", "3a", "13"]), scale, out=tmp_path / "out", machine=Machine(models_dir=str(mirror))
    )
    assert [run.name for run in convolutional.runs] == ["resnet-50"]
    assert convolutional.marks["keras/resnet-50"]["whose"] == "another model of the family"
    assert [status(one) for one in (speech, training)] == ["not testable here"] * 2
    assert "no series of checkpoints" in training.not_testable
    text = write_paper_page(tmp_path / "out")[0].read_text()
    assert "another model of the family" in text
    assert "no model of this figure lies in" in text
    unseen = text[text.index('id="f3a"') :].partition("</section>")[0]
    assert not re.search(
        r"Data: |<p>[A-Z]", unseen.partition("<details><summary>Source")[0]
    )  # neither data nor caption


def test_the_papers_own_models_are_marked() -> None:
    marks = {one.id: one.mark for one in recipes.local_models()}
    assert marks["openai/whisper-base"] == "the paper's own model"
    published = {model for recipe in RUNS.values() for model in recipe.get("models", ())}
    for one in recipes.local_models():
        assert one.own == (one.id in published)
        assert set(one.runs) <= RUNS.keys()
        assert set(one.stands_for) <= {model.rpartition("/")[2] for model in published}


def test_what_fails_leads_the_page(tmp_path: Path) -> None:
    perform(choose(["17"]), Scale("demo"), out=tmp_path)
    written = json.loads((tmp_path / "results.json").read_text())
    failing = {**written["figures"][0], "name": "18", "status": "fails", "runs": [], "title": "The one that fails"}
    failing["statements"] = [{**failing["statements"][0], "holds": False, "seen": "0.150 at final_norm"}]
    written["figures"].append(failing)
    (tmp_path / "results.json").write_text(json.dumps(written))
    text = write_paper_page(tmp_path)[0].read_text()
    assert text.index("What does not hold") < text.index('id="f18"') < text.index('id="f17"')


def test_a_figure_that_cannot_be_made_costs_no_other(tmp_path: Path) -> None:
    results = perform(choose(["3a", "17"]), Scale("hub"), out=tmp_path)
    assert [status(result) for result in results] == ["failed", "holds"]
    assert "--speech FOLDER" in results[0].failed
    assert "withdrawn" in results[0].failed
    page, pictures = write_paper_page(tmp_path)
    assert pictures == 1
    assert "--speech FOLDER" in page.read_text()


def test_published_trainings_are_followed_and_one_missing_model_costs_its_own_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(catalogue, "PYTHIA_PAPER_STEPS", (0, 7000))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for step in (0, 7000):
        zoo.save("gpt_neox", tmp_path / f"EleutherAI/pythia-70m@step{step}", seed=step)
    said: list[str] = []
    machine = Machine(models_dir=str(tmp_path))
    (found,) = perform(choose(["M1"]), Scale("hub"), out=tmp_path / "out", machine=machine, announce=said.append)
    assert [run.name for run in found.runs] == ["pythia-70m"]
    assert {row.step for row in found.runs[0].rows()} == {0, 7000}
    assert sum("pythia-160m" in line for line in said) == 1


def test_words_are_escaped(tmp_path: Path) -> None:
    perform(choose(["3a"]), Scale("hub"), out=tmp_path)
    written = json.loads((tmp_path / "results.json").read_text())
    written["figures"][0]["failed"] = "<script>alert(1)</script>"
    (tmp_path / "results.json").write_text(json.dumps(written))
    assert "<script" not in write_paper_page(tmp_path)[0].read_text()


def test_a_model_that_reads_data_of_its_own_says_so_and_nothing_else(tmp_path: Path) -> None:
    for place in ("Graylab/AntiBERTy", "data/antibodies"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "Graylab/AntiBERTy/config.json").write_text("{}")
    scale = Scale("local", text=("wiki.txt",), models_dir=str(tmp_path))
    assert scale.about_run_data("characters") == ["data/antibodies for AntiBERTy"]


@pytest.mark.parametrize("protocol", ["ours", "paper"])
def test_the_tests_of_figure_5_are_drawn_by_the_protocol_of_the_folder(tmp_path: Path, protocol: str) -> None:
    (result,) = perform(choose(["5"]), Scale("local", protocol=protocol, models_dir=str(tmp_path)), out=tmp_path)
    assert describe(result, tmp_path)["options"] == {"method": "spearman", "protocol": protocol}


def test_a_folder_of_an_earlier_format_is_told_anew_from_its_runs(tmp_path: Path) -> None:
    (found,) = perform(choose(["17"]), Scale("demo"), out=tmp_path)
    made = (found.runs[0].folder / "manifest.json").stat().st_mtime_ns
    written = json.loads((tmp_path / "results.json").read_text())
    known = {**written["figures"][0], "name": "4", "marks": {"keras/resnet-50": "another model of the family: ResNet"}}
    (tmp_path / "results.json").write_text(json.dumps({**written, "format": 2, "figures": [known]}))
    (again,) = perform(choose(["17"]), Scale("demo"), out=tmp_path)
    assert (again.runs[0].folder / "manifest.json").stat().st_mtime_ns == made
    assert [one["name"] for one in read_folder(tmp_path)["figures"]] == ["17"]
    write_paper_page(tmp_path)


def test_the_papers_protocol_reads_published_models_at_fixed_commits(tmp_path: Path) -> None:
    known = recipes.read("runs")["revisions"]
    published = {model for recipe in RUNS.values() for model in recipe.get("models", ())}
    assert known.keys() <= published
    assert all(re.fullmatch("[0-9a-f]{40}", commit) for commit in known.values())
    paper = Scale("hub", protocol="paper")
    assert paper.pinned("gpt2", None) == {"models": [f"gpt2@{known['gpt2']}"], "name": ["gpt2"]}
    assert Scale("hub").pinned("gpt2", None) == {"models": ["gpt2"]}
    zoo.save("gpt2", tmp_path / "gpt2")
    assert paper.pinned("gpt2", str(tmp_path)) == {"models": ["gpt2"]}
