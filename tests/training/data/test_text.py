"""Windows depend on (seed, number) alone, mask as BERT does, and never train on what is held out."""

from __future__ import annotations

import os

import numpy as np
import pytest

from anisoscope.errors import InputError
from anisoscope.training.data.bytes import FIRST_BYTE, SPECIALS
from anisoscope.training.data.text import FIRST, IGNORED, LAST, MASK, TextData, Windows, mask_tokens, read_corpus
from anisoscope.training.recipe import Recipe


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(256)) * 40)
    return path


def windows(**changes) -> Windows:
    ids = np.arange(5000, dtype=np.uint16)
    options = {"offset": 5, "length": 34, "count": 400, "seed": 1, "vocabulary": 6000, "wrap": True, "mask": 0.15}
    return Windows(ids=ids, **{**options, **changes})


def test_a_window_is_the_same_whenever_it_is_asked_for() -> None:
    stream = windows()
    late = stream[399]
    for _ in range(3):
        stream[7]
    assert all((stream[399][name] == late[name]).all() for name in late)
    assert (windows()[12]["input_ids"] == stream[12]["input_ids"]).all()
    assert not (windows(seed=2)[12]["labels"] == stream[12]["labels"]).all()
    assert not (stream[13]["labels"] == stream[12]["labels"]).all()


def test_masked_windows_are_wrapped_text_with_some_tokens_to_predict() -> None:
    fates = {"masked": 0, "kept": 0, "random": 0}
    for window in (windows()[i] for i in range(400)):
        tokens, labels = window["input_ids"], window["labels"]
        assert (tokens[0], tokens[-1]) == (FIRST, LAST)
        wanted = labels != IGNORED
        assert wanted.sum() == round(0.15 * 32)
        truth = np.where(wanted, labels, tokens)[1:-1]
        assert (np.diff(truth) == 1).all()  # the text is 5, 6, 7, …: labels hold what was hidden
        fates["masked"] += int((tokens[wanted] == MASK).sum())
        fates["kept"] += int((tokens[wanted] == labels[wanted]).sum())
    total = 400 * round(0.15 * 32)
    fates["random"] = total - fates["masked"] - fates["kept"]
    # three standard deviations of a binomial of 2,000 draws
    assert fates["masked"] / total == pytest.approx(0.8, abs=0.027)
    assert fates["random"] / total == pytest.approx(0.1, abs=0.021)


def test_random_replacements_are_never_special() -> None:
    draw = np.random.default_rng(0)
    hidden, _ = mask_tokens(np.full(5000, 7), rate=0.9, vocabulary=9, draw=draw)
    replaced = set(hidden.tolist()) - {MASK}
    assert replaced == {5, 6, 7, 8}
    assert min(replaced) == len(SPECIALS)


def test_causal_windows_ask_for_the_tokens_themselves() -> None:
    window = windows(wrap=False, mask=None)[0]
    assert (window["labels"] == window["input_ids"]).all()
    assert len(window["input_ids"]) == 34


def test_every_place_of_the_text_can_be_drawn() -> None:
    short = Windows(
        ids=np.arange(36, dtype=np.uint8), offset=0, length=34, count=100, seed=0, vocabulary=50, wrap=False, mask=None
    )
    assert {int(short[i]["input_ids"][0]) for i in range(100)} == {0, 1, 2}


def test_the_end_of_every_file_is_held_out(text_file, tmp_path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"x" * 1000)
    corpus = read_corpus([text_file, other], validation=0.1, length=64)
    assert bytes(corpus.training) == text_file.read_bytes()[:-1024] + b"x" * 900
    assert bytes(corpus.held_out) == text_file.read_bytes()[-1024:] + b"x" * 100
    assert corpus.sha256 == read_corpus([str(text_file), other], validation=0.2, length=64).sha256


def test_the_hash_sees_an_edit_that_keeps_size_and_time(text_file) -> None:
    before, times = read_corpus([text_file], validation=0.1, length=64).sha256, text_file.stat()
    text_file.write_bytes(text_file.read_bytes()[::-1])
    os.utime(text_file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert read_corpus([text_file], validation=0.1, length=64).sha256 != before


def test_the_hash_sees_where_one_file_ends(tmp_path) -> None:
    """What is held out is the end of each file, so the same bytes divided otherwise are other data."""
    hashes = set()
    for cut in (1000, 2000):
        (tmp_path / "a").write_bytes(b"a" * cut)
        (tmp_path / "b").write_bytes(b"a" * (4000 - cut))
        hashes.add(read_corpus([tmp_path / "a", tmp_path / "b"], validation=0.1, length=64).sha256)
    assert len(hashes) == 2


def test_tokens_that_were_left_behind_are_those_of_the_same_vocabulary_and_split(text_file, tmp_path) -> None:
    """A kill may leave tokens without a recipe beside them; another recipe does not take them for its own."""
    small = Recipe(data=[str(text_file)], tokens="bpe", vocabulary=300, length=16)
    ids = {len(TextData.open(small.model_copy(update=changes), tmp_path).ids) for changes in CHANGES}
    assert len(ids) == len(CHANGES)


CHANGES = ({}, {"vocabulary": 400}, {"validation": 0.3})


@pytest.mark.parametrize("tokens", ["bytes", "bpe"])
def test_text_data_of_a_recipe(text_file, tmp_path, tokens: str) -> None:
    recipe = Recipe(data=[str(text_file)], tokens=tokens, vocabulary=300, length=16, batch=3, steps=4)
    data = TextData.open(recipe, tmp_path)
    assert len(data.training(0)) == 12
    assert data.sizes == {"vocabulary": len(data.processor)}
    assert len(data.processor) == (261 if tokens == "bytes" else 300)
    window = data.held_out()[0]
    assert window["input_ids"].shape == (16,)
    assert window["input_ids"].max() < len(data.processor)
    assert window["labels"].max() >= FIRST_BYTE


def test_text_that_cannot_be_used_is_named(tmp_path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_bytes(b"abc" * 10)
    for name, reason in (("absent", "exists"), ("empty", "not empty"), ("short", "at least 64")):
        with pytest.raises(InputError, match=reason):
            read_corpus([tmp_path / name], validation=0.1, length=64)
