"""`anisoscope sweep` and `anisoscope attention` as a person or a script meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import zoo
from anisoscope.models.stand_ins import processors as stand_in_processors

FAST = ["--documents", "lines", "--sample", "8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints and a text."""
    root = tmp_path_factory.mktemp("training")
    for step in (0, 8):
        zoo.save("bert", root / f"checkpoint-{step}", seed=step)
    words = stand_in_processors.PASSAGE.split()
    lines = [" ".join(words[i : i + 8]) for i in range(0, 48, 6)]
    (root / "lines.txt").write_text("\n".join(lines) + "\n")
    return root


def test_a_sweep_prints_the_last_step_by_site(command, folder: Path, tmp_path: Path) -> None:
    given = ["sweep", str(folder), "--data", str(folder / "lines.txt"), "--steps", "0,8,9", *FAST, "--no-figures"]
    given += ["--out", str(tmp_path / "run")]
    result = command(*given)
    assert result.code == 0
    assert "missing: step 9: no such checkpoint" in result.out
    assert "step 8" in result.out
    assert "block.2" in result.out
    assert "cos(Q̄, K̄)" in result.out
    assert not (tmp_path / "run/figures").exists()
    again = command(*given, "--json")
    told = json.loads(again.out)
    assert set(told) == {"schema", "run", "command", "verdict", "verdicts", "sentence", "notes", "measurements"}
    assert {row["step"] for row in told["measurements"]} == {0, 8}


def test_a_sweep_draws_the_figures_of_what_it_looked_at(command, folder: Path, tmp_path: Path) -> None:
    given = ["sweep", str(folder), "--data", str(folder / "lines.txt"), "--sites", "hidden", *FAST]
    result = command(*given, "--out", str(tmp_path / "run"))
    assert {path.name for path in (tmp_path / "run/figures").iterdir()} == {
        f"cosine-by-step.{kind}" for kind in ("svg", "pdf", "png")
    }
    assert "cosine-by-step.svg" in result.out.replace("\n", "")


def test_attention_gives_one_json_object_a_csv_and_heat_maps(command, folder: Path, tmp_path: Path) -> None:
    out, csv = tmp_path / "run", tmp_path / "rows.csv"
    given = ["attention", str(folder / "checkpoint-8"), "--data", str(folder / "lines.txt"), *FAST, "--json"]
    result = command(*given, "--out", str(out), "--csv", str(csv))
    told = json.loads(result.out)
    found = {(row["site"], row["metric"]): row["value"] for row in told["measurements"]}
    assert -1 <= found["block.1.head.3", "query_key_cosine"] <= 1
    assert found["block.1", "mean_key_removal"] < 1e-6 < found["block.1", "mean_query_removal"]
    assert csv.read_text().count("\n") == len(told["measurements"]) + 1
    drawn = {path.stem for path in (out / "figures").glob("*.png")}
    assert drawn == {"query_key_cosine", "entropy_normalised", "salience_share", "sink_share"}


@pytest.mark.parametrize(
    "wrong",
    [["--steps", "some"], ["--seeds", "a-b"], ["--sites", "hiden"], ["--seeds", "0-1"], ["--existing", "maybe"]],
)
def test_bad_use_is_told_before_any_work(
    command, folder: Path, wrong: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = command("sweep", str(folder), *wrong)
    assert (result.code, result.out) == (2, "")
    assert not list(tmp_path.iterdir())
