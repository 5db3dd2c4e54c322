"""The public functions, as a reader of the README would call them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import anisoscope
from anisoscope.errors import StoreError, UsageError
from anisoscope.models.fingerprint import module_fingerprint
from anisoscope.models.open import open_model
from anisoscope.runs.finding import entries
from anisoscope.runs.perform import plan_of

TEXTS = [
    f"the {animal} sat on the mat and looked at the {animal}" for animal in ("cat", "dog", "bird", "fox", "owl", "hen")
]
FAST = {"neighbours": False, "spectrum": False}


@pytest.fixture(scope="module")
def cloud() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((600, 8)) + 1


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, anisoscope; print([m for m in ('torch', 'numpy', 'scipy', 'pyarrow') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_every_study_is_a_function() -> None:
    for name in entries():
        assert callable(getattr(anisoscope, name.replace("-", "_"))), name
        assert name.replace("-", "_") in dir(anisoscope)
    with pytest.raises(AttributeError, match="mesure"):
        _ = anisoscope.mesure


def test_functions_stay_functions_when_packages_of_their_name_are_imported(cloud: np.ndarray, tmp_path: Path) -> None:
    import anisoscope.report.page.write

    found = anisoscope.vectors(cloud, **FAST)
    assert anisoscope.report(found, tmp_path / "page.html") == tmp_path / "page.html"
    assert anisoscope.report.page.write.write_page is not None


# -- what is accepted --------------------------------------------------------------------------------------------------


def test_arrays_tensors_lists_of_arrays_and_files_are_the_same_vectors(cloud: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", cloud)
    given = [cloud, torch.from_numpy(cloud), [cloud[:200], cloud[200:]], tmp_path / "x.npy", str(tmp_path / "x.npy")]
    values = [anisoscope.vectors(one, neighbours=False).value("mean_cosine") for one in given]
    assert values == pytest.approx([values[0]] * len(given), rel=1e-12)
    unit = cloud / np.linalg.norm(cloud, axis=1, keepdims=True)
    total, n = unit.sum(0), len(unit)
    assert values[0] == pytest.approx((total @ total - n) / (n * (n - 1)), rel=1e-12)


@pytest.mark.parametrize("frames", [pd.DataFrame, pl.DataFrame])
def test_data_frames_and_lists_of_rows_are_vectors(frames: Any, cloud: np.ndarray) -> None:
    expected = anisoscope.vectors(cloud, neighbours=False).value("mean_cosine")
    wide, long = frames(cloud), frames({"id": range(len(cloud)), "embedding": cloud.tolist()})
    for same in (cloud.tolist(), wide, long):
        assert anisoscope.vectors(same, neighbours=False).value("mean_cosine") == pytest.approx(expected, rel=1e-12)
    with pytest.raises(UsageError, match="nothing but columns of floats"):  # an id is no dimension
        anisoscope.vectors(frames({"id": range(len(cloud)), "x": cloud[:, 0]}))
    with pytest.raises(UsageError, match="not vectors"):
        anisoscope.vectors([[1.0, 2.0], [3.0]])


def test_the_gate_takes_arrays_and_modules(cloud: np.ndarray, bert: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", cloud)
    np.save(tmp_path / "b.npy", cloud + 0.3)
    files, arrays = anisoscope.gate(tmp_path / "a.npy", tmp_path / "b.npy"), anisoscope.gate(cloud, cloud + 0.3)
    assert arrays.verdicts == files.verdicts
    texts, tokenizer = [f"line {i} of some text" for i in range(40)], AutoTokenizer.from_pretrained(bert)
    first, second = AutoModel.from_pretrained(bert), AutoModel.from_pretrained(bert)
    second.encoder.layer[-1].output.dense.weight.data.mul_(3.0)
    same = anisoscope.gate(first, first, texts, processor=tokenizer, pool="mean")
    other = anisoscope.gate(first, second, texts, processor=tokenizer, pool="mean", out=tmp_path / "gate")
    assert {one["outcome"] for one in same.verdicts} == {"holds"}
    assert "fails" in {one["outcome"] for one in other.verdicts}
    with pytest.raises(UsageError, match="objects in memory"):
        plan_of(tmp_path / "gate" / "run.toml")
    with pytest.raises(UsageError, match="takes runs"):
        anisoscope.compare(cloud, cloud)


def test_groups_of_an_array_are_its_sequences(cloud: np.ndarray) -> None:
    found = anisoscope.vectors(cloud, groups=np.arange(600) // 6, neighbours=False)
    assert found.value("sequences") == 100
    assert str(found.verdict) == "drifted"
    assert found.to_pandas().metric.nunique() > 15


def test_a_module_in_memory_is_measured_like_the_checkpoint_that_it_came_from(bert: Path, tmp_path: Path) -> None:
    opened = open_model(bert)
    live = anisoscope.measure(opened.module, TEXTS, processor=opened.processor, **FAST)
    stored = anisoscope.measure(bert, TEXTS, out=tmp_path / "run", **FAST)
    assert live.value("mean_cosine", site="block.1") == stored.value("mean_cosine", site="block.1")
    difference = anisoscope.compare(live, stored)
    assert {row.value for row in difference.rows if row.metric == "mean_cosine"} == {0.0}


def test_a_module_in_memory_is_hashed_once_a_call_and_known_again(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []

    def counted(module: torch.nn.Module) -> str:
        hashed.append(module_fingerprint(module))
        return hashed[-1]

    monkeypatch.setattr("anisoscope.models.open.module_fingerprint", counted)
    opened = open_model(bert)
    call: dict[str, Any] = {"processor": opened.processor, "out": tmp_path / "run", **FAST}
    anisoscope.measure(opened.module, TEXTS, **call)
    assert hashed == [module_fingerprint(opened.module)]
    anisoscope.measure(opened.module, TEXTS, **call)  # the run that is there
    with torch.no_grad():
        next(opened.module.parameters()).add_(1)
    with pytest.raises(StoreError, match="the model"):
        anisoscope.measure(opened.module, TEXTS, **call)


def test_texts_are_texts_and_a_file_of_them_says_the_same(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    listed = anisoscope.attention(bert, TEXTS)
    read = anisoscope.attention(bert, tmp_path / "texts.txt", documents="lines")
    for mine, theirs in zip(listed.rows, read.rows, strict=True):
        assert (mine.site, mine.metric, mine.n) == (theirs.site, theirs.metric, theirs.n)
        assert mine.value == pytest.approx(theirs.value, rel=1e-9, abs=1e-9)


def test_other_studies_take_objects_too(bert: Path) -> None:
    opened = open_model(bert, head=True)
    given = {"processor": opened.processor}
    assert anisoscope.final_norm(opened.module, TEXTS, **given).value("gain_norm", site="block.1") is not None
    assert (
        anisoscope.vocabulary(opened.module, TEXTS, **given).value("mean_cosine", site="vocabulary.input") is not None
    )
    assert anisoscope.null(16).value("dimension") == 16


def test_calibration_of_arrays_and_queries(cloud: np.ndarray) -> None:
    found = anisoscope.calibrate(cloud + 2, queries=cloud[:50] + 2, rate=[0.1])
    assert (found.value("floor_mean", site="raw") or 0) > 0.7
    assert abs(found.value("floor_mean", site="centred") or 1.0) < 0.1


# -- what cannot be repeated -------------------------------------------------------------------------------------------


def test_a_run_of_objects_says_so_and_is_not_repeated_as_something_else(bert: Path, tmp_path: Path) -> None:
    from anisoscope.runs.perform import plan_of

    anisoscope.measure(bert, TEXTS, out=tmp_path / "run", **FAST)
    assert 'in_memory = [\n    "data",\n]' in (tmp_path / "run/run.toml").read_text()
    with pytest.raises(UsageError, match="objects in memory"):
        plan_of(tmp_path / "run/run.toml")
    anisoscope.measure(bert, **FAST, limit=2, length=32, out=tmp_path / "embedded")
    study, settings = plan_of(tmp_path / "embedded/run.toml")
    assert (study.name, settings.limit) == ("measure", 2)


# -- what comes back ---------------------------------------------------------------------------------------------------


def test_a_number_that_is_not_there_or_not_one_is_refused_with_the_nearest_name(cloud: np.ndarray) -> None:
    found = anisoscope.vectors(cloud, neighbours=False)
    with pytest.raises(UsageError, match='did you mean "mean_cosine"'):
        found.value("mean_cosin")
    with pytest.raises(UsageError, match='did you mean "vectors"'):
        found.value("mean_cosine", site="vector")
    with pytest.raises(UsageError, match="not one number"):
        found.value("cosine_share")
    rates = anisoscope.calibrate(cloud, rate=[0.1, 0.01])
    with pytest.raises(UsageError, match=r"at: 0\.1, 0\.01"):
        rates.value("threshold", site="raw")
    known = {row.at: row.value for row in rates.rows if (row.site, row.metric) == ("raw", "threshold")}
    assert [rates.value("threshold", site="raw", at=rate) for rate in (0.1, 0.01)] == [known[0.1], known[0.01]]


@pytest.mark.parametrize("study", ["vectors", "measure", "calibrate"])
def test_what_is_saved_again_loses_nothing(study: str, bert: Path, cloud: np.ndarray, tmp_path: Path) -> None:
    options = {"measure": (bert, TEXTS), "vectors": (cloud,), "calibrate": (cloud,)}[study]
    getattr(anisoscope, study)(*options, out=tmp_path / "first")
    anisoscope.open_run(tmp_path / "first").save(tmp_path / "second")
    first, second = (anisoscope.open_run(tmp_path / name) for name in ("first", "second"))
    assert first.rows == second.rows
    for name in ("verdict", "verdicts", "notes", "protocol", "data", "model", "inputs", "about", "in_memory"):
        assert getattr(first, name) == getattr(second, name), name
    assert first.run is not None
    assert second.run is not None
    assert {n: t.tolist() for n, t in first.run.state().items()} == {
        n: t.tolist() for n, t in second.run.state().items()
    }
    assert {n: a.tolist() for n, a in first.run.arrays().items()} == {
        n: a.tolist() for n, a in second.run.arrays().items()
    }


def test_a_result_shows_itself(cloud: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = anisoscope.vectors(cloud, out=tmp_path / "run<b>", neighbours=False)
    assert len(repr(found)) < 200
    assert "drifted" in repr(found)
    found.show()
    assert "average cosine" in capsys.readouterr().out
    assert found.report(tmp_path / "page.html").stat().st_size > 100_000
    assert found.plot().data
    again = anisoscope.calibrate(cloud, out=tmp_path / "calibrated")
    assert {path.suffix for path in again.figures()} == {".svg", ".pdf", ".png"}
    assert {path.suffix for path in again.figures(tmp_path / "elsewhere")} == {".svg", ".pdf", ".png"}
    in_memory = anisoscope.calibrate(cloud)
    assert in_memory.figures(tmp_path / "third")
    with pytest.raises(UsageError, match="no folder"):
        in_memory.figures()


def test_the_notebook_shows_names_and_runs_nothing(bert: Path) -> None:
    found = anisoscope.measure(bert, TEXTS, name=["<script>alert(1)</script>"], **FAST)
    shown = replace(found, verdict="<b>bold</b>")._repr_html_()
    assert "<script" not in shown
    assert "&lt;b&gt;bold" in shown
    assert "<table>" in shown
