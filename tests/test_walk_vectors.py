"""The commands for vectors that are made already, on real ones: MiniLM's, of the package's own sentences.

What they say is held against a few lines of numpy in float64 and against FAISS, which share no code with the package.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import anisoscope
import cases
from anisoscope.runs.table import Row
from fixtures import minilm

Command = Callable[..., cases.Ended]
X = minilm.vectors()
TUNED = minilm.vectors("minilm_finetuned")
TOPIC = np.array([name for name, lines in minilm.topics().items() for _ in lines])
IDS = [f"sentence-{k:03d}" for k in range(len(X))]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table with ids and topics, both encoders as arrays, and pairs: a sentence and three of its topic."""
    monkeypatch.chdir(tmp_path)
    np.save("old.npy", X)
    np.save("new.npy", TUNED)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), X.shape[1])
    pq.write_table(pa.table({"id": IDS, "topic": TOPIC, "embedding": lists}), "old.parquet")
    with Path("pairs.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("query", "document", "label"))
        for name in dict.fromkeys(TOPIC):
            first, *others = np.flatnonzero(name == TOPIC)
            writer.writerows((IDS[first], IDS[k], 1) for k in others[:3])
    return tmp_path


def unit(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def mean_cosine(x: np.ndarray) -> float:
    total = float(np.sum(unit(x).sum(axis=0) ** 2))
    return (total - len(x)) / (len(x) * (len(x) - 1))


def ten_nearest(x: np.ndarray) -> list[set[int]]:
    """By FAISS, without the row itself."""
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexFlatIP(x.shape[1])
    found = unit(x).astype(np.float32)
    index.add(found)
    return [set(row.tolist()) - {k} for k, row in enumerate(index.search(found, 11)[1])]


def kept(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean([len(a & b) / 10 for a, b in zip(ten_nearest(x), ten_nearest(y), strict=True)]))


def ndcg(scores: np.ndarray, relevant: set[int]) -> float:
    best = [k for k in np.argsort(-scores, kind="stable") if np.isfinite(scores[k])][:10]
    gain = sum(1 / np.log2(rank + 2) for rank, k in enumerate(best) if k in relevant)
    return gain / sum(1 / np.log2(rank + 2) for rank in range(len(relevant)))


def found(run: str, site: str, metric: str, *, at: float | None = None) -> Row:
    [row] = [
        row
        for row in anisoscope.open_run(run).rows
        if (row.site, row.metric) == (site, metric) and (at is None or row.at == at)
    ]
    return row


def said(run: str, site: str, metric: str, *, at: float | None = None) -> float:
    value = found(run, site, metric, at=at).value
    assert value is not None
    return value


def test_calibrate_finds_the_floor_and_how_well_search_works(place: Path, command_line: Command) -> None:
    ended = command_line(
        *("calibrate", "old.parquet", "--column", "embedding", "--group", "topic", "--ids", "id"),
        *("--pairs", "pairs.csv", "--out", "run", "--no-figures"),
    )
    assert ended.code == 0, ended.err
    cosine = unit(X) @ unit(X).T
    unrelated = cosine[TOPIC[:, None] != TOPIC[None, :]]
    floor = found("run", "raw", "floor_mean")  # of the half of the topics that no correction was fitted on
    assert floor.value == pytest.approx(unrelated.mean(), abs=0.03)
    queries = [int(np.flatnonzero(name == TOPIC)[0]) for name in dict.fromkeys(TOPIC)]
    documents = [k + step for k in queries for step in (1, 2, 3)]
    by_hand = [ndcg(cosine[k][documents], {documents.index(k + step) for step in (1, 2, 3)}) for k in queries]
    assert said("run", "raw", "ndcg") == pytest.approx(np.mean(by_hand), abs=1e-6)


def test_a_remedy_is_what_numpy_faiss_and_onnx_make_of_it(place: Path, command_line: Command) -> None:
    pytest.importorskip("faiss")  # which needs numpy 2
    fit = ("remedy", "fit", "old.parquet", "--column", "embedding", "--group", "topic", "--method", "all-but-the-top")
    assert command_line(*fit, "-o", "remedy", "--no-figures").code == 0
    assert (
        command_line("remedy", "apply", "remedy", "old.parquet", "--column", "embedding", "-o", "b.parquet").code == 0
    )
    table = pq.read_table("b.parquet")
    assert table["id"].to_pylist() == IDS
    repaired = np.array(table["embedding"].to_pylist())
    centred = X.astype(np.float64) - X.mean(axis=0, dtype=np.float64)
    top = np.linalg.svd(centred, full_matrices=False)[2][: _dropped(repaired)]
    by_hand = unit(centred - centred @ top.T @ top)
    np.testing.assert_allclose(repaired, by_hand, atol=1e-5)
    for kind, apply in (("faiss", _faiss), ("onnx", _onnx), ("numpy", _numpy)):
        assert command_line("remedy", "export", "remedy", "--to", kind, "-o", f"out-{kind}").code == 0
        np.testing.assert_allclose(unit(apply(X)), by_hand, atol=1e-5, err_msg=kind)


def _dropped(x: np.ndarray) -> int:
    """How many directions the remedy took away: 199 are there once the mean is gone."""
    return len(x) - 1 - int(np.linalg.matrix_rank(x, tol=1e-3))


def _faiss(x: np.ndarray) -> np.ndarray:
    faiss = pytest.importorskip("faiss")
    index = faiss.read_index("out-faiss")
    index.add(x)
    return faiss.downcast_index(index.index).reconstruct_n(0, len(x))


def _onnx(x: np.ndarray) -> np.ndarray:
    session = pytest.importorskip("onnxruntime").InferenceSession("out-onnx")
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def _numpy(x: np.ndarray) -> np.ndarray:
    spec = importlib.util.spec_from_file_location("snippet", "out-numpy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.repair(x)


@pytest.mark.parametrize(
    ("site", "at", "change"),
    [("raw.float32", 192, lambda x: x[:, :192]), ("centred.float32", 384, lambda x: x - x.mean(axis=0))],
)
def test_advise_counts_the_neighbours_that_stay(
    place: Path, command_line: Command, site: str, at: int, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    assert command_line("advise", "old.npy", "--out", "run", "--no-figures").code == 0
    assert said("run", site, "neighbour_overlap", at=at) == pytest.approx(kept(X, change(X)), abs=2e-3)


def test_the_gate_holds_for_a_rounded_copy_and_fails_for_a_fine_tune(place: Path, command_line: Command) -> None:
    np.save("rounded.npy", np.round(X * 127 / np.abs(X).max()) * np.abs(X).max() / 127)
    assert command_line("gate", "old.npy", "rounded.npy", "--out", "same", "--no-figures").code == 0
    assert command_line("gate", "old.npy", "new.npy", "--out", "other", "--no-figures").code == 1
    for run, other in (("same", np.load("rounded.npy")), ("other", TUNED)):
        assert said(run, "vectors", "mean_cosine_difference") == pytest.approx(
            mean_cosine(other) - mean_cosine(X), abs=1e-6
        )
        assert said(run, "vectors", "neighbour_overlap") == pytest.approx(kept(X, other), abs=2e-3)
        assert said(run, "vectors", "partner_cosine") == pytest.approx((unit(X) * unit(other)).sum(1).mean(), abs=1e-6)


def test_two_clouds_lie_as_far_apart_as_numpy_says(place: Path, command_line: Command) -> None:
    ended = command_line("vectors", "old.npy", "--against", "new.npy", "--aligned", "--out", "run", "--no-figures")
    assert ended.code == 0
    a, b = X.astype(np.float64), TUNED.astype(np.float64)
    assert said("run", "pair", "gap") == pytest.approx(np.linalg.norm(a.mean(0) - b.mean(0)), abs=1e-6)
    cross = unit(a) @ unit(b).T
    between = (cross.sum() - np.trace(cross)) / (len(a) * (len(a) - 1))
    assert said("run", "pair", "cosine_between") == pytest.approx(between, abs=1e-6)
    a, b = a - a.mean(0), b - b.mean(0)
    cka = np.linalg.norm(a.T @ b) ** 2 / (np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b))
    assert said("run", "pair", "linear_cka") == pytest.approx(cka, abs=1e-5)
    assert said("run", "pair", "neighbour_overlap") == pytest.approx(kept(X, TUNED), abs=2e-3)
