"""The public functions, as a reader of the README would call them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import anisoscope
import zoo
from anisoscope.errors import UsageError
from anisoscope.models.open import open_model

TEXTS = [
    f"the {animal} sat on the mat and looked at the {animal}" for animal in ("cat", "dog", "bird", "fox", "owl", "hen")
]


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, anisoscope; print([m for m in ('torch', 'numpy', 'scipy', 'pyarrow') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_vectors_give_a_verdict_a_table_and_a_run(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((600, 8)) + 1
    found = anisoscope.measure_vectors(x, groups=np.arange(600) // 6, neighbours=False)
    assert found.verdict == "drifted"
    assert found.value("sequences") == 100
    assert found.to_pandas().metric.nunique() > 15
    assert "<table>" in found._repr_html_()
    again = anisoscope.open_run(found.save(tmp_path / "run").folder)
    assert again.rows(metric="mean_cosine", positions="all")[0].value == found.value("mean_cosine")


def test_a_number_that_is_not_one_number_is_refused() -> None:
    found = anisoscope.measure_vectors(np.eye(40), neighbours=False)
    with pytest.raises(UsageError, match="not one number"):
        found.value("cosine_share")


def test_a_module_in_memory_is_measured_like_the_checkpoint_that_it_came_from(tmp_path: Path) -> None:
    zoo.save("bert", tmp_path)
    opened = open_model(tmp_path)
    options = {"neighbours": False, "spectrum": False}
    live = anisoscope.measure(opened.module, TEXTS, processor=opened.processor, **options)
    stored = anisoscope.measure(tmp_path, TEXTS, out=tmp_path / "run", **options)
    assert live.value("mean_cosine", site="block.1") == stored.value("mean_cosine", site="block.1")
    assert stored.run is not None
    difference = anisoscope.compare(live, stored)
    assert {row.value for row in difference.rows if row.metric == "mean_cosine"} == {0.0}


def test_calibration_reads_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((400, 6)).astype("float32") + 2)
    found = anisoscope.calibrate(tmp_path / "x.npy", out=tmp_path / "run", rate=[0.1])
    floor = found.value("floor_mean", site="raw")
    assert floor is not None
    assert floor > 0.7
    assert abs(found.value("floor_mean", site="centred") or 1.0) < 0.05
