"""A model in an object store opens like the same folder on disk; what arrives is compared with what is there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel

from anisoscope.errors import ModelError
from anisoscope.inputs.stores.objects import StoredObject
from anisoscope.models import mirrors
from anisoscope.models.fingerprint import fingerprint
from anisoscope.models.locate import locate
from anisoscope.models.open import open_model
from store_servers import Store


def publish(server: Store, folder: Path, name: str) -> str:
    for file in folder.iterdir():
        server.put(f"{name}/{file.name}", file.read_bytes())
    return f"s3://bucket/{name}"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    config = BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=300
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder, max_shard_size="30KB")  # several files and their index
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    return folder


def test_a_sharded_model_of_a_store_is_that_of_the_disk(s3: Store, bert: Path) -> None:
    url = publish(s3, bert, "models/bert")
    there = open_model(url, tokenizer=bytes)
    here = open_model(bert, tokenizer=bytes)
    assert there.name == "bert"
    assert fingerprint(url).digest == fingerprint(bert).digest
    for a, b in zip(there.module.parameters(), here.module.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_mirror_may_lie_in_a_store(s3: Store, bert: Path) -> None:
    publish(s3, bert, "mirror/owner/name@step5")
    place = locate("owner/name", revision="step5", models_dir="s3://bucket/mirror")
    assert place.path is not None
    assert {file.name for file in place.path.iterdir()} == {file.name for file in bert.iterdir()}
    assert locate("owner/name", models_dir="s3://bucket/mirror").kind == "hub"


def test_what_is_in_the_cache_is_not_fetched_again_until_it_changes(s3: Store, bert: Path) -> None:
    url = publish(s3, bert, "models/again")
    first = mirrors.fetch_folder(url)
    s3.forget()
    assert mirrors.fetch_folder(url) == first
    assert not [path for method, path, _ in s3.requests if method == "GET" and "list-type" not in path]
    s3.put("models/again/config.json", (bert / "config.json").read_bytes() + b"\n")
    assert mirrors.fetch_folder(url) != first


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "shorter": lambda data: data[:-1],
    "flipped": lambda data: data[:-1] + b"?",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_what_arrives_damaged_is_refused(s3: Store, bert: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    url = publish(s3, bert, f"models/{how}")
    stamp = StoredObject.stamp
    config = (bert / "config.json").read_bytes()
    s3.put(f"models/{how}/config.json", DAMAGE[how](config))

    def as_before(one: StoredObject) -> mirrors.Mark:
        mark = stamp(one)
        if not one.url.endswith("/config.json"):
            return mark
        s3.put("models/good.json", config)
        return dataclasses.replace(stamp(StoredObject("s3://bucket/models/good.json")), changed=mark.changed)

    monkeypatch.setattr(StoredObject, "stamp", as_before)
    with pytest.raises(ModelError, match="not what the store holds"):
        mirrors.fetch_folder(url)
    assert not list(mirrors.cache().glob("*/*"))


def test_a_folder_without_a_model_is_named(s3: Store) -> None:
    s3.put("empty/notes.txt", b"nothing here")
    with pytest.raises(ModelError, match=r"got:      notes.txt"):
        locate("s3://bucket/empty")
    with pytest.raises(ModelError, match=r"no model in this folder|no such folder"):
        locate("s3://bucket/none")
