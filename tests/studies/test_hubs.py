"""Hubs by name: a planted hub is found by row, by id, by text, and by the queries that find it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats
from sklearn.neighbors import NearestNeighbors

import anisoscope
from anisoscope.results import Result
from anisoscope.studies.vectors import story
from encoders import sentence_folder

N, D, HUB = 400, 200, 123
X = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
X[HUB] = X.mean(0) * 20  # near to everybody


def top(found: Result, metric: str = "hub_occurrence") -> str:
    return next(row.note for row in found.rows if row.metric == metric and row.at == 1)


def found_by(queries: np.ndarray, rows: np.ndarray, *, k: int) -> np.ndarray:
    """How many queries have each row among their k nearest, by scikit-learn."""
    near = NearestNeighbors(n_neighbors=k, metric="cosine").fit(rows).kneighbors(queries, return_distance=False)
    return np.bincount(near.ravel(), minlength=len(rows))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    columns = {"id": [f"doc-{k}" for k in range(N)], "x": X.tolist()}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    return tmp_path / "x.parquet"


def test_vectors_name_a_hub_by_its_row_or_its_id(table: Path) -> None:
    assert top(anisoscope.vectors(X)) == f"row {HUB}"
    found = anisoscope.vectors(str(table), column="x", ids="id")
    assert top(found) == f"doc-{HUB}"
    counts = found_by(X, X, k=11) - 1  # a row finds itself first
    assert found.value("hubness_cosine") == pytest.approx(stats.skew(counts))
    assert next(r.value for r in found.rows if r.metric == "hub_occurrence" and r.at == 1) == counts[HUB]
    assert found.value("anti_hub_share") == np.mean(counts == 0)


def test_rows_that_have_no_names_have_no_table_of_hubs(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=X, group=np.arange(N) // 2)
    grouped = anisoscope.vectors(tmp_path / "x.npz", column="x", group="group")
    for found, shown in ((anisoscope.vectors(X), True), (grouped, False)):
        told = story(found.rows)
        assert any(table.columns[0].startswith("hubs") for table in told.tables) == shown
        assert not any(table.columns[0].startswith("hubs") for table in told.more)


def test_calibrate_names_a_hub_of_its_held_out_rows(table: Path) -> None:
    x = np.concatenate([X, X + 0.01])  # two hubs: one of them is held out
    found = anisoscope.calibrate(x)
    assert top(found) in (f"row {HUB}", f"row {N + HUB}")
    named = anisoscope.calibrate(str(table), column="x", ids="id")
    assert top(named).startswith("doc-")


def test_a_model_names_hubs_by_their_texts(tmp_path: Path) -> None:
    found = anisoscope.calibrate(str(sentence_folder(tmp_path / "model")))
    from anisoscope.inputs.sentences import sentences

    known = {document.key for document in sentences()}
    assert top(found).partition(": ")[0] in known


def test_queries_that_all_find_one_document_name_it(tmp_path: Path, table: Path) -> None:
    with (tmp_path / "p.csv").open("w", newline="") as stream:
        pairs = [(f"doc-{k}", f"doc-{k + 200}", 1) for k in range(100)] + [("doc-0", f"doc-{HUB}", 0)]
        csv.writer(stream).writerows([("query", "document", "label"), *pairs])
    found = anisoscope.calibrate(str(table), column="x", ids="id", pairs=str(tmp_path / "p.csv"))
    assert top(found, "query_hub_occurrence") == f"doc-{HUB}"
    documents = [*range(200, 300), HUB]
    expected = found_by(X[:100], X[documents], k=10)[-1]
    assert next(r.value for r in found.rows if r.metric == "query_hub_occurrence" and r.at == 1) == expected


def test_copies_of_a_vector_are_no_hubs() -> None:
    x = np.random.default_rng(1).standard_normal((900, 32))
    plain = anisoscope.vectors(x, spectrum=False)
    x[100:300] = x[100]
    for found in (anisoscope.vectors(x, spectrum=False), anisoscope.calibrate(x)):
        hubs = {row.metric: row for row in found.rows if row.metric.startswith("hub")}
        assert hubs["hub_occurrence"].value < 100
        notes = [hubs["hubness_cosine"].note, *found.notes]
        (copies,) = (int(note.split()[0]) for note in notes if "duplicated vectors left out" in note)
        assert copies == (199 if hubs["hubness_cosine"].n == 701 else copies) > 20
    assert next(row for row in plain.rows if row.metric == "hubness_cosine").note == ""
