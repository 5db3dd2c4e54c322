"""Chunks: the same on every machine, read alone, and together the whole source."""

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from anisoscope.inputs.vectors.pieces import CHUNK, Rows, cut, steps
from anisoscope.inputs.vectors.source import open_vectors

N, D = 20_000, 3
X = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
IDS = [f"row {number}" for number in range(N)]
GROUPS = [f"text {number // 7}" for number in range(N)]


def table():
    column = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), D)
    return pa.table({"v": column, "name": IDS, "text": GROUPS})


def write_arrow(path, stream=False):
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, new(sink, table().schema) as writer:
        writer.write_table(table(), max_chunksize=6000)


def write_csv(path):
    lines = [",".join([*map(repr, map(float, row)), IDS[i], GROUPS[i]]) for i, row in enumerate(X)]
    path.write_text("a,b,c,name,text\n" + "\n".join(lines) + "\n")


def write_jsonl(path):
    lines = [json.dumps({"v": row.tolist(), "name": IDS[i], "text": GROUPS[i]}) for i, row in enumerate(X)]
    path.write_text("\n".join(lines) + "\n")


RUNS, GROUPED, BATCHED = [8192, 8192, 3616], [7000, 7000, 6000], [6000, 6000, 6000, 2000]
WRITERS = {  # each with the rows of its chunks
    "x.npy": (lambda p: np.save(p, X), RUNS),
    "fortran.npy": (lambda p: np.save(p, np.asfortranarray(X)), RUNS),
    "stored.npz": (lambda p: np.savez(p, v=X, name=IDS, text=GROUPS), RUNS),
    "packed.npz": (lambda p: np.savez_compressed(p, v=X, name=IDS, text=GROUPS), RUNS),
    "fortran.npz": (lambda p: np.savez_compressed(p, v=np.asfortranarray(X), name=IDS, text=GROUPS), RUNS),
    "x.safetensors": (lambda p: save_file({"v": X, "name": np.arange(N), "text": np.arange(N) // 7}, p), RUNS),
    "x.parquet": (lambda p: pq.write_table(table(), p, row_group_size=7000), GROUPED),
    "x.arrow": (write_arrow, BATCHED),
    "stream.arrow": (lambda p: write_arrow(p, stream=True), BATCHED),
    "x.csv": (write_csv, RUNS),
    "x.jsonl": (write_jsonl, RUNS),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("chunks")
    for name, (write, _) in WRITERS.items():
        write(place / name)
    return place


@pytest.fixture(params=WRITERS)
def name(request):
    return request.param


def labels(name):
    return {} if name.endswith(".npy") else {"ids": "name", "group": "text"}


@pytest.mark.parametrize("rows", [999, 8192, 100_000])
def test_each_chunk_holds_its_rows_and_no_block_crosses_two(folder, name, rows):
    source = open_vectors(folder / name, **labels(name))
    ends = np.cumsum([0, *WRITERS[name][1]])
    for number, (first, last) in enumerate(pairwise(ends)):
        blocks = list(source.blocks(rows, wanted=lambda chunk, number=number: chunk == number))
        assert blocks[0].start == first
        assert [block.start for block in blocks[1:]] == [block.start + len(block.x) for block in blocks[:-1]]
        assert all(len(block.x) <= rows for block in blocks)
        np.testing.assert_array_equal(np.concatenate([block.x for block in blocks]), X[first:last])
        if labels(name) and not name.endswith(".safetensors"):
            assert [name for block in blocks for name in block.ids] == IDS[first:last]
            assert [key for block in blocks for key in block.keys] == GROUPS[first:last]
    assert source.chunks == (None if name in ("stream.arrow", "x.csv", "x.jsonl") else len(ends) - 1)


def test_chunks_are_numbered_through_all_files(folder):
    files = [folder / name for name in ("x.parquet", "stream.arrow", "x.npy")]
    source = open_vectors(files)
    seen = []
    list(source.blocks(5000, wanted=lambda chunk: bool(seen.append(chunk))))
    assert sorted(set(seen)) == list(range(3 + 4 + 3))
    (block,) = source.blocks(10_000, wanted=lambda chunk: chunk == 8)
    assert block.start == 2 * N + 8192
    np.testing.assert_array_equal(block.x, X[8192:16384])
    assert open_vectors([files[0], files[2]]).chunks == 6


@pytest.mark.parametrize("shares", [1, 2, 5])
def test_workers_together_read_every_row_once(folder, name, shares):
    source = open_vectors(folder / name, **labels(name))
    seen = np.zeros(N, dtype=int)
    for share in range(shares):
        for block in source.blocks(3000, wanted=lambda chunk, share=share: chunk % shares == share):
            seen[block.start : block.start + len(block.x)] += 1
            np.testing.assert_array_equal(block.x, X[block.start : block.start + len(block.x)])
    assert (seen == 1).all()


@pytest.mark.parametrize("name", ["x.npy", "fortran.npy", "stored.npz", "x.safetensors"])
def test_vectors_that_are_not_wanted_are_not_read(folder, name, monkeypatch):
    source = open_vectors(folder / name)
    read = []
    fromfile = np.fromfile
    monkeypatch.setattr(np, "fromfile", lambda *a, **k: read.append(fromfile(*a, **k)) or read[-1])
    list(source.blocks(wanted=lambda chunk: chunk == 1))
    assert sum(part.nbytes for part in read) == 8192 * D * 4


def test_ids_are_read_only_when_asked_for(folder):
    assert all(block.ids is None for block in open_vectors(folder / "x.parquet").blocks())
    assert next(open_vectors(folder / "x.safetensors", ids="name", column="v").blocks(2)).ids == ["0", "1"]


@given(sizes=st.lists(st.integers(0, 9000), max_size=6), rows=st.integers(1, 20_000), labelled=st.booleans())
def test_a_stream_is_cut_where_a_file_would_be(sizes, rows, labelled):
    rows = max(rows, 100)
    ends = np.cumsum([0, *sizes])
    x = np.arange(ends[-1], dtype=np.float32)[:, None]
    keys = list(map(str, range(ends[-1])))
    parts = (Rows(x[a:b], keys[a:b] if labelled else None, keys[a:b] if labelled else None) for a, b in pairwise(ends))
    pieces = list(cut(parts, rows, lambda chunk: chunk != 1))
    expected = list(steps(len(x), rows))
    assert [piece.length for piece in pieces] == [stop - start for start, stop in expected]
    for piece, (start, stop) in zip(pieces, expected, strict=True):
        assert piece.chunk == start // CHUNK
        assert (piece.rows is None) == (piece.chunk == 1)
        if piece.rows is not None:
            np.testing.assert_array_equal(piece.rows.x, x[start:stop])
            assert piece.rows.keys == piece.rows.ids == (keys[start:stop] if labelled else None)
