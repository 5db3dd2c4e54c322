"""What a model is asked while interventions act on it: nothing that it sees already, nothing that it cannot say."""

from __future__ import annotations

from pathlib import Path

import transformers

import zoo
from anisoscope.inputs.sources import open_source
from anisoscope.models.batches.plan import make_batches
from anisoscope.models.open import OpenModel, open_model
from anisoscope.studies.intervene.task import Task, make_task


def task(model: OpenModel) -> Task:
    [(_, batch)] = make_batches(model, open_source(["the cat sat on the mat"], "text"))
    return make_task(model, batch)


def test_a_masked_model_without_a_token_for_the_mask_is_asked_nothing() -> None:
    """It would be asked for the next token, which it sees."""
    network = transformers.BertForMaskedLM(zoo.config("bert"))
    assert task(open_model(network, tokenizer=bytes)).labels is None
    assert task(open_model(network, processor=zoo.processor("bert"))).labels is not None


def test_words_as_characters_are_asked_nothing(tmp_path: Path) -> None:
    model = open_model(zoo.save("character_bert", tmp_path / "model"), head=True)
    assert task(model).labels is None
