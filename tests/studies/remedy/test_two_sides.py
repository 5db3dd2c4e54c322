"""A remedy for queries and documents that lie apart: each side about its own mean, one linear map."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import anisoscope
from anisoscope.cli.main import main
from anisoscope.errors import UsageError
from anisoscope.studies.remedy.estimator import Remedy

N, D = 400, 24


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Row i of the queries belongs to row i of the documents; their means are far apart."""
    folder, rng = tmp_path_factory.mktemp("sides"), np.random.default_rng(0)
    documents = rng.standard_normal((N, D))
    queries = documents + 1.2 * rng.standard_normal((N, D))
    np.save(folder / "documents.npy", documents + 4 * rng.standard_normal(D))
    np.save(folder / "queries.npy", queries + 4 * rng.standard_normal(D))
    with (folder / "pairs.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("query", "document"), *((k, k) for k in range(N))])
    return folder


def gain(folder: Path, **settings: object) -> float | None:
    found = anisoscope.remedy(
        folder / "documents.npy", queries=folder / "queries.npy", pairs=str(folder / "pairs.csv"), **settings
    )
    return found.value("ndcg", site="centre")


def test_search_is_that_of_each_side_about_its_own_mean(place: Path) -> None:
    documents, queries = (np.load(place / f"{name}.npy") for name in ("documents", "queries"))
    scores = unit(queries - queries.mean(0)) @ unit(documents - documents.mean(0)).T
    ranks = (scores > np.diag(scores)[:, None]).sum(1)
    exact = np.where(ranks < 10, 1 / np.log2(ranks + 2), 0).mean()
    assert gain(place, method="centre") == pytest.approx(exact, abs=1e-9)
    shared = unit(queries - documents.mean(0)) @ unit(documents - documents.mean(0)).T
    assert (shared > np.diag(shared)[:, None]).sum(1).mean() > ranks.mean() + 5


def test_apply_and_export_take_the_side(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(place / name) for name in ("documents.npy", "queries.npy", "remedy", "out.npy", "snippet.py")]
    documents, queries, remedy, out, snippet = names
    for line in (
        ["remedy", "fit", documents, "--queries", queries, "--method", "whiten", "-o", remedy],
        ["remedy", "apply", remedy, queries, "--side", "query", "-o", out],
        ["remedy", "export", remedy, "--side", "query", "--to", "numpy", "-o", snippet],
    ):
        with pytest.raises(SystemExit) as ended:
            main(line)
        assert not ended.value.code, capsys.readouterr().err
    x, made = np.load(queries), Remedy.load(remedy)
    exact = unit((x - x.mean(0)) @ made.fitted().full)
    np.testing.assert_allclose(np.load(out), exact, atol=1e-9)
    kept = np.load(Path(snippet).with_suffix(".npz"))
    np.testing.assert_allclose(kept["mean"], x.mean(0), atol=1e-12)
    again = Remedy.load(made.save(place / "kept.safetensors"))
    np.testing.assert_array_equal(again.side("query").transform(x), made.side("query").transform(x))
    y = np.load(documents)
    np.testing.assert_allclose(made.transform(y), unit((y - y.mean(0)) @ made.fitted().full), atol=1e-9)


def test_what_makes_no_sense_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="for both sides"):
        Remedy("centre").fit(np.load(place / "documents.npy")).side("query")
    np.save(tmp_path / "wide.npy", np.ones((N, D + 1)))
    with pytest.raises(UsageError, match="different dimensions"):
        anisoscope.remedy(place / "documents.npy", queries=tmp_path / "wide.npy")
