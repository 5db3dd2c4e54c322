"""Every format with its own writer: what comes out is what went in, whatever the size of the blocks."""

import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.vectors.source import open_vectors

N, D = 37, 5
X = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
GROUPS = [f"text {i // 4}" for i in range(N)]


def gather(source, rows=8):
    blocks = list(source.blocks(rows))
    assert [block.start for block in blocks] == [sum(len(b.x) for b in blocks[:i]) for i in range(len(blocks))]
    assert all(0 < len(block.x) <= rows for block in blocks)
    keys = None if blocks[0].keys is None else [key for block in blocks for key in block.keys]
    return np.concatenate([block.x for block in blocks]), keys


def lists(x=X, kind="fixed"):
    flat = pa.array(x.ravel())
    if kind == "fixed":
        return pa.FixedSizeListArray.from_arrays(flat, x.shape[1])
    if kind == "tensor":
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(x))
    offsets = np.arange(0, x.size + 1, x.shape[1])
    if kind == "large":
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), flat)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat)


def table(kind="fixed"):
    return pa.table({"text": [f"t{i}" for i in range(N)], "embedding": lists(kind=kind), "article": GROUPS})


def write_ipc(path, data, *, stream=False, rows=None, compression=None):
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as sink, new(sink, data.schema, options=options) as writer:
        writer.write_table(data, max_chunksize=rows)


def write_csv(path):
    with open(path, "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["article", *(f"d{k}" for k in range(D))])
        writer.writerows([group, *map(float, row)] for group, row in zip(GROUPS, X, strict=True))


def write_csv_lists(path):
    with open(path, "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["article", "embedding"])
        writer.writerows([group, json.dumps(row.tolist())] for group, row in zip(GROUPS, X, strict=True))


def write_jsonl(path):
    records = [{"article": g, "embedding": row.tolist()} for g, row in zip(GROUPS, X, strict=True)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_bare_jsonl(path):
    path.write_text("\n\n".join(json.dumps(row.tolist()) for row in X))


WRITERS = {
    "plain.npy": lambda p: np.save(p, X),
    "fortran.npy": lambda p: np.save(p, np.asfortranarray(X)),
    "bigendian.npy": lambda p: np.save(p, X.astype(">f4")),
    "stored.npz": lambda p: np.savez(p, x=X, article=np.array(GROUPS)),
    "packed.npz": lambda p: np.savez_compressed(p, x=X, article=np.array(GROUPS)),
    "fortran.npz": lambda p: np.savez(p, x=np.asfortranarray(X), article=np.array(GROUPS)),
    "x.safetensors": lambda p: save_file({"x": torch.tensor(X)}, p, metadata={"format": "pt"}),
    "fixed.parquet": lambda p: pq.write_table(table(), p, row_group_size=10),
    "list.parquet": lambda p: pq.write_table(table("list"), p),
    "large.parquet": lambda p: pq.write_table(table("large"), p, row_group_size=7),
    "tensor.parquet": lambda p: pq.write_table(table("tensor"), p),
    "file.arrow": lambda p: write_ipc(p, table(), rows=10),
    "stream.arrow": lambda p: write_ipc(p, table("list"), stream=True, rows=11),
    "zstd.arrow": lambda p: write_ipc(p, table("large"), compression="zstd"),
    "lz4.feather": lambda p: pyarrow.feather.write_feather(table(), p, chunksize=9),
    "numbers.csv": write_csv,
    "lists.csv": write_csv_lists,
    "objects.jsonl": write_jsonl,
    "bare.jsonl": write_bare_jsonl,
}
NO_GROUP = {"plain.npy", "fortran.npy", "bigendian.npy", "x.safetensors", "bare.jsonl"}


@pytest.fixture(params=WRITERS)
def file(request, tmp_path):
    path = tmp_path / request.param
    WRITERS[request.param](path)
    return path


def test_each_format_gives_back_what_was_written(file):
    group = None if file.name in NO_GROUP else "article"
    source = open_vectors([file], group=group)
    x, keys = gather(source)
    np.testing.assert_array_equal(x, X)
    assert keys == (None if group is None else GROUPS)
    assert (source.dim, source.name, source.unreadable) == (D, file.name, [])
    assert source.rows in (N, None)
    assert x.dtype == (np.float64 if file.suffix in (".csv", ".jsonl") else np.float32)
    assert source.dtype == x.dtype.name


def test_blocks_are_fresh_writable_arrays(file):
    group = None if file.name in NO_GROUP else "article"
    for block in open_vectors([file], group=group).blocks(8):
        assert block.x.flags.writeable
        assert block.x.flags.c_contiguous


@pytest.mark.parametrize("rows", [1, 2, N - 1, N, 10 * N])
def test_the_size_of_blocks_changes_nothing(file, rows):
    source = open_vectors([file], group=None if file.name in NO_GROUP else "article")
    x, keys = gather(source, rows)
    again, same = gather(source, rows)  # a source can be read twice
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(again, X)
    assert keys == same


def test_rows_are_known_where_the_format_says(tmp_path):
    for name in ("plain.npy", "packed.npz", "x.safetensors", "fixed.parquet", "file.arrow", "lz4.feather"):
        WRITERS[name](tmp_path / name)
        counts = name not in ("file.arrow", "lz4.feather") or hasattr(pa.RecordBatchFileReader, "count_rows")
        assert open_vectors(tmp_path / name, group=None).rows == (
            N if counts else None
        )  # an older pyarrow cannot count
    WRITERS["stream.arrow"](tmp_path / "s.arrow")
    assert open_vectors([tmp_path / "s.arrow"]).rows is None


DTYPES = ["float16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64"]
ARRAYS, TABLES = ["npy", "npz", "safetensors"], ["parquet", "arrow"]


@pytest.mark.parametrize(("dtype", "suffix"), [*product(DTYPES, ARRAYS + TABLES), *product(["bool"], ARRAYS)])
def test_every_type_keeps_its_values(tmp_path, dtype, suffix):
    x = (100 * X).astype(dtype)
    path = tmp_path / f"x.{suffix}"
    if suffix in TABLES:
        data = pa.table({"v": lists(x)})
        pq.write_table(data, path) if suffix == "parquet" else write_ipc(path, data)
    elif suffix == "safetensors":
        save_file({"x": torch.tensor(x)}, path)
    else:
        np.save(path, x) if suffix == "npy" else np.savez(path, x)
    source = open_vectors([path])
    got, _ = gather(source)
    assert source.dtype == dtype
    assert got.dtype == (np.float64 if dtype in ("float64", "int32", "int64") else np.float32)
    np.testing.assert_array_equal(got, x)


def test_bfloat16_is_widened_exactly_as_torch_does(tmp_path):
    x = torch.tensor(X).to(torch.bfloat16)
    x[0, :3] = torch.tensor([float("inf"), float("-inf"), float("nan")])
    save_file({"x": x}, tmp_path / "x.safetensors")
    np.save(tmp_path / "x.npy", x.view(torch.uint16).numpy().view("V2"))  # as numpy stores what it does not know
    for name in ("x.safetensors", "x.npy"):
        source = open_vectors([tmp_path / name])
        assert source.dtype == "bfloat16"
        np.testing.assert_array_equal(gather(source)[0], x.float().numpy())


def test_not_finite_values_pass_through(tmp_path):
    x = X.copy()
    x[3, 1], x[4, 0] = np.nan, np.inf
    np.save(tmp_path / "x.npy", x)
    np.savetxt(tmp_path / "x.csv", x, delimiter=",")
    (tmp_path / "x.jsonl").write_text("\n".join(json.dumps(row) for row in x.tolist()))
    for name in ("x.npy", "x.csv", "x.jsonl"):
        np.testing.assert_array_equal(gather(open_vectors([tmp_path / name]))[0], x)


def test_several_files_follow_one_another_and_wide_types_win(tmp_path):
    np.save(tmp_path / "b.npy", X[:10].astype(np.float16))
    np.save(tmp_path / "c.npy", X[10:].astype(np.float64) / 3)
    source = open_vectors([tmp_path])
    x, _ = gather(source)
    assert (x.dtype, source.dtype, source.rows) == (np.float64, "float16, float64", N)
    np.testing.assert_array_equal(x[:10], X[:10].astype(np.float16))
    np.testing.assert_array_equal(x[10:], X[10:].astype(np.float64) / 3)
    np.testing.assert_array_equal(gather(open_vectors(f"{tmp_path}/*.npy"))[0], x)
    np.testing.assert_array_equal(gather(open_vectors([tmp_path / "c.npy", tmp_path / "b.npy"]))[0][-10:], x[:10])


def test_files_of_different_dimension_are_refused_by_name(tmp_path):
    np.save(tmp_path / "a.npy", X)
    np.save(tmp_path / "b.npy", X[:, :4])
    with pytest.raises(UsageError, match=r"b\.npy\n +got: +4\n +expected: 5, as in .*a\.npy"):
        open_vectors([tmp_path])


def test_what_a_folder_holds_and_cannot_be_opened_is_listed(tmp_path):
    np.save(tmp_path / "good.npy", X)
    (tmp_path / "bad.npy").write_bytes(b"no array")
    (tmp_path / "empty.csv").write_bytes(b"")
    source = open_vectors([tmp_path])
    np.testing.assert_array_equal(gather(source)[0], X)
    assert [name for name, _ in source.unreadable] == ["bad.npy", "empty.csv"]
    assert "magic" in source.unreadable[0][1]


def test_nothing_readable_is_an_error_and_so_is_a_bad_file_that_is_named(tmp_path):
    (tmp_path / "bad.npy").write_bytes(b"no array")
    with pytest.raises(InputError, match=r"no vectors could be read.*\n.*bad\.npy"):
        open_vectors([tmp_path])
    np.save(tmp_path / "good.npy", X)
    with pytest.raises(InputError, match=r"bad\.npy"):
        open_vectors([tmp_path / "good.npy", tmp_path / "bad.npy"])


def test_bad_requests(tmp_path):
    (tmp_path / "x.pkl").write_bytes(b"")
    with pytest.raises(UsageError, match=r"\.pkl"):
        open_vectors([tmp_path / "x.pkl"])
    with pytest.raises(UsageError, match="no file"):
        open_vectors([])
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(UsageError, match="at least one row"):
        next(open_vectors([tmp_path / "x.npy"]).blocks(0))


def test_the_fingerprint_follows_contents_and_choice_not_place_name_or_blocks(file, tmp_path):
    group = None if file.name in NO_GROUP else "article"
    source = open_vectors([file], group=group)
    before = source.fingerprint()
    for _ in source.blocks(3):
        pass
    moved = tmp_path / "elsewhere" / f"renamed{file.suffix}"
    moved.parent.mkdir()
    shutil.copy(file, moved)
    assert source.fingerprint() == before == open_vectors([moved], group=group).fingerprint()


def test_reading_other_columns_of_the_same_file_is_other_data(tmp_path):
    np.savez(tmp_path / "x.npz", a=X, b=X + 1, article=np.array(GROUPS))
    choices = [("a", None), ("b", None), ("a", "article")]
    prints = {open_vectors(tmp_path / "x.npz", column=c, group=g).fingerprint() for c, g in choices}
    assert len(prints) == 3


def test_one_changed_number_changes_the_fingerprint(tmp_path):
    np.save(tmp_path / "a.npy", X)
    x = X.copy()
    x[-1, -1] = np.nextafter(x[-1, -1], np.float32(9))
    np.save(tmp_path / "b.npy", x)
    prints = {open_vectors([tmp_path / name]).fingerprint() for name in ("a.npy", "b.npy")}
    assert len(prints) == 2
    assert open_vectors([tmp_path / "a.npy", tmp_path / "b.npy"]).fingerprint() not in prints


def test_a_fingerprint_reads_the_bytes_once_and_still_sees_a_file_change(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", X)
    source, reads, digest = open_vectors(tmp_path / "a.npy"), [], hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *given: reads.append(1) or digest(*given))
    assert source.fingerprint() == source.fingerprint()
    assert len(reads) == 1
    np.save(tmp_path / "a.npy", X[:-1])
    with pytest.raises(InputError, match="changed"):
        source.fingerprint()


BIG = (130_000, 768)  # 400 MB as float32


def write_sparse_npy(path):
    with open(path, "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": BIG})
        stream.truncate(stream.tell() + 4 * BIG[0] * BIG[1])


def write_sparse_safetensors(path):
    entry = {"dtype": "F32", "shape": BIG, "data_offsets": [0, 4 * BIG[0] * BIG[1]]}
    header = json.dumps({"x": entry}).encode()
    with open(path, "wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(stream.tell() + 4 * BIG[0] * BIG[1])


def write_one_arrow_batch(path):
    write_ipc(path, pa.table({"x": lists(np.zeros(BIG, dtype=np.float32))}))


@pytest.mark.parametrize(
    ("name", "write"),
    [("x.npy", write_sparse_npy), ("x.safetensors", write_sparse_safetensors), ("x.arrow", write_one_arrow_batch)],
)
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak of this process alone is told by /proc")
def test_a_large_file_is_read_in_the_memory_of_a_block(tmp_path, name, write):
    write(tmp_path / name)
    code = (
        "import re, sys, pyarrow; from anisoscope.inputs.vectors.source import open_vectors; peak = lambda: "
        "int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1]) // 1024; before = peak();"
        "n = sum(len(block.x) for block in open_vectors(sys.argv[1]).blocks(4096)); print(n, peak() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / name)], capture_output=True, text=True, check=True
    )
    rows, grown = map(int, done.stdout.split())
    assert rows == BIG[0]
    assert 10 < grown < 150  # MiB: a few blocks, of 400


def test_reading_vectors_does_not_import_torch(tmp_path):
    save_file({"x": torch.tensor(X).to(torch.bfloat16)}, tmp_path / "x.safetensors")
    code = (
        "import sys; from anisoscope.inputs.vectors.source import open_vectors;"
        f"n = sum(len(b.x) for b in open_vectors([{str(tmp_path / 'x.safetensors')!r}]).blocks());"
        f"assert n == {N}; print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("texts.txt", "a text", "measure MODEL --data FILE, for texts"),
        ("texts.jsonl", '{"title": "a", "text": "b"}', "got: +title, text"),
    ],
)
def test_texts_in_place_of_vectors_are_told_from_them(tmp_path, name, words, told):
    (tmp_path / name).write_text(words + "\n")
    with pytest.raises(UsageError, match=told):
        open_vectors([tmp_path / name])
