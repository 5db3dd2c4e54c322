"""`--spectrum` decides at which sites the second moment is kept, and nowhere else changes a number."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2Model

import anisoscope
from anisoscope.errors import UsageError
from anisoscope.models.byte_tokenizer import ByteTokenizer

TEXTS = [f"text number {k}, which has a few words" for k in range(6)]
SITES = ["embeddings", "block.0", "block.1", "block.2", "block.3", "final_norm"]
WANTED = {"all": SITES, "every:2": ["block.0", "block.2", "final_norm"], "last": ["final_norm"], "none": []}


def measured(spectrum: object) -> dict[tuple[str | None, str], float | None]:
    torch.manual_seed(0)
    module = GPT2Model(GPT2Config(n_embd=16, n_layer=4, n_head=2, vocab_size=300, n_positions=64))
    found = anisoscope.measure(module, TEXTS, processor=ByteTokenizer(300), neighbours=False, spectrum=spectrum)
    return {(row.site, row.metric): row.value for row in found.rows if row.positions == "all" and row.at is None}


def test_only_the_sites_that_are_asked_for_have_a_spectrum() -> None:
    found = {word: measured(word) for word in WANTED}
    for word, sites in WANTED.items():
        assert [site for site in SITES if (site, "isoscore") in found[word]] == sites, word
        assert all(found["all"][key] == value for key, value in found[word].items()), word
    assert measured(False) == found["none"]
    assert measured(True) == found["all"]


@pytest.mark.parametrize("word", ["every:0", "every", "first", "every:-1", 3])
def test_other_words_are_refused(word: object) -> None:
    with pytest.raises(UsageError, match="every:4"):
        measured(word)
