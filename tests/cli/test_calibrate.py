"""`anisoscope calibrate`: the floor, thresholds, a picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def test_json_picture_and_advice(command, vectors_file: Path, tmp_path: Path) -> None:
    queries = tmp_path / "q.npy"
    np.save(queries, np.random.default_rng(1).standard_normal((50, 6)))
    ended = command(
        "calibrate", vectors_file, "--queries", queries, "--rate", 0.05, "--out", tmp_path / "run", "--json"
    )
    assert (ended.code, ended.err) == (0, "")
    found = json.loads(ended.out)
    assert found["verdict"].startswith("Unrelated pairs have cosine")
    thresholds = [row for row in found["measurements"] if row["metric"] == "threshold"]
    assert {row["at"] for row in thresholds} == {0.05}
    assert {row["site"] for row in thresholds} == {"raw", "centred", "without_top", "whitened"}
    for kind in ("svg", "pdf", "png"):
        assert (tmp_path / "run" / "figures" / f"calibration.{kind}").stat().st_size > 1000


def test_too_few_rows_exit_with_1(command, tmp_path: Path) -> None:
    np.save(tmp_path / "few.npy", np.ones((10, 3)))
    ended = command("calibrate", tmp_path / "few.npy", "--out", tmp_path / "run")
    assert (ended.code, ended.out) == (1, "")
    assert "10 vectors" in ended.err


def test_the_table_names_every_correction_in_80_columns(
    command, vectors_file: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("query,document\n" + "".join(f"{k},{k + 1}\n" for k in range(0, 60, 2)))
    shown = command("calibrate", vectors_file, "--pairs", pairs, "--no-figures", "--out", tmp_path / "run").out
    for name in ("as they are", "centring", "top removed", "whitening"):
        assert shown.count(f"\n{name}  ") == 2  # floor, nDCG
    assert len(shown.splitlines()) < 45  # recall, hubs and intervals are behind --all
