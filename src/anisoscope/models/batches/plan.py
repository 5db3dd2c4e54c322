"""Turn a source of documents, clips or pictures into batches, by a plan that does not depend on the machine.

Items are read in order and cut into **windows** (`text`, `speech`; a picture is one window). The plan
is the order in which windows run: read order, but sorted by length within each look-ahead of a fixed number of windows,
falling and rising in turn, so that neighbours are of similar length, little is padded, and memory stays constant. A
batch is a run of consecutive windows of the plan that share a form (some models cannot be padded) and fit
`batch_tokens` padded positions.

Since only the cutting depends on `batch_tokens`, the *index* of a batch is the place of its first window in the plan:
a pass that has done the first n windows continues with `start_at=n`, even with another batch size.

A worker that takes a part of the data says which sequences it wants by their keys; the others are passed over before
they are tokenised or resampled.

A position costs one token of text, 20 ms of speech, or 16×16 pixels. Nothing is dropped silently: `report` counts
what was read, empty, too short or cut.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from anisoscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anisoscope.inputs.sources import Source
    from anisoscope.models.open import OpenModel

BATCH_TOKENS = 8192  # 16 windows of 512 tokens
KEPT_BYTES = 1 << 26  # of windows of text, 16 million tokens
_WINDOW_BYTES = 300  # what a window takes beside its tokens

Wanted = Callable[[str], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The inputs of one forward pass, and what its positions are.

    - `keys`, `starts`: for each row its sequence, and where in it the window starts. `starts[row]` plus a position of
      the row never repeats within a sequence.
    - `valid`, `special` (B, T): which positions of the main input are real, which are special tokens. T counts tokens
      of text, samples or mel frames of speech; a picture has one.
    - `decoder_valid`, `decoder_special`: the same of the decoder's input, where there is one.
    - `whole`: every row is all of its sequence: no other window has a part of it.
    - `resume_at`: the place in the plan behind the last window, where a pass continues after this batch.
    """

    inputs: dict[str, Tensor]
    keys: list[str]
    starts: list[int]
    valid: Tensor
    special: Tensor
    decoder_valid: Tensor | None = None
    decoder_special: Tensor | None = None
    resume_at: int = 0
    whole: bool = False

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """What becomes one row of a batch: `length` decides the order, `size` positions the cost, `form` who may share.

    `whole`: it is the only window of its sequence.
    """

    key: str
    start: int
    data: Any
    length: int
    size: int
    form: Hashable = None
    whole: bool = False


@dataclass(frozen=True)
class Report:
    """What became of a source. `documents` are items of any modality, `tokens` positions that windows cost.

    - `empty`: documents without a single token; `too_short`: windows shorter than the model can read;
    - `truncated`: transcripts cut to the length of the decoder.
    """

    documents: int = 0
    windows: int = 0
    tokens: int = 0
    empty: int = 0
    too_short: int = 0
    truncated: int = 0


@dataclass(frozen=True)
class Selection:
    """The items of a source that are wanted, of the first `limit`; iterates like the source."""

    source: Source[Any]
    limit: int | None = None
    wanted: Wanted | None = None

    def __iter__(self) -> Iterator[Any]:
        items = islice(self.source, self.limit)
        return items if self.wanted is None else (item for item in items if self.wanted(item.key))

    @property
    def count(self) -> int | None:
        """How many items there are, if that is known without reading."""
        count = getattr(self.source, "count", None)
        if count is None or self.wanted is not None:
            return None
        return count if self.limit is None else min(count, self.limit)


class Feed(Protocol):
    """What a modality has to know: how items become windows, and windows a batch.

    `keeps`: its windows are small and cost work, so that they are kept; their `data` begins with an array.
    """

    look_ahead: int
    keeps: bool
    items: Selection
    protocol: dict[str, str]

    def windows(self, tally: Counter[str]) -> Iterator[Window]:
        """The windows in order of reading; counts the fields of `Report` but `windows` and `tokens`."""
        ...

    def collate(self, windows: list[Window]) -> Batch: ...

    def expected(self) -> int | None:
        """The number of windows, if that is known without reading anything."""
        ...


class Batches:
    """The batches of a source in a fixed order; iterating gives (index, batch), and can be done again.

    - `expected`: the number of windows if it is known by now, for a progress bar; reads nothing.
    - `total`: the number of windows; the first question reads the source once, unless a pass was made before. Windows
      of text are kept while they fit into `KEPT_BYTES`, so that a text is tokenised once.
    - `report`: what became of the source; read like `total`.
    - `protocol`: how items were cut and fed, in words.
    """

    def __init__(self, feed: Feed, *, batch_tokens: int) -> None:
        self._feed, self.batch_tokens = feed, batch_tokens
        self._report: Report | None = None
        self._kept: list[Window] | None = None

    @property
    def protocol(self) -> dict[str, str]:
        return dict(self._feed.protocol)

    @property
    def report(self) -> Report:
        if self._report is None:
            for _ in self._windows():
                pass
        assert self._report is not None
        return self._report

    @property
    def expected(self) -> int | None:
        return self._feed.expected() if self._report is None else self._report.windows

    @property
    def total(self) -> int:
        expected = self.expected
        return self.report.windows if expected is None else expected

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        return self.iterate()

    def iterate(self, start_at: int = 0, wanted: Wanted | None = None) -> Iterator[tuple[int, Batch]]:
        """The batches from the `start_at`-th window of the plan on, of those sequences only that are `wanted`.

        The index is a place in the whole plan, whatever is wanted.
        """
        plan = enumerate(_sorted_within(self._windows(), self._feed.look_ahead))
        chosen = (
            (place, window) for place, window in islice(plan, start_at, None) if wanted is None or wanted(window.key)
        )
        for group in _cut(chosen, self.batch_tokens):
            batch = self._feed.collate([window for _, window in group])
            whole = all(window.whole for _, window in group)
            yield group[0][0], replace(batch, resume_at=group[-1][0] + 1, whole=whole)

    def _windows(self) -> Iterator[Window]:
        """All windows in order of reading, counted; the report stands when the last is out."""
        if self._kept is not None:
            yield from self._kept
            return
        tally: Counter[str] = Counter()
        kept: list[Window] | None = [] if self._feed.keeps else None
        size = 0
        for window in self._feed.windows(tally):
            tally["windows"] += 1
            tally["tokens"] += window.size
            if kept is not None:
                kept.append(window)
                size += window.data[0].nbytes + _WINDOW_BYTES
                kept = kept if size <= KEPT_BYTES else None
            yield window
        if not tally["windows"] and self._feed.items.wanted is None:
            raise InputError("there is nothing to measure", got=", ".join(f"{n} {name}" for name, n in tally.items()))
        self._report, self._kept = Report(**tally), kept


def make_batches(
    model: OpenModel,
    source: Source[Any],
    *,
    length: float | None = None,
    batch_tokens: int | None = None,
    limit: int | None = None,
    transcripts: Mapping[str, str] | None = None,
    wanted: Wanted | None = None,
    first: bool = False,
) -> Batches:
    """Batches of a source for a model of the same modality.

    - `length`: of a window, in tokens, its special tokens included (default 512 or the model's limit), or in seconds
      (default 30 or the model's window). Pictures have none.
    - `batch_tokens`: at most this many padded positions in a batch (default 8192), but at least one window.
    - `limit`: at most this many documents, clips or pictures, wanted or not.
    - `wanted`: which of them, by their keys; the report counts these only. None of them may be wanted.
    - `first`: only the first window of each document, where whole texts are looked at.
    - `transcripts`: for encoder-decoders of speech, the text of clips by key; else the decoder reads its start tokens.
    """
    if source.modality != model.modality:
        raise UsageError(
            "the model reads another modality than the data has",
            where=model.name,
            got=source.modality,
            expected=model.modality,
        )
    for name, value in (("length", length), ("batch_tokens", batch_tokens), ("limit", limit)):
        if value is not None and value <= 0:
            raise UsageError(f"`{name}` must be positive", got=value)
    feed = _feed(model, Selection(source, limit, wanted), length, transcripts, first)
    return Batches(feed, batch_tokens=BATCH_TOKENS if batch_tokens is None else batch_tokens)


def _feed(
    model: OpenModel, items: Selection, length: float | None, transcripts: Mapping[str, str] | None, first: bool
) -> Feed:
    if transcripts is not None and model.modality != "speech":
        raise UsageError("transcripts belong to speech", got=f"a model of {model.modality}")
    if model.modality == "text":
        from anisoscope.models.batches.text import TextFeed

        return TextFeed(model, items, length=length, first=first)
    if model.modality == "speech":
        from anisoscope.models.batches.speech import SpeechFeed

        return SpeechFeed(model, items, seconds=length, transcripts=transcripts or {})
    if length is not None:
        raise UsageError("pictures are not cut into windows", got=f"length {length}", do="leave out the length")
    from anisoscope.models.batches.images import ImageFeed

    return ImageFeed(model, items)


def main_input(module: Any) -> str:
    """The name of the argument that a model reads its input from: what it says, or the first of its `forward`."""
    return getattr(module, "main_input_name", None) or next(iter(inspect.signature(module.forward).parameters))


def _sorted_within(windows: Iterator[Window], look_ahead: int) -> Iterator[Window]:
    """The windows sorted by length within each `look_ahead` of them, first falling, then rising, and so on."""
    falling = True
    while some := list(islice(windows, look_ahead)):
        yield from sorted(some, key=lambda window: window.length, reverse=falling)
        falling = not falling


def _cut(windows: Iterable[tuple[int, Window]], budget: int) -> Iterator[list[tuple[int, Window]]]:
    """Runs of windows, each with its place, of one form, whose padded size stays within the budget."""
    group: list[tuple[int, Window]] = []
    widest = 0
    for place, window in windows:
        widest = max(widest, window.size)
        if group and (window.form != group[0][1].form or widest * (len(group) + 1) > budget):
            yield group
            group, widest = [], window.size
        group.append((place, window))
    if group:
        yield group
