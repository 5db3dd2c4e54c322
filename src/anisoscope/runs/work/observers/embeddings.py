"""Observers of the vector of a whole text, as sums: one row per document.

    EmbeddingSums(model.encoder)          # the site `embedding`
    FoldSums(model.encoder)               # the same in four folds of groups, for what is fitted and judged apart

A document that fills several windows counts with its first, which is where a sentence encoder cuts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope.accumulate.keys import Keys, sequence_keys
from anisoscope.accumulate.moments import Moments
from anisoscope.capture.embedding import SITE, embed_output
from anisoscope.capture.sites import body_of
from anisoscope.runs.work.clouds import Folds
from anisoscope.runs.work.collected import Watching

if TYPE_CHECKING:
    from torch import Tensor

    from anisoscope.models.batches.plan import Batch
    from anisoscope.models.encoders import Encoder
    from anisoscope.models.open import OpenModel


class EmbeddingSums(Watching):
    """The moments of the vectors of whole texts. `group` gives the sequence of a document's key (default: itself)."""

    kind = Moments

    def __init__(
        self,
        encoder: Encoder | None = None,
        *,
        spectrum: bool = True,
        sample: int = 4096,
        seed: int = 0,
        device: str = "cpu",
        group: Callable[[str], str] = str,
    ) -> None:
        super().__init__()
        self.encoder, self.group = encoder, group
        self.made = {"spectrum": spectrum, "reservoir": sample, "seed": seed, "device": device}

    @contextmanager
    def watch(self, model: OpenModel, batch: Batch) -> Iterator[None]:
        body = body_of(model.module)[0]
        hook = body.register_forward_hook(lambda module, given, output: self.take(batch, output))
        try:
            yield
        finally:
            hook.remove()

    def take(self, batch: Batch, output: Any) -> None:
        """Add the texts that begin in this batch."""
        assert self.encoder is not None
        begins = np.array(batch.starts) == 0
        if begins.any():
            vectors = embed_output(self.encoder, output, batch.valid)
            names = [key for key, first in zip(batch.keys, begins, strict=True) if first]
            grouped = [self.group(name) for name in names]
            places = sequence_keys(names).view(np.int64)  # tells the texts of one group apart
            self.add_rows(vectors[torch.from_numpy(begins).to(vectors.device)], sequence_keys(grouped), places)

    def add_rows(self, x: Tensor, keys: Keys, positions: NDArray[np.int64] | None, *, whole: bool = False) -> None:
        """Add vectors (n, d) of these sequences."""
        site = SITE if self.encoder is None else self.encoder.site
        if site not in self.parts:
            self.parts[site] = Moments(x.shape[1], **self.made)
        self.parts[site].update(x, sequences=keys, positions=positions, whole=whole or self.group is str)

    def about(self) -> dict[str, Any]:
        assert self.encoder is not None
        words = f"{self.encoder.words}; one vector per document, of its first window"
        return {"protocol": {"embedding": words}, "sites": [[self.encoder.site, None]], "notes": []}


class FoldSums(EmbeddingSums):
    """The moments of vectors in four folds, `fold.0` … `fold.3`; all texts of a group fall into one."""

    def __init__(self, encoder: Encoder | None = None, **options: Any) -> None:
        super().__init__(encoder, **options)
        self._folds = Folds(**self.made)
        self.parts = self._folds.parts

    def add_rows(self, x: Tensor, keys: Keys, positions: NDArray[np.int64] | None, *, whole: bool = False) -> None:
        self._folds.add_rows(x, keys, positions, whole=whole or self.group is str)
