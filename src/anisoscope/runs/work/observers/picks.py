"""Single rows picked out of a pass by their names: the vectors of labelled pairs.

    picks = Picks({"q1", "q2"})
    picks.offer(vectors, names)              # keeps those that are wanted
    picks.rows(["q1"])                       # (1, d)

Picks of shares join like sums do; memory is that of what is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.keys import sequence_key
from anisoscope.capture.embedding import embed_output
from anisoscope.errors import InputError
from anisoscope.runs.work.collected import Collection
from anisoscope.runs.work.observers.embeddings import EmbeddingSums

if TYPE_CHECKING:
    from anisoscope.models.batches.plan import Batch
    from anisoscope.models.encoders import Encoder

ROWS = "rows"


class Picked:
    """Vectors by the key of their name."""

    def __init__(self, found: Mapping[int, NDArray[np.floating]] | None = None) -> None:
        self.found: dict[int, NDArray[np.floating]] = dict(found or {})

    def keep(self, key: int, vector: NDArray[np.floating], name: str | None = None) -> None:
        """Keep a vector; refuse two different ones of the same name."""
        known = self.found.get(key)
        if known is None:
            self.found[key] = np.array(vector)
        elif not np.array_equal(known, vector, equal_nan=True):
            raise InputError("two rows with different vectors have the same id", got=name)

    def merge(self, other: Picked) -> None:
        for key, vector in other.found.items():
            self.keep(key, vector)

    def state(self) -> dict[str, NDArray]:
        keys = np.array(list(self.found), dtype=np.uint64).view(np.int64)
        x = np.stack(list(self.found.values())) if self.found else np.zeros((0, 0), np.float32)
        return {"keys": keys, "x": x}

    @classmethod
    def from_state(cls, state: Mapping[str, NDArray]) -> Picked:
        return cls(dict(zip(state["keys"].view(np.uint64).tolist(), state["x"], strict=True)))


class Picks(Collection):
    """The rows of a source that are wanted by name."""

    kind = Picked

    def __init__(self, wanted: Iterable[str] = ()) -> None:
        super().__init__()
        self.wanted = {sequence_key(name): name for name in wanted}
        self.parts[ROWS] = Picked()

    def offer(self, x: NDArray[Any], names: Sequence[str]) -> None:
        """Keep those of the rows x (n, d) whose names are wanted."""
        names_wanted = set(self.wanted.values())
        for vector, name in zip(x, names, strict=True):
            if name in names_wanted:
                self.parts[ROWS].keep(sequence_key(name), vector, name)


class TextPicks(EmbeddingSums):
    """The vectors of texts, each by the name of its document."""

    kind = Picked

    def __init__(self, encoder: Encoder | None = None) -> None:
        super().__init__(encoder)
        self.parts[ROWS] = Picked()

    def take(self, batch: Batch, output: Any) -> None:
        assert self.encoder is not None
        vectors = embed_output(self.encoder, output, batch.valid).float().cpu().numpy()
        for vector, key, start in zip(vectors, batch.keys, batch.starts, strict=True):
            if start == 0:
                self.parts[ROWS].keep(sequence_key(key), vector, key)
