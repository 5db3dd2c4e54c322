"""`anisoscope measure`, `compare` and `models` as people and scripts call them: output, files, exit codes."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import anisoscope
import cases
import zoo
from anisoscope.runs.store import open_run

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cases.write_documents(tmp_path_factory.mktemp("texts"), 8)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zoo.save("gpt2", tmp_path_factory.mktemp("models") / "zoo" / "gpt2")


def test_a_real_process_prints_one_object_and_draws_the_figures(texts, gpt2, tmp_path):
    words = ["measure", str(gpt2), "--data", str(texts), "--documents", "file", "--no-neighbours", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "anisoscope", *words, "--out", str(tmp_path / "run"), "--csv", str(tmp_path / "t.csv")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    printed = json.loads(done.stdout)
    assert set(printed) == {"schema", "run", "command", "verdict", "verdicts", "sentence", "notes", "measurements"}
    assert printed["run"] == str(tmp_path / "run")
    figures = {path.name for path in (tmp_path / "run/figures").iterdir()}
    assert figures == {f"{n}.{kind}" for n in ("cosine-by-layer", "drift-tests") for kind in ("svg", "pdf", "png")}
    kept = {(row.site, row.metric, row.positions, row.at): row.value for row in open_run(tmp_path / "run").rows()}
    for row in printed["measurements"]:
        assert kept[row["site"], row["metric"], row["positions"], row["at"]] == row["value"]
    here = anisoscope.measure(gpt2, texts, documents="file", neighbours=False)
    for site in ("embeddings", "block.0", "block.1", "block.2", "final_norm"):
        assert kept[site, "mean_cosine", "all", None] == pytest.approx(here.value("mean_cosine", site=site), abs=1e-12)
    with (tmp_path / "t.csv").open(encoding="utf-8") as stream:
        assert len(list(csv.DictReader(stream))) == len(printed["measurements"])


def test_a_table_names_sites_values_and_verdict(command, texts, gpt2, tmp_path):
    done = command(
        "measure", gpt2, "--data", texts, "--documents", "file", "--no-neighbours", "--out", tmp_path / "run"
    )
    assert done.code == 0, done.err
    assert all(site in done.out for site in ("embeddings", "block.2", "final_norm", "figures: "))
    assert str(tmp_path / "run") in done.out.replace("\n", "")


def test_options_reach_the_measurement(command, texts, gpt2, tmp_path):
    words = ["measure", "zoo/gpt2", "--models-dir", gpt2.parents[1], "--data", texts, "--documents", "file", "--json"]
    words += ["--sites", "block.*", "--sites", "final_norm", "--specials", "drop", "--limit", "3", "--length", "10"]
    done = command(*words, "--spectrum", "none", "--no-neighbours", "--no-figures", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["measurements"]
    assert {row["site"] for row in rows} == {"block.0", "block.1", "block.2", "final_norm", "layers"}
    assert {row["model"] for row in rows} == {"zoo/gpt2"}
    assert not any(row["metric"] == "isoscore" for row in rows)
    data = open_run(tmp_path / "run").manifest["data"]["zoo/gpt2"]
    assert data["documents"] == 3
    assert data["windows"] > 3
    assert not (tmp_path / "run/figures").exists()


def test_maps_flatten_reaches_the_measurement(command, tmp_path):
    words = ["measure", zoo.save("resnet", tmp_path / "resnet"), "--maps", "flatten", "--limit", "4", "--json"]
    done = command(*words, "--no-neighbours", "--no-figures", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    counts = {row["n"] for row in json.loads(done.out)["measurements"] if row["metric"] == "mean_cosine"}
    assert counts == {4}


def test_the_same_command_again_uses_the_finished_run(command, texts, gpt2, tmp_path):
    words = ["measure", gpt2, "--data", texts, "--documents", "file", "--no-neighbours", "--no-figures", "--json"]
    words += ["--out", tmp_path / "run"]
    first = command(*words)
    written = (tmp_path / "run/manifest.json").stat().st_mtime_ns
    second = command(*words)
    assert (second.code, second.out) == (0, first.out)
    assert (tmp_path / "run/manifest.json").stat().st_mtime_ns == written
    refused = command(*words, "--existing", "refuse")
    assert refused.code == 1
    assert "not empty" in refused.err


def test_compare_prints_differences_and_keeps_them(command, texts, gpt2, tmp_path):
    for name in ("a", "b"):
        words = ["--data", texts, "--documents", "file", "--no-neighbours", "--no-figures", "--json"]
        assert command("measure", gpt2, *words, "--out", tmp_path / name).code == 0
    done = command("compare", tmp_path / "a", tmp_path / "b", "--json", "--out", tmp_path / "difference")
    assert done.code == 0, done.err
    printed = json.loads(done.out)
    apart = ("_before", "_after", "partner_cosine", "linear_cka", "procrustes_distance", "neighbour_overlap")
    assert {row["value"] for row in printed["measurements"] if not row["metric"].endswith(apart)} == {0.0}
    partners = [row["value"] for row in printed["measurements"] if row["metric"] == "partner_cosine"]
    assert partners == pytest.approx([1.0] * len(partners)) != []
    assert printed["verdict"].startswith("No average cosine changed")
    assert open_run(tmp_path / "difference").command == "compare"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--specials", "perhaps"], 2, "specials"),
        (["--maps", "pooled"], 2, "maps"),
        (["--existing", "maybe"], 2, "--existing"),
        (["--sites", "layer.9"], 2, "layer.9"),
        (["--length", "1.5"], 2, "whole number"),
        (["--length", "4096"], 2, "at most 128"),
        (["--limit", "0"], 2, "limit"),
        (["--documents", "pages"], 2, "paragraphs"),
        (["--modality", "smell"], 2, "smell"),
        (["--data", "missing.txt"], 2, "missing.txt"),
    ],
)
def test_bad_use_ends_with_2_and_says_what(words, code, said, command, texts, gpt2, tmp_path):
    done = command("measure", gpt2, "--data", texts, *words, "--out", tmp_path / "run", "--json")
    assert done.code == code, done.err
    assert said in done.err
    assert done.out == ""
    assert "Traceback" not in done.err


@pytest.mark.parametrize("what", ["no tokenizer", "no model", "no such folder", "empty text"])
def test_a_failed_job_ends_with_1_and_says_what(what, command, texts, gpt2, tmp_path):
    model, data = gpt2, texts
    if what == "no tokenizer":
        model = zoo.save("gpt2", tmp_path / "bare", with_processor=False)
    elif what == "no model":
        (model := tmp_path / "hollow").mkdir()
    elif what == "no such folder":
        model = tmp_path / "nowhere"
    else:
        (data := tmp_path / "blank.txt").write_text("\n", encoding="utf-8")
    done = command("measure", model, "--data", data, "--out", tmp_path / "run", "--json")
    assert done.code == 1, done.err
    assert done.err.startswith("anisoscope: ")
    names = {"no tokenizer": "tokenizer", "no model": "hollow", "no such folder": "nowhere", "empty text": "blank.txt"}
    assert names[what] in done.err
    assert done.out == ""
    assert "Traceback" not in done.err


def test_models_lists_the_catalogue_and_what_is_at_hand(command, tmp_path):
    zoo.save("gpt2", tmp_path / "openai-community" / "gpt2")
    printed = json.loads(command("models", "--models-dir", tmp_path, "--json").out)["models"]
    here = [entry["id"] for entry in printed if entry["at_hand"] and str(tmp_path) in entry["at_hand"]]
    assert any(name.endswith("gpt2") for name in here)
    assert {entry["modality"] for entry in printed} == {"text", "speech", "vision"}
    spoken = json.loads(command("models", "--modality", "speech", "--json").out)["models"]
    assert {entry["modality"] for entry in spoken} == {"speech"}
    table = command("models", "--models-dir", tmp_path)
    assert table.code == 0
    assert "at hand" in table.out


@pytest.mark.parametrize("names", [("a", "a"), ("a", " ")])
def test_two_models_need_two_names(names: tuple[str, str], tmp_path: Path, command_line) -> None:
    for name in ("bert", "gpt2"):
        zoo.save(name, tmp_path / name)
    words = ["measure", tmp_path / "bert", tmp_path / "gpt2", "--name", names[0], "--name", names[1]]
    ended = command_line(*words, "--out", tmp_path / "run")
    assert (ended.code, "a name of its own" in ended.err) == (2, True), ended
    assert not (tmp_path / "run").exists()
