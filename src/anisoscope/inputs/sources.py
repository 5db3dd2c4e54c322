"""What a model reads: documents, clips and pictures, and the sources that yield them.

A source can be iterated again and again and yields the same items in the same order. Each item is one *sequence*, the
unit that is sampled independently, and its key names it for the jackknife: keys are relative file names and numbers,
so that they do not depend on the machine. A file that cannot be read is listed in `unreadable` and passed over; only
when nothing at all can be read is that an error, or when a file changes after it was first looked at. `notes` lists
what was read but deserves a remark (silence, rows without text, how a text was split). Both are complete after one
pass.

>>> source = open_source(["To be, or not to be.", "That is the question."], "text")
>>> [document.key for document in source]
['0', '1']
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, cast, get_args, runtime_checkable

import numpy as np

from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.files import FoundFile, Stamp, check_unchanged, digest, file_digests, printable, stamp
from anisoscope.inputs.stores.objects import Mark, is_url

if TYPE_CHECKING:
    from PIL.Image import Image

Modality = Literal["text", "speech", "vision"]


@dataclass(frozen=True, slots=True)
class Document:
    """One text, or the ids of its tokens; then `text` is empty."""

    key: str
    text: str
    ids: tuple[int, ...] | None = None

    def content(self) -> tuple[bytes, ...]:
        text = self.key.encode(), self.text.encode("utf-8", "surrogatepass")
        return text if self.ids is None else (*text, ",".join(map(str, self.ids)).encode())


LOUDEST = 1e4  # 1 is full scale; integers stored as floats go beyond, and so does garbage


def problem_of_samples(samples: np.ndarray) -> str | None:
    """What is wrong with samples that no model survives, or None."""
    loudest = float(np.abs(samples).max(initial=0))
    if not np.isfinite(loudest):
        return "holds samples that are NaN or infinite"
    return f"holds samples of {loudest:.3g}, where full scale is 1" if loudest > LOUDEST else None


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """One sound: mono, float32, nominally within [-1, 1], at `rate` samples per second."""

    key: str
    wave: np.ndarray  # (samples,)
    rate: int

    def __post_init__(self) -> None:
        if self.wave.ndim != 1 or self.wave.dtype != np.float32 or self.rate <= 0:
            got = f"{self.wave.dtype} of shape {self.wave.shape} at rate {self.rate}"
            expected = "a mono float32 wave of shape (samples,) and a positive rate"
            raise UsageError("not a clip", where=self.key, got=got, expected=expected)
        if problem := problem_of_samples(self.wave):
            raise InputError("not a clip", where=self.key, got=problem)

    def content(self) -> tuple[bytes, ...]:
        return self.key.encode(), str(self.rate).encode(), self.wave.astype("<f4").tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """One image: Pillow, mode RGB, upright."""

    key: str
    image: Image

    def content(self) -> tuple[bytes, ...]:
        return self.key.encode(), f"{self.image.mode} {self.image.size}".encode(), self.image.tobytes()


Item = TypeVar("Item", Document, Clip, Picture)
ItemOut = TypeVar("ItemOut", Document, Clip, Picture, covariant=True)


@runtime_checkable
class Source(Protocol[ItemOut]):
    """Re-iterable data of one modality.

    `count` is how many items there are at most, or None when only a pass can tell. `fingerprint()` is the sha256 of
    contents, keys and options: the same wherever the data lies, another as soon as anything changes that could change
    a number.
    """

    @property
    def modality(self) -> Modality: ...
    @property
    def name(self) -> str: ...
    @property
    def count(self) -> int | None: ...
    @property
    def unreadable(self) -> list[tuple[str, str]]: ...
    @property
    def notes(self) -> list[tuple[str, str]]: ...
    def __iter__(self) -> Iterator[ItemOut]: ...
    def fingerprint(self) -> str: ...


class MemorySource(Generic[Item]):
    """Items that are already in memory: a list from Python, standard input, what is embedded."""

    def __init__(self, items: Sequence[Item], *, modality: Modality, name: str) -> None:
        if not items:
            raise InputError(f"there is no {modality} to measure", where=name, got="nothing")
        keys: set[str] = set()
        for item in items:
            if item.key in keys:
                raise UsageError("two sequences have the same key", where=name, got=item.key, expected="one key each")
            keys.add(item.key)
        self.items, self.name = list(items), name
        self.modality: Modality = modality
        self.count = len(self.items)
        self.unreadable: list[tuple[str, str]] = []
        self.notes: list[tuple[str, str]] = []

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def fingerprint(self) -> str:
        return digest(part for item in self.items for part in item.content())


class Unreadable(Exception):
    """Why a file, or the rest of it, cannot be read. It ends in `Source.unreadable`, not on the screen."""


class FileSource(Generic[Item]):
    """Items from files. A modality says in `read` how one file becomes items and raises `Unreadable` when it cannot."""

    modality: Modality

    def __init__(self, files: Sequence[FoundFile], *, name: str) -> None:
        self.files, self.name = list(files), name
        self.count: int | None = len(self.files)
        self._unreadable: dict[str, str] = {}
        self._notes: dict[str, str] = {}
        self._stamps: dict[str, Stamp | Mark] = {}

    @property
    def unreadable(self) -> list[tuple[str, str]]:
        return sorted(self._unreadable.items())

    @property
    def notes(self) -> list[tuple[str, str]]:
        return sorted(self._notes.items())

    def note(self, file: FoundFile, text: str) -> None:
        """Remember a remark about a file; a second pass over it makes the same remark, and it is kept once."""
        said = self._notes.get(file.key)
        if said is None or text not in said.split("; "):
            self._notes[file.key] = text if said is None else f"{said}; {text}"

    def read(self, file: FoundFile) -> Iterator[Item]:
        raise NotImplementedError

    def settings(self) -> tuple[str, ...]:
        """The options that change what is read; part of the fingerprint."""
        return ()

    def _check(self, file: FoundFile) -> None:
        """Remember a file as it is seen first, and refuse it once it has changed or is gone."""
        if file.key in self._stamps or file.path.exists():  # one that never was fails when it is read, and is listed
            check_unchanged(file.path, self._stamps.setdefault(file.key, stamp(file.path)))

    def __iter__(self) -> Iterator[Item]:
        read_any = False
        for file in self.files:
            self._check(file)
            read_here = False
            try:
                for item in self.read(file):
                    read_any = read_here = True
                    yield item
                if not read_here:
                    raise Unreadable("empty")
            except (Unreadable, OSError) as problem:
                self._unreadable[file.key] = printable(str(problem))
            self._check(file)
        if not read_any:
            got = "; ".join(f"{file}: {reason}" for file, reason in self.unreadable[:3])
            more = len(self.unreadable) - 3
            got += f"; and {more} more" if more > 0 else ""
            what = {"vision": "image"}.get(self.modality, self.modality)
            raise InputError(f"no {what} could be read", where=self.name, got=got)

    def fingerprint(self) -> str:
        keys = [file.key.encode() for file in self.files]
        for file in self.files:
            self._check(file)
        contents = self._contents
        for file in self.files:
            self._check(file)
        return digest([*(text.encode() for text in self.settings()), *keys, *contents])

    @cached_property
    def _contents(self) -> list[bytes]:
        """Read once: the fingerprint is asked for several times, of files that have not changed."""
        return list(file_digests(self.files))


def open_source(
    where: str | Path | Sequence[Any] | Source[Any] | None,
    modality: Modality,
    *,
    documents: str | None = None,
    column: str | None = None,
) -> Source[Any]:
    """Open the data that `where` names, and read its first item, so that what cannot work fails here.

    - `None`: what is embedded. A source: itself.
    - A string or a `Path`: a file, a folder, a glob, or one of these in a store (`s3://…`); for text
      also `-` (standard input) and `hf:owner/name/config:split:column` (a dataset of the Hugging Face hub).
    - A list of `Path`: several of them. For speech and vision strings are paths too; **for text a list of strings is a
      list of texts**, unless they name what exists, and so is a list of (key, text) pairs. A word beside sentences is a
      text, whatever folder is called like it. Where strings are meant as paths, as on a command line, `open_places`.
    - A list of `Document`, `Clip` or `Picture`.

    `documents` (how plain text splits into documents, see `inputs.documents`) and `column` (of a table) are for text.
    """
    if modality not in get_args(Modality):
        raise UsageError("unknown modality", got=repr(modality), expected=" or ".join(get_args(Modality)))
    if modality != "text" and (documents is not None or column is not None):
        raise UsageError("`documents` and `column` are options of text", got=f"modality {modality}")
    source = _open(where, modality, documents=documents or "auto", column=column)
    if source.modality != modality:
        raise UsageError("the data is of another modality", where=source.name, got=source.modality, expected=modality)
    if next(iter(source), None) is None:
        raise InputError(f"there is no {modality} to measure", where=source.name, got="nothing")
    return source


def names_dataset(place: str) -> bool:
    """Whether this is a dataset of the Hub (`hf:owner/name`), not a file there (`hf://datasets/…`)."""
    return place.startswith("hf:") and not is_url(place)


def open_places(
    places: Sequence[str | Path], modality: Modality, *, documents: str | None = None, column: str | None = None
) -> Source[Any]:
    """`open_source` for what a command line names: strings are places, never texts; none means what is embedded."""
    alone = [place for place in map(str, places) if place == "-" or names_dataset(place)]
    if alone and len(places) > 1:
        raise UsageError(
            "standard input or a dataset of the hub must be the only source", got=", ".join(map(str, places))
        )
    named = [str(place) if is_url(place) else Path(place) for place in places]
    where = (places[0] if len(places) == 1 else named) if places else None
    return open_source(where, modality, documents=documents, column=column)


def _open(where: Any, modality: Modality, *, documents: str, column: str | None) -> Source[Any]:
    if where is None:
        from anisoscope.inputs.embedded import embedded

        return embedded(modality)
    if isinstance(where, Source):
        return cast("Source[Any]", where)
    if modality == "text":
        from anisoscope.inputs.text import open_text

        return open_text(where, documents=documents, column=column)
    if modality == "speech":
        from anisoscope.inputs.speech import open_speech

        return open_speech(where)
    from anisoscope.inputs.images import open_images

    return open_images(where)
