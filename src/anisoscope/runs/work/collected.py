"""What passes collect: additive sums by site, and what is known about them, mergeable and storable.

    Collection   the sums of one observer, by site: each an accumulator with update / merge / state / from_state
    Part         one model (or checkpoint, or file): its collections, and `about` in plain values
    Collected    the parts of a study by label

Sums that were collected in several processes, shards or sittings add up to those of one pass, site by site.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from anisoscope.errors import StoreError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from anisoscope.models.batches.plan import Batch
    from anisoscope.models.open import OpenModel

SEPARATOR = "|"
COUNTED = "counted"  # the name of the collection that every part has


class Accumulator(Protocol):
    """Additive statistics of one cloud, layer or head."""

    def merge(self, other: Any) -> None: ...
    def state(self) -> dict[str, Any]: ...  # arrays, or tensors


class Collection:
    """Accumulators by key; a subclass names their class (`kind`), or says in `read` which class a key has."""

    kind: Any = None

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {}

    def read(self, key: str, state: Mapping[str, NDArray]) -> Accumulator:
        """The accumulator that a state was taken from."""
        return self.kind.from_state(state)

    def add(self, key: str, other: Accumulator) -> None:
        """Add an accumulator, or adopt it."""
        if key in self.parts:
            self.parts[key].merge(other)
        else:
            self.parts[key] = other

    def merge(self, other: Collection) -> None:
        for key, accumulator in other.parts.items():
            self.add(key, accumulator)

    def state(self) -> dict[str, NDArray]:
        """Every array, named `key|array`."""
        named = ((key, self.state_of(key)) for key in self.parts)
        return {f"{key}{SEPARATOR}{name}": array for key, state in named for name, array in state.items()}

    def state_of(self, key: str) -> dict[str, NDArray]:
        """The state of one accumulator."""
        return {name: np.asarray(one) for name, one in self.parts[key].state().items()}

    def load(self, state: Mapping[str, NDArray]) -> None:
        """Add what `state` returned."""
        for key, tensors in split(state).items():
            self.add(key, self.read(key, tensors))

    def seal(self) -> None:
        """Close what is still open, before the sums are kept for good."""
        for accumulator in self.parts.values():
            close = getattr(accumulator, "seal", None)
            if close is not None:
                close()


class Watching(Collection):
    """Sums that see forward passes. `options` are extra arguments of the model's forward that they need."""

    @property
    def options(self) -> dict[str, Any]:
        return {}

    def prepare(self, model: OpenModel, batch: Batch) -> None:
        """Find out what has to be known before the first pass; may run the model."""

    def watch(self, model: OpenModel, batch: Batch) -> AbstractContextManager[Any]:
        """A context in which one forward pass of the model on the batch is added to the sums."""
        raise NotImplementedError

    def after(self, output: Any) -> None:
        """Take what the model returned, still within the context."""

    def about(self) -> dict[str, Any]:
        """Protocol, sites and notes, in plain values."""
        raise NotImplementedError


class Count:
    """How many pieces of work were done: what the sums must agree with."""

    def __init__(self, n: int = 0) -> None:
        self.n = n

    def merge(self, other: Count) -> None:
        self.n += other.n

    def state(self) -> dict[str, NDArray]:
        return {"n": np.array([self.n])}


class Counted(Collection):
    """The pieces of work (windows, rows) that went into the sums beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.parts["done"] = Count()

    def read(self, key: str, state: Mapping[str, NDArray]) -> Accumulator:
        return Count(int(state["n"][0]))

    @property
    def done(self) -> int:
        return self.parts["done"].n


def counting(make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Collections that also count the work that goes into them."""
    return lambda: {**make(), COUNTED: Counted()}


def split(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Arrays by what stands before the last separator of their name."""
    found: dict[str, dict[str, Any]] = {}
    for name, tensor in state.items():
        key, _, inner = name.rpartition(SEPARATOR)
        found.setdefault(key, {})[inner] = tensor
    return found


@dataclass
class Part:
    """The sums of one model over (a share of) the data; `about` says what they are, in plain values."""

    sums: dict[str, Collection]
    about: dict[str, Any] = field(default_factory=dict)

    def keys(self, observer: str) -> list[str]:
        """What an observer has sums of."""
        return list(self.sums[observer].parts) if observer in self.sums else []

    def get(self, observer: str, key: str) -> Any:
        """The accumulator of one key."""
        return self.sums[observer].parts[key]

    def merge(self, other: Part) -> None:
        for name, collection in other.sums.items():
            if name in self.sums:
                self.sums[name].merge(collection)
            else:
                self.sums[name] = collection
        self.about = merge_about(self.about, other.about)

    def state(self) -> dict[str, NDArray]:
        return {f"{name}{SEPARATOR}{key}": t for name, sums in self.sums.items() for key, t in sums.state().items()}


class StoredPart(Part):
    """A part whose sums stay on disk: one accumulator at a time is read, so that long series fit into memory."""

    def __init__(self, path: Path, kinds: Callable[[], Mapping[str, Collection]], about: dict[str, Any]) -> None:
        self.path, self._kinds, self.about = path, kinds, about
        with self._opened() as file:
            names: list[str] = list(file.keys())
        self._names = [name.split(SEPARATOR, 1) for name in names]

    def _opened(self) -> Any:
        from safetensors import safe_open

        return safe_open(self.path, "np")

    def keys(self, observer: str) -> list[str]:
        return list(dict.fromkeys(rest.rpartition(SEPARATOR)[0] for name, rest in self._names if name == observer))

    def get(self, observer: str, key: str) -> Any:
        before = f"{key}{SEPARATOR}"
        with self._opened() as file:
            state = {
                rest.removeprefix(before): file.get_tensor(f"{observer}{SEPARATOR}{rest}")
                for name, rest in self._names
                if name == observer and rest.rpartition(SEPARATOR)[0] == key
            }
        return self._kinds()[observer].read(key, state)

    @property
    def sums(self) -> dict[str, Collection]:  # pyright: ignore[reportIncompatibleVariableOverride]  # read on demand
        found = dict(self._kinds())
        for observer, collection in found.items():
            for key in self.keys(observer):
                collection.parts[key] = self.get(observer, key)
        return found

    def loaded(self) -> Part:
        """The same part in memory."""
        return Part(self.sums, self.about)


Collected = dict[str, Part]


def add_part(collected: Collected, label: str, part: Part) -> None:
    """Add a part to what was collected under its label."""
    if label not in collected:
        collected[label] = part
        return
    mine = collected[label]
    if isinstance(mine, StoredPart):
        mine = collected[label] = mine.loaded()
    mine.merge(part)


def merge_about(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Reports of other shares and notes join, whatever only one side knows is kept; the rest agrees."""
    merged = {**theirs, **mine}
    if "reports" in mine or "reports" in theirs:
        merged["reports"] = {**theirs.get("reports", {}), **mine.get("reports", {})}
    for name in ("notes", "sites"):
        joined = [*mine.get(name, ()), *(one for one in theirs.get(name, ()) if one not in mine.get(name, ()))]
        if joined:
            merged[name] = joined
    return merged


def report_of(about: Mapping[str, Any]) -> dict[str, int]:
    """How many documents, windows and tokens all shares read together."""
    reports = about.get("reports", {}).values()
    names = dict.fromkeys(name for report in reports for name in report)
    return {name: sum(report.get(name, 0) for report in reports) for name in names}


def check_counts(collected: Mapping[str, Part]) -> None:
    """Refuse sums that are not of all the data, once: the work that was done must be the work that there was."""
    for label, part in collected.items():
        expected, done = report_of(part.about).get("windows"), part.get(COUNTED, "done").n
        if expected is not None and expected != done:
            raise StoreError(
                "the sums are not of all the data, once",
                where=label,
                got=f"{done} windows",
                expected=f"{expected}",
                do="make the run anew, and report this",
            )


def state_of(collected: Mapping[str, Part]) -> dict[str, NDArray]:
    """All sums as one flat dict, `label|observer|site|array`."""
    return {
        f"{_safe(label)}{SEPARATOR}{name}": tensor
        for label, part in collected.items()
        for name, tensor in part.state().items()
    }


def load_parts(state: Mapping[str, NDArray], labels: Sequence[str], kinds: Mapping[str, Any]) -> Collected:
    """The inverse of `state_of`; `kinds` makes an empty collection for each observer's name."""
    by_name = {_safe(label): label for label in labels}
    found: dict[str, dict[str, dict[str, NDArray]]] = {}
    for name, tensor in state.items():
        label, observer, rest = name.split(SEPARATOR, 2)
        found.setdefault(by_name[label], {}).setdefault(observer, {})[rest] = tensor
    return {label: Part(dict(_loaded(found.get(label, {}), kinds))) for label in labels}


def _loaded(states: Mapping[str, Mapping[str, NDArray]], kinds: Mapping[str, Any]) -> Iterator[tuple[str, Collection]]:
    for name, state in states.items():
        collection: Collection = Counted() if name == COUNTED else kinds[name]()
        collection.load(state)
        yield name, collection


def _safe(label: str) -> str:
    return label.replace(SEPARATOR, "¦")
