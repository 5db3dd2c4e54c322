"""A remedy for queries and documents that lie apart: each side about its own mean, one linear map."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import anisoscope
from anisoscope.cli.main import main
from anisoscope.errors import StoreError, UsageError
from anisoscope.studies.remedy.estimator import Remedy
from encoders import WORDS, sentence_folder

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


def test_python_fits_both_sides_in_pieces_too(place: Path) -> None:
    documents, queries = (np.load(place / f"{name}.npy") for name in ("documents", "queries"))
    whole = Remedy("whiten").fit(documents, queries=queries)
    pieces = Remedy("whiten").partial_fit(documents[:150], queries=queries[:300]).partial_fit(documents[150:])
    pieces.partial_fit(documents[:0], queries=queries[300:])
    found = anisoscope.remedy(documents, queries=queries, method="whiten", out=place / "made")
    kept = Remedy.load(place / "made")
    exact = unit((queries - queries.mean(0)) @ kept.fitted().full)
    for made in (whole, pieces, kept):
        np.testing.assert_allclose(made.side("query").transform(queries), exact, atol=1e-8)
        assert made.threshold(0.01) == pytest.approx(kept.threshold(0.01), abs=1e-9)
    assert found.value("floor_mean", site="whiten") == pytest.approx(0.0, abs=0.03)  # between the sides
    assert Remedy("whiten").fit(documents).threshold(0.01) != pytest.approx(whole.threshold(0.01), abs=1e-6)


def test_texts_of_queries_are_embedded_with_the_prompt_of_queries(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path / "model", length=32, prompts={"query": "query : "})
    rng, words = np.random.default_rng(0), np.array(WORDS[:10])
    documents, asked = ([" ".join(rng.choice(words, rng.integers(3, 9))) for _ in range(n)] for n in (240, 160))
    (tmp_path / "texts.txt").write_text("\n".join(documents))
    (tmp_path / "asked.txt").write_text("\n".join(asked))
    names = {"data": tmp_path / "texts.txt", "queries": tmp_path / "asked.txt", "documents": "lines"}
    anisoscope.remedy(folder, **names, method="centre", out=tmp_path / "run")
    model, made = SentenceTransformer(str(folder), device="cpu"), Remedy.load(tmp_path / "run")
    assert made.query_mean is not None
    np.testing.assert_allclose(made.query_mean, model.encode(asked, prompt_name="query").mean(0), atol=1e-6)
    np.testing.assert_allclose(made.fitted().mean, model.encode(documents).mean(0), atol=1e-6)
    anisoscope.remedy(folder, **names, method="centre", query_prompt="a dog : ", out=tmp_path / "other")
    other = Remedy.load(tmp_path / "other").query_mean
    np.testing.assert_allclose(other, model.encode(asked, prompt="a dog : ").mean(0), atol=1e-6)
    (tmp_path / "asked.txt").write_text("\n".join(asked[1:]))
    with pytest.raises(StoreError, match="changed since"):
        anisoscope.remedy(folder, **names, method="centre", out=tmp_path / "run")
    with pytest.raises(UsageError, match="queries are texts"):
        anisoscope.remedy(folder, queries=np.ones((100, 16)))


def test_what_makes_no_sense_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="for both sides"):
        Remedy("centre").fit(np.load(place / "documents.npy")).side("query")
    np.save(tmp_path / "wide.npy", np.ones((N, D + 1)))
    with pytest.raises(UsageError, match="different dimensions"):
        anisoscope.remedy(place / "documents.npy", queries=tmp_path / "wide.npy")
