"""Labelled pairs: rankings against scikit-learn, thresholds that hold for new queries, ids and texts that are found."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer
from sklearn.metrics import ndcg_score

import anisoscope
from anisoscope.errors import InputError, StoreError, UsageError
from anisoscope.inference.retrieval import Found, Labelled, conformal_threshold, retrieval_estimates, search
from anisoscope.results import Result
from anisoscope.studies.calibrate.advice import story
from anisoscope.studies.pairs import read_pairs
from encoders import sentence_folder

Q, M, D = 60, 300, 12
rng = np.random.default_rng(0)
DOCUMENTS = rng.standard_normal((M, D)).astype(np.float32)
DOCUMENTS[:, 0] *= 15  # loud, and says nothing
QUERIES = DOCUMENTS[:Q] + 0.5 * rng.standard_normal((Q, D)).astype(np.float32)
QUERIES[:, 0] = 15 * rng.standard_normal(Q)


def table(path: Path, rows: list[tuple]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text(
            "".join(json.dumps(dict(zip(("query", "document", "score"), row, strict=True))) + "\n" for row in rows)
        )
    else:
        with path.open("w", newline="") as stream:
            csv.writer(stream).writerows([("query", "document", "label"), *rows])
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    np.save(tmp_path / "documents.npy", DOCUMENTS)
    np.save(tmp_path / "queries.npy", QUERIES)
    rows = [(q, q, 2) for q in range(Q)] + [(q, q + 100, 1) for q in range(0, Q, 2)]
    rows += [(q, d, 0) for q in range(Q) for d in (M - 1 - q, 170)]
    paths = {"files": tmp_path / "documents.npy", "queries": tmp_path / "queries.npy"}
    return {**paths, "pairs": table(tmp_path / "p.csv", rows)}


def calibrated(files: dict[str, Path], **settings) -> Result:
    return anisoscope.calibrate(files["files"], queries=files["queries"], pairs=str(files["pairs"]), **settings)


def value(found: Result, site: str, metric: str, at: float | None = None) -> float | None:
    return next(row.value for row in found.rows if (row.site, row.metric, row.at) == (site, metric, at))


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_ranking_against_scikit_learn():
    cosines = unit(QUERIES.astype(float)) @ unit(DOCUMENTS.astype(float)).T
    pairs = np.array([(q, q) for q in range(Q)] + [(q, q + 100) for q in range(0, Q, 2)])
    labels = np.array([2.0] * Q + [1.0] * (Q // 2))
    nobody = np.full(Q, -1)
    data = Labelled(
        QUERIES.astype(float), DOCUMENTS.astype(float), pairs, labels, np.arange(Q, dtype=np.uint64), nobody
    )
    gains = np.zeros((Q, M))
    gains[pairs[:, 0], pairs[:, 1]] = labels
    found = search(data)
    assert found.ndcg.mean() == pytest.approx(ndcg_score(gains, cosines, k=10), abs=1e-12)
    rank = np.argsort(-cosines, axis=1)
    recall = [np.isin(rank[q, :10], np.flatnonzero(gains[q])).sum() / (gains[q] > 0).sum() for q in range(Q)]
    assert found.recall[:, 1] == pytest.approx(np.array(recall), abs=1e-12)


def test_documents_of_equal_cosine_have_no_order():
    """Copies of a document are found in any order alike, wherever the related one stands among them."""
    documents = DOCUMENTS.astype(float)
    documents[: M // 2] = documents[0]
    related = np.arange(Q) % 2 * (M - 1)  # the first of the copies, or the last document
    pairs, queries = np.stack([np.arange(Q), related], 1), QUERIES.astype(float)
    keys, nobody = np.arange(Q, dtype=np.uint64), np.full(Q, -1)
    found = search(Labelled(queries, documents, pairs, np.ones(Q), keys, nobody))
    cosines, gains = np.round(unit(queries) @ unit(documents).T, 12), np.zeros((Q, M))
    gains[pairs[:, 0], related] = 1
    assert found.ndcg.mean() == pytest.approx(ndcg_score(gains, cosines, k=10), abs=1e-12)
    better = (cosines > cosines[np.arange(Q), related][:, None]).sum(1)
    among = np.where(related == 0, M // 2, 1)
    assert found.recall[:, 1] == pytest.approx(np.clip((10 - better) / among, 0, 1), abs=1e-12)


@pytest.mark.parametrize("first", [True, False])
def test_equal_documents_are_ranked_in_no_order(first: bool) -> None:
    """The average over all orders of three equal documents, of which one is related, wherever it stands in the file."""
    pairs = np.array([[0, 1 if first else 3], [0, 0]])
    documents = np.array([[1.0, 0.1], [1, 1], [1, 1], [1, 1], [0, 1]])
    data = Labelled(
        np.array([[1.0, 0]]), documents, pairs, np.array([1.0, 2.0]), np.zeros(1, np.uint64), np.array([-1])
    )
    found = search(data)
    ideal = 2 + 1 / np.log2(3)
    assert found.ndcg[0] == pytest.approx((2 + np.mean(1 / np.log2([3, 4, 5]))) / ideal)
    np.testing.assert_allclose(found.recall[0], [0.5, 1, 1])
    many = np.ones((200, 2))
    data = Labelled(np.ones((1, 2)), many, np.array([[0, 0]]), np.ones(1), np.zeros(1, np.uint64), np.array([-1]))
    np.testing.assert_allclose(search(data).recall[0], [1 / 200, 10 / 200, 100 / 200])


def test_judgements_of_beir_and_trec_are_those_of_a_table(files, tmp_path) -> None:
    pairs = read_pairs(files["pairs"])
    lines = [(query, document, int(label)) for query, document, label in pairs.rows]
    written = {
        "beir.tsv": "query-id\tcorpus-id\tscore\n" + "".join(f"{q}\t{d}\t{label}\n" for q, d, label in lines),
        "trec.qrels": "".join(f"{q} 0 {d} {label}\n" for q, d, label in lines),
        "marco.tsv": "".join(f"{q}\t0\t{d}\t{label}\n" for q, d, label in lines),
        "trec.txt": "".join(f"{q}  Q0 {d} {label}\n\n" for q, d, label in lines),
    }
    for name, text in written.items():
        (tmp_path / name).write_text(text)
        found = read_pairs(tmp_path / name)
        assert (found.rows, found.by_id) == (pairs.rows, True), name
    assert not pairs.by_id


def test_ids_are_not_read_to_a_model_as_texts(tmp_path) -> None:
    (tmp_path / "q.qrels").write_text("q1 0 d1 1\n")
    folder = sentence_folder(tmp_path / "encoder")
    with pytest.raises(UsageError, match="by id, and a model reads texts"):
        anisoscope.calibrate(folder, pairs=str(tmp_path / "q.qrels"))


def test_labels_may_be_true_or_false(tmp_path) -> None:
    (tmp_path / "p.csv").write_text("query,document,label\na,b,True\na,c,false\n")
    assert read_pairs(tmp_path / "p.csv").rows == [("a", "b", 1.0), ("a", "c", 0.0)]


def test_one_query_decides_nothing(files, tmp_path) -> None:
    files["pairs"] = table(tmp_path / "one.csv", [(0, 0, 1), (0, 5, 0)])
    found = calibrated(files)
    assert "cannot be said: one query is too few for an interval" in str(found.verdict)
    assert "worth doing" not in str(found.verdict)
    captions = [one.caption for one in story(found.rows).tables]
    assert "5 % needs at least 19 queries; 1 % needs at least 99 queries; 0.1 % needs at least 999 queries." in captions


def test_the_numbers_of_queries_and_documents_in_files_apart_are_not_mixed_up(files):
    found = calibrated(files)
    searched = np.unique([*range(Q), *range(100, 100 + Q, 2), *range(M - Q, M), 170])
    cosines = unit(QUERIES.astype(float)) @ unit(DOCUMENTS.astype(float)).T
    gains = np.zeros((Q, M))
    gains[np.arange(Q), np.arange(Q)] = 2
    gains[np.arange(0, Q, 2), np.arange(100, 100 + Q, 2)] = 1
    theirs = ndcg_score(gains[:, searched], cosines[:, searched], k=10)
    assert value(found, "raw", "ndcg") == pytest.approx(theirs, abs=1e-9)


def test_what_helps_search_is_said_with_its_interval(files, tmp_path):
    rows = [(q, Q + q, 1) for q in range(Q)]  # names apart from the queries': documents are numbered after them
    np.save(files["files"], np.concatenate([rng.standard_normal((Q, D)), DOCUMENTS]).astype(np.float32))
    files["pairs"] = table(tmp_path / "apart.jsonl", rows)
    found = calibrated(files)
    gain = next(row for row in found.rows if (row.site, row.metric) == ("whitened", "ndcg_difference"))
    assert gain.low is not None
    assert gain.low > 0
    assert "helps most" in str(found.verdict)
    assert value(found, "whitened", "ndcg") > value(found, "raw", "ndcg") + 0.1  # pyright: ignore
    raw = next(row for row in found.rows if (row.site, row.metric) == ("raw", "ndcg"))
    assert raw.n == Q


def test_the_interval_of_a_share_ends_where_shares_do():
    ndcg = np.array([1.0] * 9 + [0.2])
    found = Found(ndcg, np.repeat(ndcg[:, None], 3, 1), ndcg, ndcg, np.arange(10))
    one = retrieval_estimates({"raw": found}, np.ones(10), ())["raw"][0]
    reach = 1.96 * ndcg.std(ddof=1) / 10**0.5  # what the jackknife of a mean is, but for the law's quantile
    assert one.value + reach > 1 == one.high
    assert 0 < one.low < one.value - 0.9 * reach


def test_a_conformal_threshold_holds_for_a_new_query():
    draw, rate, trials = np.random.default_rng(1), 0.1, 4000
    above = [draw.gamma(1.0) > (conformal_threshold(draw.gamma(1.0, size=19), rate) or np.inf) for _ in range(trials)]
    assert np.mean(above) <= rate + 3 * (rate / trials) ** 0.5
    assert np.mean(above) == pytest.approx(2 / 20, abs=0.02)  # exactly (n + 1 − ⌈(n + 1)(1 − p)⌉)/(n + 1)


def test_too_few_queries_give_no_threshold_and_say_how_many_it_takes(files):
    found = calibrated(files, rate=[0.1, 0.001])
    strict = next(row for row in found.rows if (row.metric, row.at, row.site) == ("threshold_conformal", 0.001, "raw"))
    assert strict.value is None
    assert strict.note == "needs at least 999 queries"
    assert value(found, "raw", "threshold_conformal", 0.1) is not None
    assert 0 <= value(found, "raw", "precision_at_threshold", 0.1) <= 1  # pyright: ignore


def test_a_pair_counts_once_and_has_one_label(tmp_path, files):
    rows = [(str(q), str(q + 1), 1) for q in range(50)]
    assert read_pairs(table(tmp_path / "twice.csv", rows + rows)).rows == [(q, d, 1.0) for q, d, _ in rows]
    with pytest.raises(InputError, match="a pair has two labels"):
        read_pairs(table(tmp_path / "both.csv", [*rows, ("0", "1", 0)]))


def test_a_row_is_not_searched_for_by_itself(files, tmp_path):
    rows = [(q, q + 1, 1) for q in range(50)]
    known = anisoscope.calibrate(files["files"], pairs=str(table(tmp_path / "a.csv", rows)))
    also = anisoscope.calibrate(files["files"], pairs=str(table(tmp_path / "b.csv", [*rows, (1, 1, 1), (2, 2, 1)])))
    assert value(also, "raw", "ndcg") == value(known, "raw", "ndcg")
    assert "2 pairs left out: the document is the query itself" in also.notes


def test_rows_are_found_by_their_ids_and_lost_ones_are_noted(tmp_path):
    names = [f"doc {k}" for k in range(M)]
    with (tmp_path / "x.jsonl").open("w") as stream:
        stream.writelines(json.dumps({"id": n, "v": x}) + "\n" for n, x in zip(names, DOCUMENTS.tolist(), strict=True))
    rows = [(f"doc {k}", f"doc {k + 1}", 1) for k in range(50)] + [("doc 1", "nobody", 1)]
    pairs = table(tmp_path / "p.csv", rows)
    found = anisoscope.calibrate(tmp_path / "x.jsonl", ids="id", pairs=str(pairs))
    assert "1 pair left out: a query or a document has no vector" in found.notes
    with pytest.raises(InputError, match="no related pair has vectors"):
        anisoscope.calibrate(tmp_path / "x.jsonl", pairs=str(pairs))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("empty.csv", "query,document,label\n1,2,1\n3,4,\n", "without a label"),
        ("short.csv", "query,document,label\n1,2,1\n3,4\n", "row 1 has 2 cells, the header 3"),
        ("comma.csv", "query,document\nhow are you, fine\nwhere, are you, here\n", "row 1 has 3 cells"),
        ("other.csv", "a,b\n1,2\n", "expected: columns query and document, and label or score"),
        ("twice.csv", "query,document,label,label\n1,2,1,0\n", "same name"),
        ("quote.tsv", 'query\tdocument\n"who" is it\tme\n', "cannot be read"),
        (
            "null.jsonl",
            '{"query": 1, "document": 2, "score": 1}\n{"query": 3, "document": 4, "score": null}',
            "without a",
        ),
        ("none.jsonl", '{"query": 1, "document": 2, "score": 1}\n{"query": 3, "document": 4}', "without a label"),
        ("both.jsonl", '{"query": 1, "document": 2, "score": 1, "score": 0}', "is given twice"),
        ("list.jsonl", "[1, 2]", "is not a JSON object"),
        ("deep.jsonl", "[" * 100_000, "nested too deep"),
        ("half.parquet", "PAR1", "cannot be read"),
    ],
)
def test_a_table_of_pairs_that_could_be_read_in_two_ways_is_refused(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=words):
        read_pairs(tmp_path / name)


def test_an_id_of_two_different_vectors_is_refused_and_copies_are_one(tmp_path):
    x = np.concatenate([DOCUMENTS[:100], DOCUMENTS[:1]])
    ids = [*map(str, range(100)), "0"]
    pairs = str(table(tmp_path / "p.csv", [(q, q + 50, 1) for q in range(20)]))
    records = [json.dumps({"id": name, "v": row}) for name, row in zip(ids, x.tolist(), strict=True)]
    (tmp_path / "x.jsonl").write_text("\n".join(records))
    assert anisoscope.calibrate(tmp_path / "x.jsonl", ids="id", pairs=pairs).value("ndcg", site="raw") is not None
    records[-1] = json.dumps({"id": "0", "v": DOCUMENTS[200].tolist()})
    (tmp_path / "x.jsonl").write_text("\n".join(records))
    with pytest.raises(InputError, match="same id"):
        anisoscope.calibrate(tmp_path / "x.jsonl", ids="id", pairs=pairs)


@pytest.mark.parametrize("alike", [True, False])
def test_an_id_of_two_vectors_in_different_shares_is_refused_when_they_are_merged(tmp_path, alike):
    x = np.concatenate([DOCUMENTS, np.random.default_rng(5).standard_normal((400, D)).astype(np.float32)])
    x[-1] = x[0 if alike else 1]
    ids = [*map(str, range(len(x) - 1)), "0"]
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), D)
    pq.write_table(pa.table({"id": ids, "v": lists}), tmp_path / "x.parquet", row_group_size=50)
    pairs = str(table(tmp_path / "p.csv", [(q, q + 50, 1) for q in range(20)]))
    shards = [tmp_path / f"{k}" for k in range(4)]
    for k, out in enumerate(shards):
        anisoscope.calibrate(tmp_path / "x.parquet", ids="id", pairs=pairs, shard=f"{k}/4", out=out)
    if alike:
        anisoscope.merge(shards, tmp_path / "merged")
        return
    with pytest.raises(InputError, match="same id"):
        anisoscope.merge(shards, tmp_path / "merged")


def test_vectors_beyond_single_precision_are_searched_and_zero_ones_are_called_so(files):
    large = DOCUMENTS.astype(float)
    large[:5] *= 1e60
    np.save(files["files"], large)
    found = calibrated(files)
    assert not [note for note in found.notes if "left out: a" in note]
    assert any("vectors that float32 cannot hold" in note for note in found.notes)
    np.save(files["files"], DOCUMENTS.astype(float) * 1e60)
    with pytest.raises(InputError, match="no vector can be kept in a sample"):
        calibrated(files)
    broken = DOCUMENTS.copy()
    broken[3] = 0
    np.save(files["files"], broken)
    files["pairs"].write_text("query,document,label\n0,0,1\n1,3,1\n2,9999,1\n")
    notes = calibrated(files).notes
    assert "1 pair left out: a query or a document has no vector" in notes
    assert "1 pair left out: a vector is zero, not finite or too large to have a norm" in notes


def test_the_column_of_relevance_is_named_where_there_are_two(files):
    files["pairs"].write_text("query,document,score,label\n0,0,0.9,0\n1,1,0.2,1\n")
    assert read_pairs(files["pairs"]).rows == [("0", "0", 0.0), ("1", "1", 1.0)]
    assert "relevance is read from 'label'; 'score' is not read" in calibrated(files).notes


def test_texts_of_pairs_are_embedded_queries_with_their_prompt(tmp_path):
    folder = sentence_folder(tmp_path / "model", length=32, prompts={"query": "query : "})
    words = ["the cat", "a dog runs", "red mat", "blue mat home", "the dog sat", "cat : dog"]
    pairs = table(tmp_path / "p.csv", [(q, d, int(q[-1] == d[-1])) for q in words for d in words if q != d])
    out = tmp_path / "run"
    found = anisoscope.calibrate(str(folder), pairs=str(pairs), query_prompt="query", out=out)
    model = SentenceTransformer(str(folder), device="cpu")
    cosines = model.encode(words, prompt_name="query") @ model.encode(words).T
    np.fill_diagonal(cosines, -np.inf)
    first = [words[k][-1] == word[-1] for word, k in zip(words, cosines.argmax(1), strict=True)]
    judged = [any(q != d and q[-1] == d[-1] for d in words) for q in words]
    count = [sum(q != d and q[-1] == d[-1] for d in words) for q in words]
    expected = np.mean([hit / c for hit, c, ok in zip(first, count, judged, strict=True) if ok])
    assert value(found, "raw", "recall", 1) == pytest.approx(expected)
    table(tmp_path / "p.csv", [("the cat", "red mat", 1)])
    with pytest.raises(StoreError, match="changed since"):
        anisoscope.calibrate(str(folder), pairs=str(pairs), query_prompt="query", out=out)


def test_shards_of_a_calibration_with_pairs_add_up(tmp_path):
    many = np.concatenate([DOCUMENTS, np.random.default_rng(5).standard_normal((20_000, D)).astype(np.float32)])
    np.save(tmp_path / "x.npy", many)
    pairs = table(tmp_path / "p.csv", [(k, 18_000 + k, 1) for k in range(200)] + [(k, k + 1, 0) for k in range(200)])
    asked = {"pairs": str(pairs), "rate": [0.05]}
    whole = anisoscope.calibrate(tmp_path / "x.npy", **asked)
    shards = [tmp_path / f"{k}" for k in range(2)]
    for k, out in enumerate(shards):
        anisoscope.calibrate(tmp_path / "x.npy", **asked, shard=f"{k}/2", out=out)  # no share holds a whole pair
    merged = anisoscope.merge(shards, tmp_path / "merged")
    assert merged.notes == whole.notes  # without what single shares said of themselves
    for metric in ("ndcg", "floor_mean"):
        assert value(merged, "raw", metric) == pytest.approx(value(whole, "raw", metric), abs=1e-9)


@pytest.mark.parametrize(
    ("rows", "error"),
    [([("a", "b", 0)], "no pair is related"), ([("a", "", 1)], "without query"), ([("a", "b", "yes")], "not a number")],
)
def test_tables_that_say_nothing_are_refused(tmp_path, rows, error):
    with pytest.raises(InputError, match=error):
        read_pairs(table(tmp_path / "p.csv", rows))
    with pytest.raises(UsageError, match="no such table"):
        read_pairs(tmp_path / "p.xlsx")
