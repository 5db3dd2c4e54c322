"""Tokenizers that are elsewhere, that are bytes, or that are not there at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import ByT5Tokenizer

import zoo
from anisoscope.errors import InputError, ModelError, UsageError
from anisoscope.inputs.sources import Document, MemorySource
from anisoscope.models.batches.plan import Batches, make_batches
from anisoscope.models.byte_tokenizer import ByteTokenizer
from anisoscope.models.open import OpenModel, open_model
from anisoscope.models.processors import vocabulary_rows


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A BERT checkpoint without its tokenizer."""
    return zoo.save("bert", tmp_path / "bare", with_processor=False)


class Ids(list[Any]):
    """A source of documents that are token ids."""

    modality, name = "text", "ids"


def batches_of(model: OpenModel, *documents: tuple[int, ...], **options: Any) -> Batches:
    items = Ids(SimpleNamespace(key=f"d{k}", text="", ids=ids) for k, ids in enumerate(documents))
    return make_batches(model, items, **options)  # type: ignore[arg-type]


def of_text(model: OpenModel, text: str) -> Batches:
    return make_batches(model, MemorySource([Document("0", text)], modality="text", name="test"))


def first_ids(batches: Batches) -> list[int]:
    return next(iter(batches))[1].inputs["input_ids"][0].tolist()


def test_a_tokenizer_from_another_folder(bare: Path, tmp_path: Path) -> None:
    tokenizer = zoo.processor("bert")
    tokenizer.save_pretrained(tmp_path / "words")
    opened = open_model(bare, tokenizer=tmp_path / "words")
    assert opened.processor("similar things")["input_ids"] == tokenizer("similar things")["input_ids"]


def test_a_tokenizer_by_its_hub_id_comes_from_the_mirror(bare: Path, tmp_path: Path) -> None:
    zoo.processor("bert").save_pretrained(tmp_path / "owner" / "words")
    opened = open_model(bare, tokenizer="owner/words", models_dir=tmp_path)
    assert first_ids(of_text(opened, "similar")) == zoo.processor("bert")("similar")["input_ids"]


@pytest.mark.parametrize("damage", [lambda text: text[:-20], lambda text: text[:-2] + ',"more":1}', lambda text: "[]"])
def test_a_damaged_tokenizer_is_named(damage: Callable[[str], str], bare: Path, tmp_path: Path) -> None:
    zoo.processor("bert").save_pretrained(tmp_path / "words")
    file = tmp_path / "words" / "tokenizer.json"
    file.write_text(damage(file.read_text()))
    with pytest.raises(ModelError, match="not a tokenizer that transformers can open"):
        open_model(bare, tokenizer=tmp_path / "words")
    zoo.processor("bert").save_pretrained(bare)
    (bare / "tokenizer.json").write_text(file.read_text())
    with pytest.raises(ModelError, match="no usable tokenizer"):
        of_text(open_model(bare), "similar things")


def test_a_folder_that_holds_no_tokenizer_is_refused(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="tokenizer"):
        open_model(bare, tokenizer=tmp_path / "empty")
    with pytest.raises(ModelError, match="no such folder"):
        open_model(bare, tokenizer=tmp_path / "nowhere")


def test_a_tokenizer_twice_is_refused(bare: Path) -> None:
    with pytest.raises(UsageError, match="both"):
        open_model(bare, tokenizer="bytes", processor=zoo.processor("bert"))


@pytest.mark.parametrize("how", [bytes, "bytes"])
def test_bytes_are_the_ids_of_byt5(bare: Path, how: Any) -> None:
    opened = open_model(bare, tokenizer=how)
    text = "Ünïcode, 字 and \n"
    expected = ByT5Tokenizer()(text, add_special_tokens=False)["input_ids"]
    assert first_ids(of_text(opened, text)) == expected
    assert open_model(zoo.module("bert"), tokenizer=how).processor(text)["input_ids"] == expected


@pytest.mark.parametrize(("rows", "offset"), [(259, 3), (258, 0), (256, 0)])
def test_bytes_use_the_room_that_there_is(rows: int, offset: int) -> None:
    ids = ByteTokenizer(rows)("".join(map(chr, range(0x800))))["input_ids"]
    assert min(ids) == offset
    assert max(ids) < rows


def test_bytes_need_256_rows() -> None:
    with pytest.raises(ModelError, match=r"too small(.|\n)*255 rows"):
        ByteTokenizer(255)


# --- no tokenizer at all -----------------------------------------------------------------------------------------


def test_a_model_without_a_tokenizer_reads_ids(bare: Path) -> None:
    opened = open_model(bare)
    ((_, batch),) = batches_of(opened, (7, 8, 9, 10, 11), (5, 6), length=3)
    assert sorted(zip(batch.keys, batch.starts, strict=True)) == [("d0", 0), ("d0", 3), ("d1", 0)]
    assert sorted(batch.inputs["input_ids"][batch.valid].tolist()) == [5, 6, 7, 8, 9, 10, 11]
    assert not batch.special.any()


def test_ids_get_no_special_tokens_from_a_tokenizer_either() -> None:
    opened = open_model(zoo.module("bert"), processor=zoo.processor("bert"))
    assert first_ids(batches_of(opened, (7, 8, 9))) == [7, 8, 9]


def test_a_model_without_a_tokenizer_refuses_text(bare: Path) -> None:
    opened = open_model(bare)
    with pytest.raises(ModelError, match=r"tokenizer does not fit(.|\n)*--tokenizer"):
        of_text(opened, "a text")


@pytest.mark.parametrize("wrong", [325, -1, 10**6])
def test_an_id_without_an_embedding_is_refused(wrong: int) -> None:
    opened = open_model(zoo.module("bert"), processor=zoo.processor("bert"))
    with pytest.raises(InputError, match=rf"document d1\n  got:      {wrong}\n(.|\n)*0 to 324"):
        list(batches_of(opened, (1, 2), (3, wrong, 4)))
    list(batches_of(opened, (0, 324)))


def test_a_tokenizer_of_a_larger_vocabulary_is_refused() -> None:
    """Its ids would be beyond the table: a traceback out of the model, or numbers of other rows."""
    module = zoo.module("bert")
    module.resize_token_embeddings(50)
    opened = open_model(module, processor=zoo.processor("bert"))
    with pytest.raises(InputError, match="no embedding"):
        list(of_text(opened, "Two of them are similar."))


def test_the_rows_of_the_table_count_not_what_the_config_says() -> None:
    module = zoo.module("gpt2")
    module.wte = torch.nn.Embedding(17, module.config.n_embd)
    assert vocabulary_rows(module) == 17
    assert vocabulary_rows(zoo.module("canine")) is None


@pytest.mark.parametrize("wrong", [-1, 10**6, 2**40])
def test_a_token_id_beyond_the_vocabulary_is_named(bare: Path, wrong: int) -> None:
    opened = open_model(bare)
    rows = vocabulary_rows(opened.module)
    with pytest.raises(InputError, match=rf"d1\n.*got: +{wrong}\n.*ids from 0 to {(rows or 0) - 1}"):
        list(batches_of(opened, (1, 2, 3), (1, wrong, 3)))
