"""Batches of clips and pictures: lengths, masks, windows and transcripts as the models want them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import zoo
from anisoscope.errors import UsageError
from anisoscope.inputs.sources import MemorySource
from anisoscope.models.batches.plan import Batch, Report, make_batches
from anisoscope.models.open import open_model
from anisoscope.models.stand_ins import processors as stand_in_processors
from models.batches.inputs import LONG, clips, opened, pictures, rows_of

torch.set_num_threads(1)  # the models are tiny: more threads only wait for each other


# -- speech ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wav2vec2", "hubert"])
def test_group_norm_models_get_equal_lengths_and_no_mask(name):
    batches = make_batches(opened(name), clips(8000, 4000, 8000, 4001))
    assert [batch.keys for _, batch in batches] == [["clip 0", "clip 2"], ["clip 3"], ["clip 1"]]
    for _, batch in batches:
        assert batch.inputs.keys() == {"input_values"}
        assert batch.valid.all()


def test_layer_norm_models_are_padded_and_masked():
    model = opened("wav2vec2_stable")
    source = clips(8000, 4000)
    ((_, batch),) = make_batches(model, source)
    assert torch.equal(batch.inputs["attention_mask"].bool(), batch.valid)
    assert batch.valid.sum(1).tolist() == [8000, 4000]
    alone = model.processor(source.items[1].wave, sampling_rate=16000, return_tensors="pt")["input_values"][0]
    torch.testing.assert_close(batch.inputs["input_values"][1, :4000], alone)


def test_conformers_are_not_padded():
    """Their convolutions reach into it, whatever the mask says."""
    batches = make_batches(replace(opened("wav2vec2_stable"), family="wav2vec2-conformer"), clips(8000, 4000))
    assert [batch.keys for _, batch in batches] == [["clip 0"], ["clip 1"]]
    assert "equal length" in batches.protocol["batches"]


def test_long_clips_are_cut_and_short_ends_counted():
    batches = make_batches(opened("wav2vec2"), clips(16000, 8020), length=0.25)
    places = sorted((key, start, len(wave)) for key, start, wave in rows_of(batches))
    assert places == [("clip 0", k, 4000) for k in (0, 4000, 8000, 12000)] + [("clip 1", k, 4000) for k in (0, 4000)]
    assert batches.report == Report(documents=2, windows=6, tokens=6 * 13, too_short=1)


def test_speech_is_brought_to_the_rate_of_the_model():
    batch = next(iter(make_batches(opened("wav2vec2"), clips(44100, rate=44100))))[1]
    assert batch.inputs["input_values"].shape == (1, 16000)


def test_whisper_hears_a_full_window_of_mel_frames():
    model = opened("whisper")
    source = clips(8000, 32000, 40000)
    batches = make_batches(model, source)
    ((_, batch),) = batches
    assert batch.inputs["input_features"].shape == (4, 16, 200)
    lengths = dict(zip(zip(batch.keys, batch.starts, strict=True), batch.valid.sum(1).tolist(), strict=True))
    assert lengths == {("clip 0", 0): 50, ("clip 1", 0): 200, ("clip 2", 0): 200, ("clip 2", 32000): 50}
    by_hand = model.processor.feature_extractor(source.items[0].wave, sampling_rate=16000, return_tensors="pt")
    row = batch.keys.index("clip 0")
    torch.testing.assert_close(batch.inputs["input_features"][row], by_hand["input_features"][0])


def decoder_rows(batch: Batch) -> dict[str, list[int]]:
    valid = batch.decoder_valid
    assert valid is not None
    return {key: batch.inputs["decoder_input_ids"][row][valid[row]].tolist() for row, key in enumerate(batch.keys)}


def test_whisper_reads_its_start_tokens():
    model = opened("whisper")
    batches = make_batches(model, clips(8000, 16000))
    ((_, batch),) = batches
    assert decoder_rows(batch) == dict.fromkeys(("clip 0", "clip 1"), model.processor.tokenizer.prefix_tokens)
    assert batch.decoder_special is not None
    assert batch.decoder_special.all()
    assert batches.protocol["decoder"] == "the start tokens"


def test_whisper_reads_the_transcripts_that_are_given():
    tokenizer = opened("whisper").processor.tokenizer
    said = {"clip 0": "a cloud of vectors", "clip 2": "too long a clip to know where this belongs"}
    batches = make_batches(opened("whisper"), clips(8000, 16000, 40000), transcripts=said)
    ((_, batch),) = batches
    rows = decoder_rows(batch)
    assert rows["clip 0"] == tokenizer("a cloud of vectors")["input_ids"][:-1]  # all but the end of text
    assert rows["clip 1"] == rows["clip 2"] == tokenizer.prefix_tokens
    assert batch.decoder_special is not None
    special = batch.decoder_special[batch.keys.index("clip 0")]
    assert special.nonzero().flatten().tolist() == list(range(len(tokenizer.prefix_tokens)))
    assert "transcript" in batches.protocol["decoder"]


def test_transcripts_beyond_the_decoder_are_cut_and_counted():
    batches = make_batches(opened("whisper"), clips(8000, 8000), transcripts={"clip 1": LONG})
    ((_, batch),) = batches
    assert batch.inputs["decoder_input_ids"].shape == (2, 64)
    assert batches.report.truncated == 1


def test_windows_beyond_whispers_are_refused():
    with pytest.raises(UsageError, match="at most 2 s"):
        make_batches(opened("whisper"), clips(8000), length=3)


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_pictures_go_through_the_processor_in_order():
    model, source = opened("vit"), pictures((40, 50), (60, 30), (33, 33))
    batches = make_batches(model, source)
    ((_, batch),) = batches
    by_hand = model.processor(images=[one.image for one in source.items], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(batch.inputs["pixel_values"], by_hand)
    assert batch.keys == ["picture 0", "picture 1", "picture 2"]
    assert batches.report == Report(documents=3, windows=3, tokens=3 * 4)


def test_the_number_of_pictures_is_known_before_they_are_read():
    class Unread(MemorySource[Any]):
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("a picture was read")

    source = Unread(pictures((8, 8), (8, 8), (8, 8)).items, modality="vision", name="test")
    assert make_batches(opened("vit"), source).total == 3
    assert make_batches(opened("vit"), source, limit=2).total == 2


def test_pictures_of_different_sizes_do_not_share_a_batch():
    processor = stand_in_processors.images("ViT", 32)
    processor.do_resize = False
    model = open_model(zoo.module("resnet"), processor=processor)
    batches = make_batches(model, pictures((32, 32), (32, 32), (64, 32)))
    assert [batch.inputs["pixel_values"].shape[-2:] for _, batch in batches] == [(32, 32), (64, 32)]


def test_pictures_have_no_length():
    with pytest.raises(UsageError, match="not cut into windows"):
        make_batches(opened("vit"), pictures((8, 8)), length=10)
