"""A part of the data: which sequences are read, what the report counts, and that a text is tokenised once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import zoo
from anisoscope.errors import InputError
from anisoscope.inputs.sources import Clip, Document, MemorySource, Picture
from anisoscope.models.batches import plan
from anisoscope.models.batches.plan import Batch, Batches, make_batches
from anisoscope.models.open import OpenModel, open_model

torch.set_num_threads(1)  # the models are tiny: more threads only wait for each other
TEXTS = [f"text number {k} says " + "more and " * (7 * k % 11) for k in range(30)]


@cache
def opened(name: str) -> OpenModel:
    return open_model(zoo.module(name), processor=zoo.processor(name))


def source(modality: str) -> MemorySource[Any]:
    rng = np.random.default_rng(0)
    items: list[Any] = {
        "text": lambda: [Document(str(k), text) for k, text in enumerate(TEXTS)],
        "speech": lambda: [Clip(str(k), rng.standard_normal(4000, dtype=np.float32), 16000) for k in range(6)],
        "vision": lambda: [
            Picture(str(k), Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8))) for k in range(6)
        ],
    }[modality]()
    return MemorySource(items, modality=modality, name="test")  # type: ignore[arg-type]


def even(key: str) -> bool:
    return int(key) % 2 == 0


def contents(batches: Batches, **options: Any) -> dict[tuple[str, int], torch.Tensor]:
    """What each window holds, by sequence and start."""
    found = {}
    for _, batch in batches.iterate(**options):
        for row, place in enumerate(zip(batch.keys, batch.starts, strict=True)):
            main = next(iter(batch.inputs.values()))[row]
            found[place] = main[batch.valid[row]] if main.dim() < 3 else main
    return found


@pytest.mark.parametrize("name", ["bert", "wav2vec2", "vit"])
def test_the_parts_are_the_whole(name: str) -> None:
    model = opened(name)
    data = source(model.modality)
    whole = make_batches(model, data)
    parts = [make_batches(model, data, wanted=wanted) for wanted in (even, lambda key: not even(key))]
    expected, found = contents(whole), [contents(part) for part in parts]
    assert not found[0].keys() & found[1].keys()
    assert _equal(found[0] | found[1], expected)
    for field in vars(whole.report):
        assert sum(getattr(part.report, field) for part in parts) == getattr(whole.report, field), field
    assert parts[0].total == parts[0].report.windows


def _equal(a: dict[Any, torch.Tensor], b: dict[Any, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_the_limit_counts_what_is_not_wanted_too() -> None:
    batches = make_batches(opened("bert"), source("text"), limit=7, wanted=even)
    assert {key for key, _ in contents(batches)} == {"0", "2", "4", "6"}
    assert batches.report.documents == 4


def test_a_part_may_be_empty_the_whole_may_not() -> None:
    batches = make_batches(opened("bert"), source("text"), wanted=lambda key: False)
    assert list(batches) == []
    assert batches.report == plan.Report()
    assert batches.total == 0
    nothing = MemorySource([Document("0", "")], modality="text", name="test")
    with pytest.raises(InputError, match="nothing to measure"):
        list(make_batches(opened("bert"), nothing))


def counted(monkeypatch: pytest.MonkeyPatch, model: OpenModel) -> Counter[str]:
    """How often each text is tokenised from now on."""
    texts: Counter[str] = Counter()
    tokenise = type(model.processor).__call__

    def count(self: Any, text: str, *args: Any, **options: Any) -> Any:
        texts[text] += 1
        return tokenise(self, text, *args, **options)

    monkeypatch.setattr(type(model.processor), "__call__", count)
    return texts


def test_what_is_not_wanted_is_not_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = counted(monkeypatch, opened("bert"))
    list(make_batches(opened("bert"), source("text"), wanted=even))
    assert set(texts) & set(TEXTS) == set(TEXTS[::2])


@pytest.mark.parametrize("ask", [lambda batches: batches.total, lambda batches: batches.report, list])
def test_a_text_is_tokenised_once(ask: Callable[[Batches], object], monkeypatch: pytest.MonkeyPatch) -> None:
    texts = counted(monkeypatch, opened("bert"))
    batches = make_batches(opened("bert"), source("text"), batch_tokens=64)
    ask(batches)
    first = contents(batches)
    assert _equal(first, contents(make_batches(opened("bert"), source("text"), batch_tokens=64)))
    assert {texts[text] for text in TEXTS} == {2}  # once by each of the two


def test_more_than_memory_should_hold_is_tokenised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "KEPT_BYTES", 3000)
    texts = counted(monkeypatch, opened("bert"))
    batches = make_batches(opened("bert"), source("text"))
    assert batches.expected is None
    assert batches.total == batches.expected == len(TEXTS)
    first, second = contents(batches), contents(batches)
    assert _equal(first, second)
    assert {texts[text] for text in TEXTS} == {3}


# --- a filter on the plan ----------------------------------------------------------------------------------------


def test_a_filter_on_the_plan_leaves_places_as_they_are() -> None:
    batches = make_batches(opened("bert"), source("text"), batch_tokens=64)
    place = {key: index + row for index, batch in batches for row, key in enumerate(batch.keys)}
    seen: list[str] = []
    for index, batch in batches.iterate(start_at=5, wanted=even):
        assert index == place[batch.keys[0]]
        assert batch.resume_at == place[batch.keys[-1]] + 1
        seen += batch.keys
    assert seen == [key for key, at in place.items() if at >= 5 and even(key)]


def test_whoever_resumes_behind_a_batch_misses_and_repeats_nothing() -> None:
    batches = make_batches(opened("bert"), source("text"), batch_tokens=64)
    all_keys = [key for _, batch in batches.iterate(wanted=even) for key in batch.keys]
    first: Batch = next(iter(batches.iterate(wanted=even)))[1]
    rest = [key for _, batch in batches.iterate(first.resume_at, wanted=even) for key in batch.keys]
    assert [*first.keys, *rest] == all_keys


def test_windows_of_funnel_are_never_padded() -> None:
    """It pools neighbours: padding would be pooled with the last token, and nothing could say which states are real."""
    import transformers

    config = transformers.FunnelConfig(block_sizes=[1, 1], d_model=16, n_head=2, d_head=8, d_inner=32, vocab_size=325)
    model = open_model(transformers.FunnelModel(config), processor=zoo.processor("bert"))
    batches = make_batches(model, source("text"))
    assert all(bool(batch.valid.all()) for _, batch in batches)
    assert {len(batch) for _, batch in batches} != {1}
