"""The gate: what is the same passes, what moved does not, and what the data cannot tell is not waved through."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

import anisoscope
from anisoscope.accumulate.keys import GROUPS
from anisoscope.cli.main import main
from anisoscope.errors import UsageError
from anisoscope.inference.jackknife import jackknife_mean
from anisoscope.runs.store import TABLE
from anisoscope.runs.writing import file_sha256
from anisoscope.studies.gate import _sentence
from anisoscope.studies.gate.rules import Verdict, outcome, read_rules
from encoders import sentence_folder

torch.set_num_threads(1)


def vectors(n: int = 800, d: int = 12) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.standard_normal((n, d)) * np.linspace(1, 0.3, d) + 0.4).astype(np.float32)


def ended(*words: object) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    return int(stopped.value.code or 0)


def rules(folder: Path, *written: str) -> Path:
    path = folder / "gate.toml"
    path.write_text("".join(f"[[rule]]\n{one}\n" for one in written), encoding="utf-8")
    return path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    x = vectors()
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((12, 12)))[0].astype(np.float32)
    noise = np.random.default_rng(2).standard_normal(x.shape).astype(np.float32)
    for name, y in {"x": x, "near": x + 1e-3 * noise, "turned": x @ turn, "moved": x + 0.3, "short": x[:-1]}.items():
        np.save(f"{name}.npy", y)
    return tmp_path


def test_a_move_whose_interval_reaches_below_its_limit_cannot_be_told(place: Path) -> None:
    """The drift ratio is at least 0, its change is not: the lower end of the interval counts as it is."""
    x = vectors(200)
    np.save("first.npy", x)
    np.save("second.npy", x - 0.02 * np.random.default_rng(3).standard_normal((200, 1)).astype(np.float32) - 0.02)
    wide = rules(place, 'metric = "drift_ratio"\nmove = 1')
    (change,) = anisoscope.gate("first.npy", "second.npy", rules=wide).verdicts
    assert change["low"] < change["value"] < 0
    assert change["value"] - change["low"] == pytest.approx(change["high"] - change["value"])
    tight = rules(place, f'metric = "drift_ratio"\nmove = {-(change["value"] + change["low"]) / 2}')
    (verdict,) = anisoscope.gate("first.npy", "second.npy", rules=tight).verdicts
    assert (verdict["low"], verdict["outcome"]) == (change["low"], "cannot say")


def test_what_is_compared_with_itself_is_told_so(place: Path) -> None:
    assert any("both sides are the same" in note for note in anisoscope.gate("x.npy", "x.npy").notes)
    assert not any("both sides" in note for note in anisoscope.gate("x.npy", "near.npy").notes)


@pytest.mark.parametrize(
    ("second", "code", "outcomes"),
    [
        ("x", 0, {"mean_cosine": "holds", "neighbour_overlap": "holds", "partner_cosine": "holds"}),
        ("near", 0, {"mean_cosine": "holds", "neighbour_overlap": "holds", "partner_cosine": "holds"}),
        ("turned", 1, {"mean_cosine": "holds", "neighbour_overlap": "holds", "partner_cosine": "fails"}),
        ("moved", 1, {"mean_cosine": "fails", "neighbour_overlap": "fails", "partner_cosine": "fails"}),
        ("short", 2, {"mean_cosine": "cannot say", "neighbour_overlap": "cannot say"}),
    ],
)
def test_files_of_vectors_pass_as_far_as_they_are_the_same(
    second: str, code: int, outcomes: dict[str, str], place: Path
) -> None:
    """A rotation keeps every cosine and every neighbour, but not the direction of a vector."""
    found = anisoscope.gate("x.npy", f"{second}.npy")
    said = {one["metric"]: one["outcome"] for one in found.verdicts}
    assert {metric: said[metric] for metric in outcomes} == outcomes
    assert ended("gate", "x.npy", f"{second}.npy", "--markdown", "summary.md") == code
    written = (place / "summary.md").read_text(encoding="utf-8")
    assert f"## anisoscope gate\n\n**{ {0: 'Holds', 1: 'Fails', 2: 'Cannot say'}[code] }" in written


def test_one_broken_rule_is_told_in_the_singular_with_its_number() -> None:
    def judged(outcome: str, site: str = "vectors") -> Verdict:
        seen = {
            "model": "",
            "site": site,
            "metric": "neighbour_overlap",
            "value": 0.9445,
            "low": 0.9415,
            "high": 0.9475,
        }
        return {**seen, "rule": "neighbours kept: at least 0.95", "limits": [0.95, None], "outcome": outcome}

    one = _sentence([judged("holds"), judged("fails")])
    assert one == (
        "Fails: 1 of 2 rules is broken, “neighbours kept: at least 0.95” at vectors with 0.9445 (0.9415 … 0.9475)."
    )
    assert "2 of 2 rules are broken, first “neighbours" in _sentence([judged("fails"), judged("fails")])


def test_a_rule_that_holds_is_wrong_no_more_often_than_it_says() -> None:
    """At a true value on the limit, `holds` and `fails` are each right on the edge of 2.5 %."""
    rng = np.random.default_rng(0)
    said = []
    for _ in range(4000):
        values = rng.standard_normal(320) + 1.0
        _, low, high = jackknife_mean(values, np.arange(320) % GROUPS)
        said.append(outcome(low, high, (1.0, np.inf)))
    assert said.count("holds") / len(said) == pytest.approx(0.025, abs=0.008)
    assert said.count("fails") / len(said) == pytest.approx(0.025, abs=0.008)


def test_rules_are_about_the_sites_and_sides_that_they_name(place: Path) -> None:
    written = rules(
        place,
        'metric = "mean_cosine"\nat_most = 0.9',
        'metric = "drift_ratio"\nat_least = 0.99',
        'metric = "linear_cka"\nat_least = 0.999',
        'metric = "mean_norm"\nsite = "block.*"\nmove = 1.0',
    )
    found = anisoscope.gate("x.npy", "near.npy", rules=str(written))
    said = {one["metric"]: one["outcome"] for one in found.verdicts}
    assert said == {
        "mean_cosine": "holds",
        "drift_ratio": "fails",
        "linear_cka": "holds",
        "mean_norm": "cannot say",
    }
    limits = {one["metric"]: one["limits"] for one in found.verdicts}
    assert limits == {
        "mean_cosine": [None, 0.9],
        "drift_ratio": [0.99, None],
        "linear_cka": [0.999, None],
        "mean_norm": [-1.0, 1.0],
    }
    assert found.value("mean_cosine_after") == pytest.approx(anisoscope.vectors("near.npy").value("mean_cosine"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "list of rules"),
        ("[rule]\nmetric = 'mean_cosine'\nmove = 1", "list of rules"),
        ("[[rule]]\nmetric = 'mean_cosin'\nmove = 1", "mean_cosine"),
        ("[[rule]]\nmetric = 'mean_cosine'", "limit"),
        ("[[rule]]\nmetric = 'mean_cosine'\nmove = -1", "limit"),
        ("[[rule]]\nmetric = 'mean_cosine'\nmove = 1\nat_least = 0", "limit"),
        ("[[rule]]\nmetric = 'mean_cosine'\nmove = true", "numbers"),
        ("[[rule]]\nmetric = 'mean_cosine'\nmoves = 1", "move"),
        ("[[rule", "not valid TOML"),
        pytest.param("a = " + "[" * 100_000, "not valid TOML", id="nested"),
    ],
)
def test_rules_that_are_wrong_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "gate.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=words):
        read_rules(path)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_folder(tmp_path_factory.mktemp("gate") / "tiny", length=24)


def test_a_model_is_held_against_itself_and_against_a_changed_one(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    monkeypatch.chdir(tmp_path)
    changed = tmp_path / "changed"
    shutil.copytree(encoder, changed)
    weights = load_file(changed / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    noisy = {
        name: w + torch.randn(w.shape, generator=generator) * w.std() for name, w in weights.items() if w.ndim == 2
    }
    save_file({**weights, **noisy}, changed / "model.safetensors", {"format": "pt"})
    words = np.array(["the", "a", "cat", "dog", "sat", "on", "mat", "runs", "home", "red", "blue"])
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(words, rng.integers(3, 9))) for _ in range(300)]
    Path("texts.txt").write_text("\n".join(lines), encoding="utf-8")
    data: dict[str, Any] = {"data": ["texts.txt"], "documents": "lines"}
    kept = anisoscope.measure(encoder, Path("texts.txt"), documents="lines", sites=["embedding"], out="released")
    assert str(anisoscope.gate(kept, str(encoder), **data).verdict).startswith("Holds")  # a run against a model
    assert ended("gate", encoder, encoder) == 0  # on the sentences of the package
    assert ended("gate", encoder, changed, "-d", "texts.txt", "--documents", "lines", "--out", "failed") == 1
    found = anisoscope.open_run("failed")
    assert found.value("neighbour_overlap") is not None
    assert {record["kind"] for record in found.inputs.values()} == {"model", "data"}
    again = ["gate", encoder, changed, "-d", "texts.txt", "--documents", "lines", "--out", "failed"]
    assert ended(*again, "--existing", "reuse") == 1  # used again while nothing changed
    save_file(weights, changed / "model.safetensors", {"format": "pt"})
    assert ended(*again, "--existing", "reuse") == 1  # refused: the model is another one now
    assert ended(*again, "--existing", "replace") == 0


def test_a_run_without_verdicts_is_still_shown(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Earlier versions wrote outcome and rule into the notes of rows, and no column for the spread of the null."""
    made = anisoscope.gate("x.npy", "near.npy", out="kept")
    run = made.run
    assert run is not None
    table = run.table().drop_columns(["null_sd"])
    pq.write_table(table, run.folder / TABLE)
    known = {**run.manifest["files"], TABLE: file_sha256(run.folder / TABLE)}
    earlier = replace(run, manifest={k: v for k, v in run.manifest.items() if k != "verdicts"} | {"files": known})
    found = type(made).of_run(earlier)
    assert [row.metric for row in found.rows][:2] == ["mean_cosine_difference", "mean_cosine_before"]
    found.show()
    assert "neighbours kept" in capsys.readouterr().out
    assert "neighbour_overlap" in found.report(place / "page.html").read_text(encoding="utf-8")
