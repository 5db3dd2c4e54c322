import numpy as np
import pytest

from anisoscope.inputs.embedded import documents, embedded, plain_prose
from anisoscope.inputs.sources import open_source


@pytest.mark.parametrize("modality", ["text", "speech", "vision"])
def test_every_modality_has_enough_for_a_jackknife_and_is_the_same_each_time(modality):
    source = open_source(None, modality)
    items = list(source)
    assert source.modality == modality
    assert source.count == len(items) >= 24
    assert len({item.key for item in items}) == len(items)
    assert embedded(modality).fingerprint() == source.fingerprint()
    assert source.unreadable == []


def test_topics_are_prose_without_markup():
    texts = {document.key: document.text for document in documents()}
    assert len(texts) > 50
    assert sum(map(len, texts.values())) > 200_000
    assert texts["assert"].startswith('The "assert" statement\n\nAssert statements are a convenient way to insert ')
    lines = [line.strip() for text in texts.values() for line in text.split("\n")]
    assert not [line for line in lines if line.startswith(("+--", "|==", "****", "====", "----"))]


def test_no_passage_is_in_two_documents():
    passages = [{block for block in doc.text.split("\n\n") if len(block) > 100} for doc in documents()]
    assert len(set().union(*passages)) == sum(map(len, passages)) > 500


def test_tables_lose_their_walls():
    table = "+-----+-----+\n| a   | b   |\n|=====|=====|\n| 1   | 2   |\n+-----+-----+\n"
    assert plain_prose(table) == "a  b\n1  2"


def test_clips_are_short_distinct_and_neither_silent_nor_clipped():
    clips = list(embedded("speech"))
    assert len(clips) == 24
    for clip in clips:
        assert clip.rate == 16_000
        assert 1.0 <= len(clip.wave) / clip.rate <= 3.0
        assert np.abs(clip.wave).max() == pytest.approx(0.5, abs=1e-4)
    assert len({clip.wave.tobytes() for clip in clips}) == 24


def test_a_vowel_rings_at_its_formants():
    (clip,) = (clip for clip in embedded("speech") if clip.key == "vowel.heed")
    power = np.abs(np.fft.rfft(clip.wave)) ** 2
    hertz = np.fft.rfftfreq(len(clip.wave), 1 / clip.rate)
    second = (hertz > 1500) & (hertz < 2700)
    assert hertz[second][power[second].argmax()] == pytest.approx(2290, abs=120)


def test_pictures_are_rgb_distinct_and_use_their_range():
    pictures = list(embedded("vision"))
    assert len(pictures) == 48
    assert {(picture.image.mode, picture.image.size) for picture in pictures} == {("RGB", (224, 224))}
    assert len({picture.image.tobytes() for picture in pictures}) == 48
    assert min(np.asarray(picture.image).std() for picture in pictures) > 5
