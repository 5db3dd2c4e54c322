"""Arrays of runs and what the sections take of them: one contract for the names, kept by the studies themselves."""

from __future__ import annotations

import re
from importlib import resources

import numpy as np
import pytest

import anisoscope
import report_runs
from anisoscope.report.page import sections
from anisoscope.report.page.data import page_data
from anisoscope.runs.array_names import ARRAYS, find, name_of, pack_texts, texts_of, unpack_texts
from anisoscope.runs.perform import perform

ASSETS = resources.files("anisoscope.report.page") / "assets"


def test_a_script_reads_only_what_a_module_of_its_name_gives():
    read = set()
    for folder in ("core", "sections"):
        for file in (ASSETS / folder).iterdir():
            read |= set(re.findall(r"pictures\.(\w+)", file.read_text(encoding="utf-8")))
    assert read == set(sections.names())


def test_the_studies_name_their_arrays_as_the_contract_says(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((400, 8)) + 1)
    calibrated = perform("calibrate", {"files": [str(tmp_path / "x.npy")]}, out=tmp_path / "calibrate").run
    null = perform("null", {"dim": [16]}, out=tmp_path / "null").run
    assert calibrated is not None
    assert null is not None
    for run in (calibrated, null):
        known = {name_of(kind, **parts) for kind in ARRAYS for parts, _ in find(run.arrays(), kind)}
        assert set(run.arrays()) == known
    pictures = sections.pictures([calibrated, null])
    assert [len(pictures[name]) for name in ("calibrate", "null", "block")] == [1, 1, 0]
    assert pictures["null"][0]["run"] == 1


def test_an_array_is_found_by_its_parts_and_no_other_is():
    arrays = {"s/block.0/union/query": 1, "s/block.0/union/query_points": 2, "s/block.0/keys/query": 3, "s/steps": 4}
    assert list(find(arrays, "plane_query")) == [
        ({"series": "s", "site": "block.0", "basis": "keys"}, 3),
        ({"series": "s", "site": "block.0", "basis": "union"}, 1),
    ]
    assert list(find(arrays, "steps")) == [({"series": "s"}, 4)]


def test_texts_come_back_with_the_points_they_belong_to(tmp_path):
    texts = ["</script><b>one", "zwei ü"]
    assert unpack_texts(pack_texts(texts)) == texts
    assert texts_of({"p": 1}, "p") is None
    plain = report_runs.series_run(tmp_path / "plain")
    assert page_data([plain])["pictures"]["series"][0]["query_texts"] is None
    told = report_runs.series_run(tmp_path / "told", texts=texts)
    plane = page_data([told])["pictures"]["series"][0]
    assert np.shape(plane["query_texts"]) == np.shape(plane["query_points"])[:3]
    assert plane["query_texts"][0][0][:3] == [texts[0], texts[1], None]


def test_eigenvalues_are_those_of_the_vectors(tmp_path):
    x = np.random.default_rng(0).standard_normal((500, 12)) * np.arange(1, 13) + 3.0
    run = anisoscope.vectors(x, neighbours=False).save(tmp_path / "run")
    (picture,) = page_data([run])["pictures"]["spectrum"]
    values = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    assert picture["site"] == "vectors"
    assert picture["ranks"] == list(range(1, 13))
    assert picture["shares"] == pytest.approx(values / values.sum(), rel=1e-3)


def test_fewer_vectors_than_dimensions_have_no_variance_beyond_their_number(tmp_path):
    x = np.random.default_rng(0).standard_normal((9, 40)).astype(np.float32)
    (picture,) = page_data([anisoscope.vectors(x, neighbours=False).save(tmp_path / "run")])["pictures"]["spectrum"]
    shares = dict(zip(picture["ranks"], picture["shares"], strict=True))
    assert shares[8] > 0
    assert all(share == 0 for rank, share in shares.items() if rank > 8)


def test_score_histograms_of_draws_average_to_a_density(tmp_path):
    run = report_runs.block_run(tmp_path / "run")
    (picture,) = page_data([run])["pictures"]["block"]
    assert picture["norms"] == [0, 1, 10, 40]
    for curve in picture["curves"]:
        width = curve["x"][1] - curve["x"][0]
        assert sum(curve["y"]) * width == pytest.approx(1, abs=0.01)


def test_clouds_are_thinned_until_they_fit(tmp_path, monkeypatch):
    run = report_runs.series_run(tmp_path / "run")
    whole = page_data([run])["pictures"]["series"]
    assert len(whole) == 3
    assert np.shape(whole[0]["query_points"]) == (4, 4, 30, 2)
    monkeypatch.setattr("anisoscope.report.page.sections.series.MOST_POINTS", 3 * 4 * 4 * 10 * 2 * 2)
    assert np.shape(page_data([run])["pictures"]["series"][0]["query_points"]) == (4, 4, 10, 2)
    monkeypatch.setattr("anisoscope.report.page.sections.series.MOST_POINTS", 10)
    thinned = page_data([run])["pictures"]["series"][0]
    assert thinned["query_points"] is None
    assert thinned["query"] == whole[0]["query"]  # the paths stay
