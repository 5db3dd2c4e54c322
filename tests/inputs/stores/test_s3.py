"""Vectors and texts of a real S3-compatible server are those of the same files on disk."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save

from anisoscope.errors import AnisoscopeError, InputError, UsageError
from anisoscope.inputs.sources import open_places
from anisoscope.inputs.stores import clients
from anisoscope.inputs.vectors.source import open_vectors
from s3_server import Server

X = np.random.default_rng(0).standard_normal((17_000, 16)).astype(np.float32)


def npy(x: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, x)
    return out.getvalue()


def npz(x: np.ndarray, save: Callable = np.savez) -> bytes:
    out = io.BytesIO()
    save(out, x=x)
    return out.getvalue()


def table(x: np.ndarray) -> pa.Table:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), x.shape[1])
    return pa.table({"embedding": lists, "text": [f"row {k}" for k in range(len(x))]})


def parquet(x: np.ndarray, rows: int = 5_000) -> bytes:
    out = io.BytesIO()
    pq.write_table(table(x), out, row_group_size=rows, compression="none")
    return out.getvalue()


def arrow(x: np.ndarray, *, stream: bool = False) -> bytes:
    out = io.BytesIO()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(out, table(x).schema) as writer:
        writer.write_table(table(x), max_chunksize=5_000)
    return out.getvalue()


def jsonl(x: np.ndarray) -> bytes:
    return "".join(json.dumps({"v": row.tolist()}) + "\n" for row in x.astype(float)).encode()


def csv(x: np.ndarray) -> bytes:
    return "".join(",".join(map(repr, row.tolist())) + "\n" for row in x.astype(float)).encode()


FORMS: dict[str, Callable[[], bytes]] = {
    "x.npy": lambda: npy(X),
    "fortran.npy": lambda: npy(np.asfortranarray(X[:300])),
    "x.npz": lambda: npz(X),
    "packed.npz": lambda: npz(X, np.savez_compressed),
    "x.safetensors": lambda: save({"x": X}),
    "x.parquet": lambda: parquet(X),
    "x.arrow": lambda: arrow(X),
    "stream.arrow": lambda: arrow(X, stream=True),
    "x.jsonl": lambda: jsonl(X[:500]),
    "x.csv": lambda: csv(X[:500]),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_reads_as_on_disk(s3: Server, tmp_path: Path, name: str) -> None:
    data = FORMS[name]()
    (tmp_path / name).write_bytes(data)
    column = "embedding" if name.endswith((".parquet", ".arrow")) else None
    there = open_vectors(s3.put(f"forms/{name}", data), column=column)
    here = open_vectors(tmp_path / name, column=column)
    for wanted in (None, lambda chunk: chunk == 1):
        mine, theirs = (list(source.blocks(3_000, wanted=wanted)) for source in (there, here))
        assert [block.start for block in mine] == [block.start for block in theirs]
        assert all(np.array_equal(a.x, b.x) and a.x.dtype == b.x.dtype for a, b in zip(mine, theirs, strict=True))
    assert there.chunks == here.chunks
    assert there.name == here.name


def bytes_sent(server: Server, name: str) -> int:
    asked = [found for method, path, found in server.requests if method == "GET" and name in path]
    ends = [found.removeprefix("bytes=").split("-") for found in asked if found]
    return sum(int(end) - int(start) + 1 for start, end in ends)


@pytest.mark.parametrize(("name", "make"), [("one.npy", npy), ("one.parquet", parquet)])
def test_a_share_of_the_chunks_costs_a_share_of_the_bytes(s3: Server, name: str, make: Callable) -> None:
    data = make(X)
    source = open_vectors(s3.put(name, data), column="embedding" if "parquet" in name else None)
    assert bytes_sent(s3, name) < len(data) / 2  # opened, not downloaded
    s3.requests.clear()
    rows = sum(len(block.x) for block in source.blocks(wanted=lambda chunk: chunk == 1))
    assert 5_000 <= rows <= 8_192
    assert bytes_sent(s3, name) < 0.6 * len(data)


def test_folders_and_globs_are_found_with_the_keys_of_a_disk(s3: Server) -> None:
    for part, name in enumerate(("deep/b.npy", "a.npy", "c.txt")):
        s3.put(f"tree/{name}", npy(X[part * 10 : part * 10 + 10]))
    folder = open_vectors("s3://bucket/tree")
    assert folder.rows == 20
    assert np.array_equal(np.concatenate([block.x for block in folder.blocks()]), np.concatenate([X[10:20], X[:10]]))
    assert open_vectors("s3://bucket/tree/*.npy").rows == 10
    assert open_vectors("s3://bucket/tree/**/*.npy").rows == 20
    assert open_vectors(["s3://bucket/tree/a.npy", "s3://bucket/tree/deep/b.npy"]).rows == 20


def test_texts_read_as_on_disk(s3: Server, tmp_path: Path) -> None:
    texts = [f"The {k}th text, in a few words." for k in range(30)]
    forms = {
        "lines.txt": "\n".join(texts).encode(),
        "lines.txt.gz": gzip.compress("\n".join(texts).encode()),
        "rows.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in texts).encode(),
        "rows.csv": ("text\n" + "".join(f'"{text}"\n' for text in texts)).encode(),
        "rows.parquet": parquet(X[:30]),
        "rows.arrow": arrow(X[:30]),
    }
    for name, data in forms.items():
        (tmp_path / name).write_bytes(data)
        documents = "lines" if "lines" in name else None
        there = open_places([s3.put(f"texts/{name}", data)], "text", documents=documents)
        here = open_places([tmp_path / name], "text", documents=documents)
        assert list(there) == list(here), name
        assert len(list(there)) == 30, name
    assert len(list(open_places(["s3://bucket/texts/rows.jsonl", "s3://bucket/texts/rows.csv"], "text"))) == 60


def test_busy_answers_are_tried_again(s3: Server) -> None:
    source = open_vectors(s3.put("busy.npy", npy(X)))
    s3.unwell = 2
    assert sum(len(block.x) for block in source.blocks()) == len(X)
    assert s3.unwell == 0


def test_an_object_that_changes_during_a_pass_is_refused(s3: Server) -> None:
    source = open_vectors(s3.put("moving.npy", npy(X)))
    before = source.fingerprint()
    blocks = source.blocks(1_000)
    next(blocks)
    s3.put("moving.npy", npy(X[::-1]))
    with pytest.raises(InputError, match="changed while it was read"):
        list(blocks)
    assert open_vectors("s3://bucket/moving.npy").fingerprint() != before
    s3.put("moving.npy", npy(X))
    assert open_vectors("s3://bucket/moving.npy").fingerprint() == before


REFUSED = {
    "s3://bucket/none.npy": "no such object or folder",
    "s3://nowhere/x.npy": "no such bucket",
    "s3://": "not a URL of an object",
}


@pytest.mark.parametrize("url", REFUSED)
def test_what_is_not_there_is_named(s3: Server, url: str) -> None:
    with pytest.raises(AnisoscopeError, match=REFUSED[url]) as caught:
        open_vectors(url)
    assert caught.value.where == url or url == "s3://"


def test_wrong_credentials_and_a_wrong_address_say_what_to_do(s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = s3.put("mine.npy", npy(X[:10]))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    with pytest.raises(InputError, match="refuses access") as caught:
        open_vectors(url)
    assert "AWS_ACCESS_KEY_ID" in (caught.value.do or "")
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "1")
    assert open_vectors(url).rows == 10
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(clients, "ATTEMPTS", 1)
    with pytest.raises(InputError, match="cannot be reached") as caught:
        open_vectors(url)
    assert "AWS_ENDPOINT_URL" in (caught.value.do or "")


def test_azure_without_an_account_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT", raising=False)
    with pytest.raises(UsageError, match="AZURE_STORAGE_ACCOUNT"):
        open_vectors("az://container/x.npy")
