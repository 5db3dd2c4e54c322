"""Vectors and texts of real object stores on this machine are those of the same files on disk."""

from __future__ import annotations

import base64
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
from inputs.stores.conftest import AnyStore
from store_servers import S3, Azure, Google, HuggingFace

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
def test_every_form_reads_as_on_disk(store: AnyStore, tmp_path: Path, name: str) -> None:
    data = FORMS[name]()
    (tmp_path / name).write_bytes(data)
    column = "embedding" if name.endswith((".parquet", ".arrow")) else None
    there = open_vectors(store.put(f"forms/{name}", data), column=column)
    here = open_vectors(tmp_path / name, column=column)
    for wanted in (None, lambda chunk: chunk == 1):
        mine, theirs = (list(source.blocks(3_000, wanted=wanted)) for source in (there, here))
        assert [block.start for block in mine] == [block.start for block in theirs]
        assert all(np.array_equal(a.x, b.x) and a.x.dtype == b.x.dtype for a, b in zip(mine, theirs, strict=True))
    assert there.chunks == here.chunks
    assert there.name == here.name


def bytes_sent(store: AnyStore, name: str) -> int:
    asked = [found for method, path, found in store.requests if method == "GET" and name in path]
    ends = [found.removeprefix("bytes=").split("-") for found in asked if found]
    return sum(int(end) - int(start) + 1 for start, end in ends)


@pytest.mark.parametrize(("name", "make"), [("one.npy", npy), ("one.parquet", parquet)])
def test_a_share_of_the_chunks_costs_a_share_of_the_bytes(store: AnyStore, name: str, make: Callable) -> None:
    data = make(X)
    source = open_vectors(store.put(name, data), column="embedding" if "parquet" in name else None)
    assert bytes_sent(store, name) < len(data) / 2  # opened, not downloaded
    store.forget()
    rows = sum(len(block.x) for block in source.blocks(wanted=lambda chunk: chunk == 1))
    assert 5_000 <= rows <= 8_192
    assert bytes_sent(store, name) < 0.6 * len(data)


def test_folders_and_globs_are_found_with_the_keys_of_a_disk(store: AnyStore) -> None:
    for part, name in enumerate(("deep/b.npy", "a.npy", "c.txt")):
        store.put(f"tree/{name}", npy(X[part * 10 : part * 10 + 10]))
    folder = open_vectors(f"{store.root}/tree")
    assert folder.rows == 20
    assert np.array_equal(np.concatenate([block.x for block in folder.blocks()]), np.concatenate([X[10:20], X[:10]]))
    assert open_vectors(f"{store.root}/tree/*.npy").rows == 10
    assert open_vectors(f"{store.root}/tree/**/*.npy").rows == 20
    assert open_vectors([f"{store.root}/tree/a.npy", f"{store.root}/tree/deep/b.npy"]).rows == 20


def test_texts_read_as_on_disk(store: AnyStore, tmp_path: Path) -> None:
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
        there = open_places([store.put(f"texts/{name}", data)], "text", documents=documents)
        here = open_places([tmp_path / name], "text", documents=documents)
        assert list(there) == list(here), name
        assert len(list(there)) == 30, name
    assert len(list(open_places([f"{store.root}/texts/rows.jsonl", f"{store.root}/texts/rows.csv"], "text"))) == 60


def test_busy_answers_are_tried_again(store: AnyStore) -> None:
    source = open_vectors(store.put("busy.npy", npy(X)))
    store.unwell = 2
    assert sum(len(block.x) for block in source.blocks()) == len(X)
    assert store.unwell == 0


def test_an_object_that_changes_during_a_pass_is_refused(store: AnyStore) -> None:
    source = open_vectors(store.put("moving.npy", npy(X)))
    before = source.fingerprint()
    blocks = source.blocks(1_000)
    next(blocks)
    store.put("moving.npy", npy(X[::-1]))
    with pytest.raises(InputError, match="changed while it was read"):
        list(blocks)
    assert open_vectors(f"{store.root}/moving.npy").fingerprint() != before
    store.put("moving.npy", npy(X))
    again = open_vectors(f"{store.root}/moving.npy").fingerprint()
    assert (again == before) != isinstance(store, Azure)  # whose ETag is of the writing, not of the contents


REFUSED = {"none.npy": "no such object or folder", "none/": "no such object", "none/*.npy": "no such object"}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_there_is_named(store: AnyStore, name: str) -> None:
    store.put("there.npy", npy(X[:10]))
    with pytest.raises(UsageError, match=REFUSED[name]) as caught:
        open_vectors(f"{store.root}/{name}")
    assert str(caught.value.where).startswith(f"{store.root}/none")


def test_a_bucket_that_is_not_there_is_named(store: AnyStore) -> None:
    url = store.root.removesuffix("bucket") + "nowhere/x.npy"
    with pytest.raises(AnisoscopeError, match=r"no such (bucket|object)") as caught:
        open_vectors(url)
    assert caught.value.where == url


def test_half_a_url_is_refused() -> None:
    with pytest.raises(AnisoscopeError, match="not a URL of an object"):
        open_vectors("s3://")


WRONG_KEY = {
    S3: ("AWS_ACCESS_KEY_ID", "somebody"),
    Azure: ("AZURE_STORAGE_KEY", base64.b64encode(b"somebody").decode()),
}


def test_wrong_credentials_say_what_to_set(store: AnyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    if type(store) not in WRONG_KEY:
        pytest.skip("this server asks for no credentials")
    url = store.put("mine.npy", npy(X[:10]))
    name, value = WRONG_KEY[type(store)]
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="refuses access") as caught:
        open_vectors(url)
    assert name in (caught.value.do or "")
    if isinstance(store, S3):
        monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "1")
        assert open_vectors(url).rows == 10


def test_a_refusal_of_the_hub_names_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with HuggingFace() as store:
        url = store.put("mine.npy", npy(X[:10]))
        monkeypatch.setenv("HF_ENDPOINT", store.hub.url)
        store.hub.mood = lambda asked: 403
        with pytest.raises(InputError, match="refuses access") as caught:
            open_vectors(url)
    assert "HF_TOKEN" in (caught.value.do or "")


ADDRESS = {
    S3: "AWS_ENDPOINT_URL",
    Azure: "AZURE_STORAGE_ENDPOINT",
    Google: "STORAGE_EMULATOR_HOST",
    HuggingFace: "HF_ENDPOINT",
}


def test_a_wrong_address_says_what_to_set(store: AnyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    url = store.put("mine.npy", npy(X[:10]))
    monkeypatch.setenv(ADDRESS[type(store)], "http://127.0.0.1:9")
    monkeypatch.setattr(clients, "ATTEMPTS", 1)
    monkeypatch.setattr(clients, "PATIENCE", 1)
    with pytest.raises(InputError, match="cannot be reached") as caught:
        open_vectors(url)
    assert ADDRESS[type(store)] in (caught.value.do or "")


def test_azure_without_an_account_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT", raising=False)
    with pytest.raises(UsageError, match="AZURE_STORAGE_ACCOUNT"):
        open_vectors("az://container/x.npy")
