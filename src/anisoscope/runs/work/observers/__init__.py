"""Observers of a pass: hidden states and attention, as sums by site.

    hidden = HiddenSums(HiddenCapture(model.module, sites=["block.*"]), spectrum=True, sample=4096)
    attention = AttentionSums(sample=128)
    run_pass(model, batches, {"hidden": hidden, "attention": attention}, unit=Unit())
    hidden.parts["block.3"]              # Moments
    attention.heads["block.3"]           # Heads

What counts in attention: the positions of the hidden states' protocol, special tokens kept (they are where sinks are).
Keys that are padding are invisible to the model itself, but for Whisper's encoder, which attends to its whole window:
there rows see everything, while only the positions that hear speech count as queries and as keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope.accumulate.attention.heads import SAMPLE, Heads
from anisoscope.accumulate.attention.rows import Rows
from anisoscope.accumulate.keys import sequence_keys
from anisoscope.accumulate.moments import Moments
from anisoscope.capture.attention.capture import AttentionCapture
from anisoscope.capture.masks import count_positions
from anisoscope.capture.sites import Site, body_of, find_sites
from anisoscope.models.devices import sums_device
from anisoscope.runs.work.collected import Accumulator, Watching

if TYPE_CHECKING:
    from torch import Tensor, nn

    from anisoscope.capture.attention.call import AttentionCall
    from anisoscope.capture.hidden import HiddenCapture
    from anisoscope.capture.masks import RowIndex
    from anisoscope.models.batches.plan import Batch
    from anisoscope.models.open import OpenModel


class HiddenSums(Watching):
    """The moments of every site of a model, made as the sites show up.

    `spectrum` may be a function of all sites and one of them; without `device`, sums live with their layer.
    """

    kind = Moments

    def __init__(
        self,
        capture: HiddenCapture | None = None,
        *,
        spectrum: bool | Callable[[Sequence[str], str], bool] = True,
        sample: int = 4096,
        seed: int = 0,
        device: str | None = None,
    ) -> None:
        super().__init__()
        self.capture, self.spectrum, self.device = capture, spectrum, device
        self.made = {"reservoir": sample, "seed": seed, "maxima": True}
        self._batch: Batch | None = None
        self._keys = np.zeros(0, dtype=np.uint64)
        self._starts = np.zeros(0, dtype=np.int64)

    @property
    def options(self) -> dict[str, Any]:
        return {} if self.capture is None else self.capture.options

    def prepare(self, model: OpenModel, batch: Batch) -> None:
        assert self.capture is not None
        self.capture.prepare(batch)

    @contextmanager
    def watch(self, model: OpenModel, batch: Batch) -> Iterator[None]:
        assert self.capture is not None
        self._batch = batch
        self._keys = sequence_keys(batch.keys)
        self._starts = np.array(batch.starts, dtype=np.int64)
        with self.capture.attached(batch, self.take):
            yield

    def after(self, output: Any) -> None:
        assert self.capture is not None
        assert self._batch is not None
        self.capture.take_returned(output, self._batch, self.take)

    def take(self, site: str, vectors: Tensor, rows: RowIndex) -> None:
        """Add the vectors of one site in one batch."""
        if site not in self.parts:
            self.parts[site] = self._moments(site, vectors)
        self.parts[site].update(
            vectors,
            sequences=self._keys[rows.row],
            positions=self._starts[rows.row] + rows.position,
            first=rows.first,
            whole=self._batch is not None and self._batch.whole,
        )

    def _moments(self, site: str, vectors: Tensor) -> Moments:
        """Fresh sums, kept where the site's states are made (or on the CPU, where that device has no float64)."""
        spectrum, device = self.spectrum, self.device or sums_device(str(vectors.device))
        if callable(spectrum):
            assert self.capture is not None
            spectrum = spectrum([one.name for one in self.capture.sites], site)
        return Moments(vectors.shape[1], spectrum=spectrum, device=device, **self.made)

    def about(self) -> dict[str, Any]:
        assert self.capture is not None
        return {
            "protocol": {**self.capture.protocol, "pairs": "all pairs of different vectors"},
            "sites": [[site.name, site.layer] for site in self.capture.sites],
            "notes": list(self.capture.notes),
        }


class AttentionSums(Watching):
    """Queries and keys (`site/heads`) and attention rows (`site/rows`) of every layer.

    Layers whose scores cannot be rebuilt have no rows.
    """

    def __init__(self, *, before_rotary: bool = False, sample: int = SAMPLE, seed: int = 0) -> None:
        super().__init__()
        self.before_rotary, self.sample, self.seed = before_rotary, sample, seed

    @property
    def heads(self) -> dict[str, Heads]:
        return {key.removesuffix("/heads"): part for key, part in self.parts.items() if key.endswith("/heads")}

    @property
    def rows(self) -> dict[str, Rows]:
        return {key.removesuffix("/rows"): part for key, part in self.parts.items() if key.endswith("/rows")}

    def read(self, key: str, state: Mapping[str, NDArray]) -> Accumulator:
        return (Heads if key.endswith("/heads") else Rows).from_state(state)

    def watch(self, model: OpenModel, batch: Batch) -> AbstractContextManager[Any]:
        sites = {site.name: site for site in find_sites(model.module) if site.kind == "block"}
        body = body_of(model.module)[0]
        keys, starts = sequence_keys(batch.keys), np.array(batch.starts, dtype=np.int64)

        read = {
            batch.valid.shape: batch.valid
        }  # the positions that count, of the input and of the encoder's last block

        def sink(name: str, call: AttentionCall) -> None:
            count_only_real(call, sites.get(name.removesuffix(".cross")), batch, body)
            if call.kind == "self" and name.startswith("encoder."):
                read[call.valid_keys.shape] = call.valid_keys
            elif call.kind == "cross" and call.valid_keys.shape in read:
                call.valid_keys = call.valid_keys & read[call.valid_keys.shape].to(call.valid_keys.device)
            if f"{name}/heads" not in self.parts:
                self.parts[f"{name}/heads"] = Heads.like(call, sample=self.sample, seed=self.seed)
            self.parts[f"{name}/heads"].update(call, keys, starts)
            if call.scaling is None:
                return
            if f"{name}/rows" not in self.parts:
                self.parts[f"{name}/rows"] = Rows.like(call)
            self.parts[f"{name}/rows"].update(call, keys, starts)

        return AttentionCapture(model.module, sink, before_rotary=self.before_rotary)

    def about(self) -> dict[str, Any]:
        rotary = "before" if self.before_rotary else "after"
        words = f"queries and keys {rotary} rotation, special tokens kept, padding left out, rows of one key left out"
        return {"protocol": {"attention": words}, "sites": [], "notes": []}


def count_only_real(call: AttentionCall, site: Site | None, batch: Batch, body: nn.Module) -> None:
    """Leave out what the batch says is padding, also where the model's mask does not say so."""
    if call.windowed or len(call.queries) != len(batch):
        return
    length = call.queries.shape[2]
    real = _places(site, batch, length, body).to(call.queries.device)
    call.valid_queries = call.valid_queries & real
    if call.kind == "self" and call.keys.shape[2] == length:
        call.valid_keys = call.valid_keys & real


def _places(site: Site | None, batch: Batch, length: int, body: nn.Module) -> Tensor:
    """The positions (B, length) that count where attention stands in a block, or in none that is known (XLM)."""
    if site is None:
        return batch.valid if batch.valid.shape[1] == length else torch.ones(len(batch), length, dtype=torch.bool)
    counted = count_positions(site, batch, length, body, specials="keep", whisper_window="speech").index
    real = torch.zeros(len(batch), length, dtype=torch.bool)
    real[torch.from_numpy(counted.row), torch.from_numpy(counted.position)] = True
    return real
