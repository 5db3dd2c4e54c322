"""The block study as a run: combinations, comparison with trained models, what it refuses and what it tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import zoo
from anisoscope.errors import InputError, StoreError, UsageError
from anisoscope.runs.perform import perform
from anisoscope.runs.store import open_run, write_run
from anisoscope.runs.table import Row
from anisoscope.studies.block import BlockSettings, story
from anisoscope.studies.block.rows import hidden_norm_rows


def plan(small_config: str, **changes: Any) -> dict[str, Any]:
    return {"arch": [small_config], "norms": [0, 2, 10], "seeds": 2, "sequences": 1, "length": 24, **changes}


def test_a_plan_gives_every_combination_and_is_kept(small_config: str, tmp_path: Path) -> None:
    asked = plan(small_config, without=["none", "mlp"], input=["table", "embeddings"])
    found = perform("block", asked, out=tmp_path / "run")
    labels = {f"small-bert{end}" for end in ("", ", no mlp", ", embeddings", ", embeddings, no mlp")}
    assert {row.model for row in found.rows} == labels
    assert str(found.verdict).count("drift norms") == 4
    arrays = open_run(tmp_path / "run").arrays()
    assert {name.split("/")[0] for name in arrays} == labels
    assert "small-bert/scores_counts" in arrays


def test_a_run_is_used_again_only_while_its_config_is_what_it_was(small_config: str, tmp_path: Path) -> None:
    first = perform("block", plan(small_config), out=tmp_path / "run")
    assert perform("block", plan(small_config), out=tmp_path / "run").rows == first.rows
    config = Path(small_config) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "initializer_range": 0.5}))
    with pytest.raises(StoreError, match="changed since"):
        perform("block", plan(small_config), out=tmp_path / "run")


def test_two_folders_of_one_name_are_told_apart(small_config: str, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "small-bert"
    other.mkdir(parents=True)
    (other / "config.json").write_text((Path(small_config) / "config.json").read_text())
    found = perform("block", plan(small_config, arch=[small_config, str(other)], norms=[0, 2], seeds=1))
    assert {row.model for row in found.rows} == {f"{tmp_path.name}/small-bert", "elsewhere/small-bert"}
    with pytest.raises(UsageError, match="named twice"):
        perform("block", plan(small_config, arch=[small_config, small_config]))


def test_trained_norms_are_compared_with_the_fixed_point(small_config: str, tmp_path: Path) -> None:
    trained = [Row(model="m", site="block.0", layer=0, metric="mean_norm", value=12.0, low=11.0, high=13.0, n=9)]
    folder = write_run(tmp_path / "trained", command="measure", settings={}, rows=trained, protocol={}).folder
    found = perform("block", plan(small_config, against=[str(folder)]))
    fixed = next(row for row in found.rows if row.metric == "fixed_point" and row.seed is None)
    ratio = next(row for row in found.rows if row.metric == "norm_over_fixed_point")
    assert fixed.value == pytest.approx(zoo.D**0.5, abs=0.1)
    assert ratio.value == pytest.approx(12.0 / fixed.value)
    assert ratio.low == pytest.approx(11.0 / fixed.value)
    assert any(line.startswith(f"block.0: {ratio.value:.4g} × N*") for line in story(found.rows).lines)
    nothing = write_run(tmp_path / "nothing", command="vectors", settings={}, rows=[], protocol={})
    with pytest.raises(InputError, match="no norms of blocks"):
        hidden_norm_rows(found.rows, nothing)


@pytest.mark.parametrize("depth", [1, 3])
def test_the_story_is_one_table_per_experiment_and_one_line_per_norm(small_config: str, depth: int) -> None:
    found = perform("block", plan(small_config, input=["table", "embeddings"], depth=depth))
    told = story(found.rows)
    assert [table.title.partition(", depth")[0] for table in told.tables] == ["small-bert", "small-bert, embeddings"]
    for table in told.tables:
        assert [cells[0] for cells in table.cells] == ["0", "2", "10"]
        widths = [max(map(len, column)) for column in zip(table.columns, *table.cells, strict=True)]
        assert sum(widths) + 2 * len(widths) <= 80
    average = {
        (row.model, row.site, row.at): row.value
        for row in found.rows
        if row.seed is None and row.metric == "mean_cosine"
    }
    cosine = told.tables[0].cells[1][1]
    assert cosine == f"{average[told.tables[0].title, 'input', 2.0]:.3g}"
    assert len(told.lines) == 2 * 3
    assert any("by block" in table.title for table in told.more) == (depth > 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"norms": [5.0, 1.0]},
        {"norms": [-1.0, 1.0]},
        {"norms": [1.0]},
        {"norms": [0.0, float("inf")]},
        {"seeds": 0},
        {"length": 1},
        {"input": ["pixels"]},
        {"without": ["norm"]},
        {"init_std": 0.0},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        BlockSettings.check(wrong, command="block")


def test_an_unknown_architecture_is_refused_before_any_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown architecture"):
        perform("block", {"arch": ["gpt9"]}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
