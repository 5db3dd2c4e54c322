"""A model is known by its bytes: every file that can change a number counts, and nothing else does."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import zoo
from anisoscope.errors import ModelError
from anisoscope.models import fingerprint as fingerprints
from anisoscope.models import open as opening
from anisoscope.models.fingerprint import fingerprint, module_fingerprint, start_fingerprint, unchanged
from anisoscope.models.open import open_model

COUNTED = (
    "added_tokens.json",
    "config.json",
    "merges.txt",
    "model-00001-of-00002.safetensors",
    "model.safetensors.index.json",
    "modeling_own.py",
    "preprocessor_config.json",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    *("byte_maps.json", "dict.txt", "emoji.json", "entity_vocab.json", "prophetnet.tokenizer", "word_shape.json"),
    "1_Pooling/config.json",
    "2_Dense/model.safetensors",
    "modules.json",
    "sentence_bert_config.json",
)
IGNORED = (
    "README.md",
    "optimizer.pt",
    "training_args.bin",
    "pytorch_model.bin",  # safetensors are read where both are there
    "checkpoint-5/model.safetensors",
    "trainer_state.json",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (*COUNTED, *IGNORED):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"contents of {name}")
    modules = [{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}, {"path": "../elsewhere"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    return tmp_path


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return zoo.save("bert", tmp_path / "bert")


def touch(path: Path, seconds: int = 5) -> None:
    """Another modification time, the same contents."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + seconds * 10**9))


def test_every_file_that_can_change_a_number_is_hashed(folder: Path) -> None:
    found = fingerprint(folder).files
    assert sorted(found) == sorted(COUNTED)
    for name, file in found.items():
        content = (folder / name).read_bytes()
        assert (file.size, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
        assert file.mtime_ns == (folder / name).stat().st_mtime_ns


def test_pickled_weights_count_where_there_are_no_others(tmp_path: Path) -> None:
    for name in ("config.json", "pytorch_model.bin"):
        (tmp_path / name).write_text(name)
    assert sorted(fingerprint(tmp_path).files) == ["config.json", "pytorch_model.bin"]
    (tmp_path / "adapter_model.safetensors").write_text("is not what the library reads")
    assert "pytorch_model.bin" in fingerprint(tmp_path).files


def test_weights_count_by_the_name_that_their_index_gives(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin.index.json").write_text(
        json.dumps({"weight_map": {"a": "part.bin", "b": "part.bin"}})
    )
    (tmp_path / "part.bin").write_text("weights")
    (tmp_path / "training_args.bin").write_text("something else")
    assert set(fingerprint(tmp_path).files) == {"pytorch_model.bin.index.json", "part.bin"}


@pytest.mark.parametrize("name", COUNTED)
def test_the_digest_follows_each_counted_file(folder: Path, name: str) -> None:
    before = fingerprint(folder).digest
    (folder / name).write_text((folder / name).read_text() + "\n ")
    assert fingerprint(folder).digest != before


def test_the_digest_follows_nothing_else(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    before = fingerprint(folder).digest
    for name in IGNORED:
        (folder / name).write_text("other")
    touch(folder / "config.json")
    copy = shutil.copytree(folder, tmp_path_factory.mktemp("copy") / "other name")
    assert fingerprint(folder).digest == fingerprint(copy).digest == before


def test_two_files_that_swap_their_contents_change_the_digest(folder: Path) -> None:
    before = fingerprint(folder).digest
    first, second = folder / "vocab.txt", folder / "merges.txt"
    one, other = first.read_text(), second.read_text()
    first.write_text(other)
    second.write_text(one)
    assert fingerprint(folder).digest != before


def test_a_gguf_file_is_the_model(tmp_path: Path) -> None:
    (tmp_path / "small.gguf").write_bytes(b"GGUF and more")
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    assert list(fingerprint(tmp_path / "small.gguf").files) == ["small.gguf"]


def test_a_record_survives_json_and_names_what_differs(folder: Path) -> None:
    recorded = json.loads(json.dumps(fingerprint(folder).record()))
    assert unchanged(recorded, folder) == []
    (folder / "vocab.txt").write_text("CONTENTS OF VOCAB.TXT"[:21])
    (folder / "merges.txt").unlink()
    (folder / "vocab.json").write_text("{}")
    touch(folder / "config.json")
    touch(folder / "vocab.txt")
    assert unchanged(recorded, folder) == ["merges.txt", "vocab.json", "vocab.txt"]
    shutil.rmtree(folder)
    assert unchanged(recorded, folder) == sorted(recorded)


def test_another_file_of_the_recorded_size_and_modification_time_is_noticed(folder: Path) -> None:
    """As `cp -p` and `rsync -t` leave one. A record of before, without ctime, is compared by contents."""
    recorded, file = fingerprint(folder).record(), folder / "vocab.txt"
    older = {name: {key: part for key, part in of.items() if key != "ctime_ns"} for name, of in recorded.items()}
    assert unchanged(older, folder) == []
    before = file.stat()
    file.write_bytes(file.read_bytes().upper())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert unchanged(recorded, folder) == unchanged(older, folder) == ["vocab.txt"]


def test_files_of_the_recorded_size_and_time_are_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = fingerprint(folder).record()
    touch(folder / "config.json")
    read: list[str] = []
    hashing = fingerprints._hash
    monkeypatch.setattr(fingerprints, "_hash", lambda path, stopped: read.append(path.name) or hashing(path, stopped))
    assert unchanged(recorded, folder) == []
    assert read == ["config.json"]


def test_the_fingerprint_in_the_background_is_the_same(folder: Path) -> None:
    assert start_fingerprint(folder).result() == fingerprint(folder)


def test_a_fingerprint_that_is_given_up_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "CHUNK", 1)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(1 << 22))
    begun = start_fingerprint(tmp_path)
    begun.stop()
    with pytest.raises(ModelError, match="given up"):
        begun.result()


def test_an_open_model_knows_its_files(bert: Path) -> None:
    opened = open_model(bert)
    assert opened.files == fingerprint(bert)
    assert opened.fingerprint == fingerprint(bert).digest


def test_a_module_in_memory_is_known_by_its_weights() -> None:
    module = zoo.module("bert")
    opened = open_model(module, processor=zoo.processor("bert"))
    assert opened.files is None
    assert opened.fingerprint == module_fingerprint(module)
    with torch.no_grad():
        next(module.parameters()).add_(1)
    assert opened.fingerprint == module_fingerprint(module) != module_fingerprint(zoo.module("bert"))


def test_weights_that_change_while_they_are_loaded_are_refused(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = opening.load_weights

    def load_and_change(*args: object, **options: object) -> nn.Module:
        module = load(*args, **options)  # type: ignore[arg-type]
        touch(bert / "model.safetensors")
        return module

    monkeypatch.setattr(opening, "load_weights", load_and_change)
    with pytest.raises(ModelError, match=r"changed while it was being read(.|\n)*wait until it is complete"):
        open_model(bert)


def test_a_file_that_grows_while_it_is_hashed_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hash would be of bytes that no file ever held."""

    class Growing:
        hexdigest = hashlib.sha256().hexdigest

        def update(self, chunk: bytes) -> None:
            if chunk == b"contents of vocab.txt":
                (folder / "vocab.txt").write_bytes(chunk + b", and more")

    monkeypatch.setattr(fingerprints.hashlib, "sha256", Growing)
    with pytest.raises(ModelError, match=r"changed while it was being read(.|\n)*vocab.txt"):
        fingerprint(folder)


def test_a_tokenizer_from_elsewhere_is_part_of_the_model(bert: Path, tmp_path: Path) -> None:
    other = tmp_path / "tokenizer"
    zoo.processor("bert").save_pretrained(other)
    opened = open_model(bert, tokenizer=other)
    assert opened.files is not None
    assert "tokenizer/tokenizer.json" in opened.files.files
    assert "tokenizer.json" not in opened.files.files
    assert unchanged(opened.files.record(), bert, tokenizer=other) == []
    (other / "tokenizer.json").write_text((other / "tokenizer.json").read_text() + " ")
    assert unchanged(opened.files.record(), bert, tokenizer=other) == ["tokenizer/tokenizer.json"]
