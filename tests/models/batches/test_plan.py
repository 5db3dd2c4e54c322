"""Batches hold every token once, in an order that no batch size changes, prepared as the model's processor would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import zoo
from anisoscope.errors import InputError, ModelError, UsageError
from anisoscope.inputs.sources import Document
from anisoscope.models.batches.plan import Report, make_batches
from anisoscope.models.batches.text import special_ends
from anisoscope.models.open import open_model
from models.batches.inputs import LONG, PASSAGES, clips, opened, pictures, rows_of, texts

torch.set_num_threads(1)  # the models are tiny: more threads only wait for each other


# -- text --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", zoo.TEXT)
def test_a_short_text_is_what_the_tokenizer_makes_of_it(name):
    model = opened(name)
    (_, batch), *more = make_batches(model, texts("A cloud of vectors"))
    assert not more
    assert (
        batch.inputs["input_ids"][0].tolist()
        == torch.tensor(model.processor("A cloud of vectors")["input_ids"]).tolist()
    )
    assert batch.valid.all()


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "byt5", "character_bert"])
@given(length=st.integers(4, 40), cut=st.integers(0, 60))
@settings(max_examples=10, deadline=None)
def test_windows_cover_every_token_of_a_document_once(name, length, cut):
    model, document = opened(name), LONG[cut:]
    front, back = special_ends(model.processor)
    windows = sorted((start, ids) for _, start, ids in rows_of(make_batches(model, texts(document), length=length)))
    content = []
    for start, ids in windows:
        row = ids.tolist()
        assert len(row) <= length
        assert row[: len(front)] == [list(one) if isinstance(one, tuple) else one for one in front]
        assert row[len(row) - len(back) :] == [list(one) if isinstance(one, tuple) else one for one in back]
        assert start == len(content) + (len(front) + len(back)) * windows.index((start, ids))
        content += row[len(front) : len(row) - len(back)]
    bare = model.processor(document, add_special_tokens=False, verbose=False)["input_ids"]
    assert content == [list(one) if isinstance(one, tuple) else one for one in bare]
    assert all(len(ids) == length for _, ids in windows[:-1])


def test_specials_are_marked():
    batch = next(iter(make_batches(opened("bert"), texts("a cloud of vectors", "a cloud"))))[1]
    tokenizer = opened("bert").processor
    ends = torch.isin(batch.inputs["input_ids"], torch.tensor([tokenizer.cls_token_id, tokenizer.sep_token_id]))
    assert torch.equal(batch.special, ends)
    assert not (batch.special & ~batch.valid).any()


def test_padding_is_on_the_right_with_the_padding_token():
    model = opened("roberta")
    batch = next(iter(make_batches(model, texts(PASSAGES[0], "a cloud"))))[1]
    assert torch.equal(batch.valid, batch.inputs["attention_mask"].bool())
    assert set(batch.inputs["input_ids"][~batch.valid].tolist()) == {model.processor.pad_token_id}
    assert (batch.valid.long().diff(dim=1) <= 0).all()


def test_words_are_padded_with_zeros():
    batch = next(iter(make_batches(opened("character_bert"), texts("two words", "one"))))[1]
    assert batch.inputs["input_ids"].shape == (2, 4, 50)
    assert (batch.inputs["input_ids"][~batch.valid] == 0).all()


@pytest.mark.parametrize("name", ["t5", "byt5"])
def test_the_decoder_reads_the_window_shifted_right(name):
    model: Any = opened(name)
    batch = next(iter(make_batches(model, texts(PASSAGES[0], PASSAGES[1]))))[1]
    shifted = model.module._shift_right(batch.inputs["input_ids"])
    assert batch.decoder_valid is not None
    assert torch.equal(batch.inputs["decoder_input_ids"][batch.decoder_valid], shifted[batch.decoder_valid])
    assert torch.equal(batch.decoder_valid, batch.inputs["decoder_attention_mask"].bool())
    assert torch.equal(batch.decoder_valid.sum(1), batch.valid.sum(1))
    start = torch.arange(shifted.shape[1]) == 0
    assert torch.equal(batch.decoder_special, start.expand_as(shifted))


def test_an_encoder_alone_gets_no_decoder_input():
    batch = next(iter(make_batches(opened("bert"), texts("a cloud"))))[1]
    assert batch.decoder_valid is None
    assert batch.inputs.keys() == {"input_ids", "attention_mask"}


def test_the_default_window_is_512_tokens_or_the_limit_of_the_model():
    text = "a cloud of vectors " * 400
    longest = {
        name: max(len(ids) for _, _, ids in rows_of(make_batches(opened(name), texts(text)))) for name in ("bert", "t5")
    }
    assert longest == {"bert": 128, "t5": 512}


@pytest.mark.parametrize(
    ("length", "word"), [(129, "longer"), (2, "too short"), (0, "positive"), (7.5, "whole number")]
)
def test_impossible_windows_are_refused(length, word):
    with pytest.raises(UsageError, match=word):
        make_batches(opened("bert"), texts("a"), length=length)


def test_canine_windows_share_a_batch_only_at_equal_length():
    batches = make_batches(opened("canine"), texts("abcdef", "ab", "ghijkl", "x"))
    assert sorted(len(batch) for _, batch in batches) == [1, 2]
    assert all(batch.valid.all() for _, batch in batches)
    assert batches.report == Report(documents=4, windows=3, tokens=8 + 8 + 4, too_short=1)


def test_manta_windows_run_alone():
    batches = make_batches(opened("manta"), texts("abcdef", "ghijkl"))
    assert [len(batch) for _, batch in batches] == [1, 1]
    assert "one window at a time" in batches.protocol["batches"]


def test_the_report_counts_what_became_of_the_source():
    batches = make_batches(opened("bert"), texts("a cloud of vectors", "", "a cloud", " \n"), length=4)
    assert batches.report == Report(documents=4, windows=3, tokens=4 + 4 + 4, empty=2)
    assert batches.total == 3 == len(list(rows_of(batches)))


def test_a_limit_counts_documents():
    batches = make_batches(opened("bert"), texts(LONG, LONG, LONG), length=16, limit=2)
    assert {key for key, _, _ in rows_of(batches)} == {"doc 0", "doc 1"}
    assert batches.report.documents == 2


def test_nothing_to_measure_is_an_error():
    with pytest.raises(InputError, match="nothing to measure"):
        list(make_batches(opened("bert"), texts("", " ")))


def test_a_tokenizer_that_cannot_be_read_is_refused():
    with pytest.raises(ModelError, match="special tokens"):
        special_ends(lambda text, add_special_tokens=True: {"input_ids": [1, 2] if add_special_tokens else [3]})


class Unmasked(torch.nn.Module):
    """A network of no library, which takes no mask."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens


def test_a_model_that_takes_no_mask_gets_equal_lengths_by_the_name_of_its_argument():
    model = open_model(Unmasked(), processor=zoo.processor("gpt2"), modality="text")
    batches = list(make_batches(model, texts("a cloud", "of vectors that leaves", "a cloud")))
    assert [sorted(batch.keys) for _, batch in batches] == [["doc 1"], ["doc 0", "doc 2"]]
    assert all(batch.inputs.keys() == {"tokens"} and batch.valid.all() for _, batch in batches)


# -- the plan ----------------------------------------------------------------------------------------------------------

MANY = [" ".join(PASSAGES[k % len(PASSAGES)].split()[: 1 + 7 * k % 13]) for k in range(300)]


@given(batch_tokens=st.integers(1, 600), start_at=st.integers(0, 320))
@settings(max_examples=15, deadline=None)
def test_the_order_of_windows_depends_on_no_batch_size(batch_tokens, start_at):
    reference = [(key, start) for key, start, _ in rows_of(make_batches(opened("gpt2"), texts(*MANY), length=8))]
    batches = make_batches(opened("gpt2"), texts(*MANY), length=8, batch_tokens=batch_tokens)
    assert [(key, start) for key, start, _ in rows_of(batches, start_at)] == reference[start_at:]


def test_an_index_is_the_number_of_windows_before():
    done = 0
    for index, batch in make_batches(opened("gpt2"), texts(*MANY), batch_tokens=50):
        assert index == done
        done += len(batch)


def test_going_on_at_a_batch_gives_the_same_batches():
    batches = make_batches(opened("gpt2"), texts(*MANY), batch_tokens=100)
    whole = list(batches)
    index = whole[5][0]
    for (i, a), (j, b) in zip(whole[5:], batches.iterate(start_at=index), strict=True):
        assert (i, a.keys, a.starts) == (j, b.keys, b.starts)
        assert torch.equal(a.inputs["input_ids"], b.inputs["input_ids"])


@pytest.mark.parametrize(("batch_tokens", "used"), [(40, 0.95), (200, 0.85), (1000, 0.65)])
def test_batches_stay_within_the_budget_and_waste_little(batch_tokens, used):
    batches = make_batches(opened("gpt2"), texts(*MANY), batch_tokens=batch_tokens)
    sizes = [(batch.valid.numel(), int(batch.valid.sum())) for _, batch in batches]
    assert all(padded <= batch_tokens for padded, _ in sizes)
    assert sum(real for _, real in sizes) == batches.report.tokens > used * sum(padded for padded, _ in sizes)


def test_a_window_above_the_budget_runs_alone():
    batches = make_batches(opened("gpt2"), texts(LONG, LONG), length=32, batch_tokens=5)
    assert {len(batch) for _, batch in batches} == {1}


def test_no_more_is_read_ahead_than_the_look_ahead():
    read = 0

    class Endless:
        modality, name = "text", "endless"

        def __iter__(self) -> Iterator[Document]:
            nonlocal read
            for k in range(100_000):
                read += 1
                yield Document(str(k), "a cloud of vectors")

    next(iter(make_batches(opened("gpt2"), Endless(), batch_tokens=100)))  # type: ignore[arg-type]
    assert read <= 128


def test_the_same_source_gives_the_same_batches_again():
    batches = make_batches(opened("bert"), texts(*MANY[:20]))
    assert [a.keys for _, a in batches] == [b.keys for _, b in batches]


# -- what does not fit -------------------------------------------------------------------------------------------------


def test_another_modality_is_refused():
    with pytest.raises(UsageError, match="another modality"):
        make_batches(opened("bert"), clips(8000))


def test_transcripts_belong_to_speech():
    with pytest.raises(UsageError, match="belong to speech"):
        make_batches(opened("bert"), texts("a"), transcripts={})


@pytest.mark.parametrize(("name", "source"), [("wav2vec2", clips(8000)), ("vit", pictures((8, 8)))])
def test_a_missing_processor_is_said(name, source):
    model = open_model(zoo.module(name), processor=object())
    with pytest.raises(ModelError, match="processor="):
        make_batches(model, source)
