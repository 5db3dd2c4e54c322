"""`remedy apply` in every format, and every export opened by the library that it is for."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

from anisoscope.cli.main import main
from anisoscope.errors import StoreError, UsageError
from anisoscope.inputs.vectors.source import open_vectors
from anisoscope.studies.remedy.apply import apply_files
from anisoscope.studies.remedy.estimator import Remedy
from anisoscope.studies.remedy.export import export
from encoders import MINILM, TEXTS, WORDS, sentence_folder

N, D = 9000, 6  # more than a block
X = (np.random.default_rng(0).standard_normal((N, D)) * np.geomspace(2, 0.5, D) + 1.5).astype(np.float32)


@pytest.fixture(scope="module")
def remedy() -> Remedy:
    return Remedy("whiten", dims=4).fit(X)


def lists(x: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), x.shape[1]).cast(pa.list_(pa.float32()))


def written(path: Path) -> Path:
    """X in the format of the name, with ids and other columns where the format has any."""
    table = pa.table({"id": [f"row {k}" for k in range(N)], "embedding": lists(X), "n": range(N)})
    if path.suffix == ".npy":
        np.save(path, X)
    elif path.suffix == ".safetensors":
        save_file({"a": np.arange(N), "embedding": X, "z": np.ones(3, np.float16)}, path, {"made by": "test"})
    elif path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=4000)
    elif path.suffix in (".arrow", ".feather"):
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=4000)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps({"id": k, "embedding": x, "é": "ü"}) for k, x in enumerate(X.tolist())))
    elif path.stem == "lists":
        rows = [[f"a, {k}", json.dumps(x)] for k, x in enumerate(X.tolist())]
        with path.open("w", newline="") as stream:
            csv.writer(stream).writerows([["title", "embedding"], *rows])
    else:
        with path.open("w", newline="") as stream:
            csv.writer(stream).writerows(
                [["id", *(f"x{k}" for k in range(D))], *([k, *x] for k, x in enumerate(X.tolist()))]
            )
    return path


NAMES = ["x.npy", "x.safetensors", "x.parquet", "x.arrow", "x.feather", "x.jsonl", "x.csv", "lists.csv"]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_is_written_as_it_came_with_the_repaired_vectors(tmp_path, remedy, name):
    source, out = written(tmp_path / name), tmp_path / f"out.{name}"
    column = "embedding" if name in ("x.parquet", "x.arrow", "x.feather", "x.safetensors") else None
    (told,) = apply_files(remedy, [source], out, column=column)
    assert told[:5] == (out, N, 0, 0, 0)
    found = np.concatenate([block.x for block in open_vectors(out, column=column).blocks()])
    np.testing.assert_allclose(found, remedy.transform(X), atol=2e-6)
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".partial")]


def test_ids_and_other_columns_stay(tmp_path, remedy):
    apply_files(remedy, [written(tmp_path / "x.parquet")], tmp_path / "out.parquet", column="embedding")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["id", "embedding", "n"]
    assert table["id"].to_pylist() == [f"row {k}" for k in range(N)]
    apply_files(remedy, [written(tmp_path / "x.safetensors")], tmp_path / "out.safetensors", column="embedding")
    tensors = load_file(tmp_path / "out.safetensors")
    np.testing.assert_array_equal(tensors["a"], np.arange(N))
    assert tensors["z"].dtype == np.float16
    apply_files(remedy, [written(tmp_path / "x.jsonl")], tmp_path / "out.jsonl")
    last = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[-1])
    assert (last["id"], last["é"], len(last["embedding"])) == (N - 1, "ü", 4)
    apply_files(remedy, [written(tmp_path / "lists.csv")], tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows[0] == ["title", "embedding"]
    assert rows[8200][0] == "a, 8199"
    apply_files(remedy, [written(tmp_path / "x.csv")], tmp_path / "plain.csv")
    assert (tmp_path / "plain.csv").read_text().splitlines()[0] == "id,d0,d1,d2,d3"


def test_double_precision_stays_double(tmp_path, remedy):
    np.save(tmp_path / "x.npy", X.astype(np.float64))
    apply_files(remedy, [tmp_path / "x.npy"], tmp_path / "y.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), remedy.transform(X.astype(np.float64)))


@pytest.mark.parametrize("method", ["centre", "standardise", "all-but-the-top", "whiten-k", "soft-zca"])
def test_blocks_that_threads_write_are_those_of_double_precision(tmp_path, method):
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((40000, 32)) * np.geomspace(3, 0.1, 32) + 2).astype(np.float32)  # five chunks
    np.save(tmp_path / "x.npy", np.asfortranarray(x))
    remedy = Remedy(method).fit(x)
    apply_files(remedy, [tmp_path / "x.npy"], tmp_path / "y.npy")
    made = remedy.fitted()
    exact = (x.astype(float) - made.mean) @ made.full
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    found = np.load(tmp_path / "y.npy")
    assert (found.dtype, found.flags.f_contiguous) == (np.float32, False)
    np.testing.assert_allclose(found, exact, atol=1e-5)


def test_an_error_in_one_thread_ends_the_others_and_leaves_nothing(tmp_path, remedy, monkeypatch):
    asked = []

    def change(x):
        asked.append(len(x))
        if len(asked) == 4:
            raise OSError(28, "No space left on device")
        return Remedy.transform(remedy, x)

    np.save(tmp_path / "x.npy", np.repeat(X, 40, axis=0))  # 44 chunks
    monkeypatch.setattr(remedy, "transform", change)
    with pytest.raises(StoreError, match="No space"):
        apply_files(remedy, [tmp_path / "x.npy"], tmp_path / "y.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]
    assert len(asked) < 40


def test_rows_that_mean_nothing_are_counted(tmp_path, remedy, command_line):
    x = np.vstack([X[:5], np.zeros((2, D)), np.full((1, D), np.nan), X[5:]]).astype(np.float32)
    x[0, 0] = 0  # not the whole row
    np.save(tmp_path / "x.npy", x)
    [found] = apply_files(remedy, [tmp_path / "x.npy"], tmp_path / "y.npy")
    assert found[1:5] == (len(x), 2, 1, 0)
    remedy.save(tmp_path / "remedy.safetensors")
    ended = command_line(
        "remedy", "apply", tmp_path / "remedy.safetensors", tmp_path / "x.npy", "-o", tmp_path / "z.npy"
    )
    assert "2 were zero" in ended.out + ended.err
    assert "1 have NaN or infinite entries" in ended.out + ended.err


def test_rows_without_direction_are_counted_apart_from_infinite_ones(tmp_path, command_line):
    remedy = Remedy("centre").fit(X)
    x = np.vstack([remedy.fitted().mean, X[:5]]).astype(np.float32)
    x[3, 4] = np.inf  # not in the first column
    np.save(tmp_path / "x.npy", x)
    remedy.save(tmp_path / "remedy.safetensors")
    asked = "remedy", "apply", tmp_path / "remedy.safetensors", tmp_path / "x.npy", "-o", tmp_path / "y.npy"
    ended = command_line(*asked)
    assert "1 have no direction after the remedy" in ended.out + ended.err
    assert "1 have NaN or infinite entries" in ended.out + ended.err
    written = np.load(tmp_path / "y.npy")
    assert np.isnan(written[3]).all()
    assert not written[0].any()


def test_inputs_and_foreign_files_are_not_overwritten(tmp_path, remedy):
    source = written(tmp_path / "x.npy")
    with pytest.raises(UsageError, match="overwrite an input"):
        apply_files(remedy, [source], source)
    with pytest.raises(UsageError, match="format that they came in"):
        apply_files(remedy, [source], tmp_path / "y.parquet")
    np.save(tmp_path / "wide.npy", np.ones((3, D + 1)))
    with pytest.raises(UsageError, match="another dimension"):
        apply_files(remedy, [source, tmp_path / "wide.npy"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_remedy_is_not_overwritten_by_what_is_made_with_it(tmp_path, remedy, command_line):
    np.savez(tmp_path / "x.npz", x=X)
    file = remedy.save(tmp_path / "remedy.safetensors")
    kept = file.read_bytes()
    save_file({"x": X}, tmp_path / "x.safetensors")
    for words in ("apply", file, tmp_path / "x.safetensors"), ("export", file, "--to", "onnx"):
        ended = command_line("remedy", *words, "-o", file, "--force")
        assert (ended.code, "overwrite an input" in ended.err) == (2, True), ended
    assert file.read_bytes() == kept
    with pytest.raises(UsageError, match="another kind"):
        remedy.save(tmp_path / "x.safetensors")
    remedy.save(file)


def test_half_a_model_is_never_exported(tmp_path, remedy, monkeypatch):
    folder = sentence_folder(tmp_path / "model")
    monkeypatch.setattr("safetensors.numpy.save_file", lambda *_: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(StoreError, match="disk full"):
        export(remedy, "sentence-transformers", tmp_path / "out", model=str(folder))
    assert {path.name for path in tmp_path.iterdir()} == {"model", "model-base"}


def test_a_model_that_changed_since_is_not_exported_with_the_remedy(tmp_path, command_line):
    folder = sentence_folder(tmp_path / "model")
    (tmp_path / "t.txt").write_text("\n".join(" ".join(WORDS[k % 7 : k % 7 + 4]) + f" {k}" for k in range(90)))
    words = ("--data", tmp_path / "t.txt", "--documents", "lines", "--method", "centre", "--no-figures")
    assert command_line("remedy", "fit", folder, *words, "-o", tmp_path / "remedy").code == 0
    exported = ("remedy", "export", tmp_path / "remedy", "--to", "sentence-transformers", "-o")
    assert command_line(*exported, tmp_path / "one").code == 0
    weights = load_file(folder / "model.safetensors")
    next(one for name, one in weights.items() if "word" in name)[0] += 1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    refused = command_line(*exported, tmp_path / "two")
    assert (refused.code, "changed since the remedy was fitted" in refused.err) == (2, True), refused
    assert command_line(*exported, tmp_path / "two", "--model", folder).code == 0


def test_faiss_adds_and_searches_repaired_vectors(tmp_path, remedy):
    faiss = pytest.importorskip("faiss")  # its newest wheels need numpy 2

    export(remedy, "faiss", tmp_path / "empty.index")
    index = faiss.read_index(str(tmp_path / "empty.index"))
    index.add(X)  # pyright: ignore[reportCallIssue]
    cosines, rows = index.search(X[:20], 5)  # pyright: ignore[reportCallIssue]
    ours = remedy.transform(X)
    assert rows[:, 0].tolist() == list(range(20))
    np.testing.assert_allclose(cosines, np.sort(ours[:20] @ ours.T, axis=1)[:, ::-1][:, :5], atol=1e-5)


def test_onnx_computes_repaired_vectors(tmp_path, remedy):
    import onnxruntime

    export(remedy, "onnx", tmp_path / "remedy.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "remedy.onnx"))
    (found,) = session.run(["y"], {"x": X})
    np.testing.assert_allclose(found, remedy.transform(X), atol=1e-5)


@pytest.mark.parametrize("method", ["whiten", "centre"])
def test_the_numpy_snippet_runs_by_itself(tmp_path, method):
    made = Remedy(method).fit(X)
    export(made, "numpy", tmp_path / "repair.py")
    spec = importlib.util.spec_from_file_location("repair", tmp_path / "repair.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    np.testing.assert_allclose(module.repair(X), made.transform(X), atol=1e-5)


def repaired_model(folder: Path, out: Path, texts: list[str]) -> None:
    from sentence_transformers import SentenceTransformer

    x = SentenceTransformer(str(folder), device="cpu").encode(texts)
    rng = np.random.default_rng(0)
    made = Remedy("soft-zca").fit(
        np.concatenate([x, x[rng.integers(0, len(x), 500)] + 0.1 * rng.standard_normal((500, x.shape[1]))])
    )
    export(made, "sentence-transformers", out, model=str(folder))
    theirs = SentenceTransformer(str(out), device="cpu").encode(texts)
    np.testing.assert_allclose(theirs, made.transform(x), atol=1e-5)


def test_a_sentence_transformers_folder_gives_repaired_vectors(tmp_path):
    folder = sentence_folder(tmp_path / "model")
    repaired_model(folder, tmp_path / "out", TEXTS)
    assert not (folder / "3_Dense").exists()
    with pytest.raises(UsageError, match="not empty"):
        repaired_model(folder, tmp_path / "out", TEXTS)


@pytest.mark.skipif(not MINILM.is_dir(), reason="scripts/fetch_real_weights.py /tmp/weights minilm")
def test_real_minilm_gives_repaired_vectors(tmp_path):
    repaired_model(MINILM, tmp_path / "out", ["A cat.", "The market fell.", "Boil the water first."])


def test_the_three_commands_in_a_row(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "x.npy")
    for words in (
        ["remedy", "fit", "x.npy", "--method", "centre", "-o", "r", "--no-figures"],
        ["remedy", "apply", "r", "x.npy", "-o", "y.npy"],
        ["remedy", "export", "r", "--to", "onnx", "-o", "r.onnx"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
    assert "9,000 vectors" in capsys.readouterr().out
    np.testing.assert_allclose(np.load("y.npy"), Remedy("centre").fit(X).transform(X), atol=1e-6)
    with pytest.raises(SystemExit) as ended:
        main(["remedy", "export", "r", "--to", "fais", "-o", "x"])
    assert ended.value.code == 2
    assert 'did you mean "faiss"' in capsys.readouterr().err


def test_vectors_of_another_scale_are_told(tmp_path: Path, remedy: Remedy, capsys: pytest.CaptureFixture[str]) -> None:
    """A mean of unit vectors is nothing beside vectors of int8: the map would leave their drift as it is."""
    loaded = Remedy.load(remedy.save(tmp_path / "r.safetensors"))
    assert loaded.length == pytest.approx(float(np.square(X.astype(float)).sum(1).mean()) ** 0.5, rel=1e-3)
    np.save(tmp_path / "same.npy", X)
    np.save(tmp_path / "codes.npy", np.round(X * 20).astype(np.int8))
    same, codes = (
        apply_files(loaded, [tmp_path / f"{name}.npy"], tmp_path / f"{name}-out.npy")[0] for name in ("same", "codes")
    )
    assert (same.scale, codes.scale) == (pytest.approx(1, abs=0.05), pytest.approx(20, rel=0.05))
    assert (same.another_scale, codes.another_scale) == (False, True)
    given = [str(tmp_path / name) for name in ("r.safetensors", "codes.npy", "told.npy")]
    with pytest.raises(SystemExit):
        main(["remedy", "apply", *given[:2], "-o", given[2]])
    assert "times as long as those that the remedy was fitted on" in capsys.readouterr().out


def test_a_map_that_changes_nothing_fits_every_scale(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X * 50)
    assert apply_files(Remedy("none").fit(X), [tmp_path / "x.npy"], tmp_path / "o.npy")[0].scale is None
