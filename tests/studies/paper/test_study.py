"""`anisoscope paper`: the recipes are whole, runs are made and used again, and each scale says what it is."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from anisoscope.studies.measure.study import Machine
from anisoscope.studies.plans import STUDIES
from PIL import Image

import zoo
from anisoscope.errors import StoreError, UsageError
from anisoscope.models import catalogue
from anisoscope.report.page.paper import read_entries, write_paper_page
from anisoscope.studies.paper import study as paper
from anisoscope.studies.paper.checks import CHECKS
from anisoscope.studies.paper.study import Scale, choose, figures, perform, status

RECIPES = paper._recipes()
KEPT = ("runs/*/measurements.parquet", "figures/*", "stand-ins/*/*/config.json")


def test_every_figure_of_both_papers_has_a_recipe() -> None:
    names = {re.sub(r"(?<=\d)[ab]$", "", figure.name) for figure in figures()}
    assert names == {*map(str, range(1, 24)), "M1", "M2", "M3", "M4"}


def test_recipes_name_what_exists() -> None:
    for figure in figures():
        assert set(figure.runs) <= RECIPES["runs"].keys()
        assert figure.caption
        for path in figure.draw:
            module, _, name = path.partition(".")
            assert callable(getattr(importlib.import_module(f"anisoscope.report.figures.{module}"), name))
        for statement in figure.statements:
            assert statement.check in CHECKS, statement
    for recipe in RECIPES["runs"].values():
        assert recipe["command"] in STUDIES
        for model in paper._models(recipe, "hub"):
            assert catalogue.lookup(model).id == model
        for model in paper._models(recipe, "demo"):
            assert model.rpartition("/")[2] in RECIPES["stand_ins"]
    for stand_in in RECIPES["stand_ins"].values():
        assert stand_in.get("made", "bert") in zoo.NAMES


def test_the_models_of_a_figure_are_those_of_the_catalogue() -> None:
    for figure in ("1", "2", "3a", "3b", "4"):
        (recipe,) = choose([figure])
        assert {entry.id for entry in catalogue.catalogue(figure=figure)} == set(
            RECIPES["runs"][recipe.runs[0]]["settings"]["models"]
        )


def test_the_rebuttal_has_every_model_of_the_catalogue() -> None:
    assert set(RECIPES["runs"]["vocabularies"]["hub"]["each"]) == {one.id for one in catalogue.catalogue(figure="M1")}
    assert set(RECIPES["runs"]["norms"]["hub"]["each"]) == {one.id for one in catalogue.catalogue(figure="M3")}


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
    scale = Scale("demo", images=(str(images),))
    results = perform(choose(["17", "3b"]), scale, out=out)
    assert [status(result) for result in results] == ["reproduced", "stand-in only"]
    return out


def test_the_demo_says_stand_in_everywhere(demo: Path) -> None:
    page, pictures = write_paper_page(demo)
    assert pictures == 2
    scale, entries = read_entries(demo)
    assert scale == "demo"
    about = {entry.name: entry for entry in entries}
    assert {row.model.partition("/")[0] for row in about["3b"].runs[0].rows(metric="mean_cosine")} == {"stand-in"}
    assert "STAND-IN" in (demo / "figures" / "figure_3b.svg").read_text()
    assert "STAND-IN" not in (demo / "figures" / "figure_17.svg").read_text()
    text = page.read_text()
    assert text.count("data:image/svg+xml") == 2
    assert "on the stand-ins" in text
    assert not re.search(r'(src|href)="(?!data:|#)', text)  # nothing is requested


def test_runs_are_used_again_and_figures_are_not_drawn_twice(demo: Path, images: Path) -> None:
    write_paper_page(demo)
    files = [
        *demo.glob("runs/*/measurements.parquet"),
        *demo.glob("figures/*"),
        *demo.glob("stand-ins/*/*/config.json"),
    ]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert len(before) > 8
    perform(choose(["3b"]), Scale("demo", images=(str(images),)), out=demo)
    write_paper_page(demo)
    assert {path: path.stat().st_mtime_ns for path in files} == before
    assert [entry.name for entry in read_entries(demo)[1]] == ["3b", "17"]  # what was made before stays


def test_a_folder_holds_one_scale(demo: Path) -> None:
    with pytest.raises(StoreError, match="another scale"):
        perform(choose(["17"]), Scale("hub"), out=demo)


def test_the_hub_scale_opens_published_names(tmp_path: Path, images: Path) -> None:
    mirror = tmp_path / "mirror"
    recipe = RECIPES["runs"]["vision"]
    for model in recipe["settings"]["models"]:
        zoo.save(RECIPES["stand_ins"][model.rpartition("/")[2]]["made"], mirror / model)
    scale = Scale("hub", images=(str(images),))
    (found,) = perform(choose(["3b"]), scale, out=tmp_path / "out", machine=Machine(models_dir=mirror))
    assert status(found) in ("reproduced", "not reproduced")
    assert found.stands_in is None
    assert found.runs[0].rows(metric="mean_cosine")[0].model == "google/vit-base-patch16-224"


def test_a_figure_that_cannot_be_made_costs_no_other(tmp_path: Path) -> None:
    results = perform(choose(["3a", "17"]), Scale("hub"), out=tmp_path)
    assert [status(result) for result in results] == ["failed", "reproduced"]
    assert "--speech FOLDER" in results[0].failed
    page, pictures = write_paper_page(tmp_path)
    assert pictures == 1
    assert "--speech FOLDER" in page.read_text()


def test_published_trainings_are_followed_and_one_missing_model_costs_its_own_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(catalogue, "PYTHIA_PAPER_STEPS", (0, 7000))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for step in (0, 7000):
        zoo.save("gpt_neox", tmp_path / f"EleutherAI/pythia-70m@step{step}", seed=step)
    said: list[str] = []
    machine = Machine(models_dir=tmp_path)
    (found,) = perform(choose(["M1"]), Scale("hub"), out=tmp_path / "out", machine=machine, announce=said.append)
    assert [run.name for run in found.runs] == ["vocabularies-pythia-70m"]
    assert {row.step for row in found.runs[0].rows()} == {0, 7000}
    assert sum("pythia-160m" in line for line in said) == 1


def test_words_are_escaped(tmp_path: Path) -> None:
    perform(choose(["3a"]), Scale("hub"), out=tmp_path)
    written = json.loads((tmp_path / "results.json").read_text())
    written["figures"][0]["failed"] = "<script>alert(1)</script>"
    (tmp_path / "results.json").write_text(json.dumps(written))
    assert "<script" not in write_paper_page(tmp_path)[0].read_text()
