"""Take the vectors at each site while the model runs, and hand them on at once.

Hooks on the blocks give each state to a `sink` the moment it exists; nothing is kept, so that no state outlives its
batch and memory is what the forward pass alone needs. A state is (B, T, d), a convolutional map (B, C, H, W); the sink
receives (N, d), the N positions that count (`masks.py`), in the precision in which the model made them.

Convolutional maps become one vector per position (`maps="positions"`) or one flattened vector of C·H·W per image
(`maps="flatten"`, as in the paper's figure 4).

    capture = HiddenCapture(model.module, sites=["block.*", "final_norm"])
    for index, batch in batches:
        capture.run(batch, sink)        # sink("block.0", vectors (N, d), RowIndex), in order of computation
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from anisoscope.capture.hooks import hooked
from anisoscope.capture.inputs import model_inputs
from anisoscope.capture.masks import Counted, RowIndex, Specials, Which, WhisperWindow, count_positions
from anisoscope.capture.parts import with_parts
from anisoscope.capture.sites import Site, body_of, choose_sites, map_sites
from anisoscope.capture.unknown import check_sites, hidden_states_option, returned_states
from anisoscope.errors import ModelError, UsageError

if TYPE_CHECKING:
    from anisoscope.models.batches.plan import Batch

Sink = Callable[[str, Tensor, RowIndex], None]
Maps = Literal["positions", "flatten"]


class HiddenCapture:
    """The vectors of a model at the sites that match `sites`.

    `sites` and `notes` are final after the first batch: only then is it known whether the guess at an unknown
    architecture holds.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        sites: str | Iterable[str] = "*",
        maps: Maps = "positions",
        specials: Specials = "keep",
        positions: Which = "all",
        whisper_window: WhisperWindow = "speech",
        parts: bool = False,
    ) -> None:
        _check_choice("maps", maps, ("positions", "flatten"))
        _check_choice("specials", specials, ("keep", "drop"))
        _check_choice("positions", positions, ("all", "last"))
        _check_choice("whisper_window", whisper_window, ("speech", "all"))
        self.module, self.body = module, body_of(module)[0]
        self.maps: Maps = maps
        self.specials: Specials = specials
        self.positions: Which = positions
        self.whisper_window: WhisperWindow = whisper_window
        self.notes: tuple[str, ...] = ()
        self._patterns = [sites] if isinstance(sites, str) else list(sites)
        self._from_library = False
        found = map_sites(module)
        self.parts = parts
        self.sites = self._choose(found.sites)
        self._unchecked = None if found.known else found.sites
        self._width = getattr(getattr(self.body, "config", None), "hidden_size", None)

    @property
    def protocol(self) -> dict[str, str]:
        """What counts, in words."""
        words = {"specials": self.specials, "first": "position 0 of each window"}
        words |= {"positions": "the last of each window"} if self.positions == "last" else {}
        kinds = {site.positions for site in self.sites}
        if kinds - {"all", "map", "window"}:
            words["padding"] = "never counts"
        if "map" in kinds:
            each = "one vector per position" if self.maps == "positions" else "one flattened vector per image"
            words |= {"maps": each, "first": "none: a map has no first position"}
        if "window" in kinds:
            only = "only the states that hear speech" if self.whisper_window == "speech" else "the whole padded window"
            words["encoder window"] = only
        return words

    @property
    def options(self) -> dict[str, Any]:
        """What the forward pass has to be told: to return its states, where those are what is measured."""
        return hidden_states_option(self.module) if self._from_library else {}

    def run(self, batch: Batch, sink: Sink) -> None:
        """Run the model once on a batch, feeding the sink."""
        self.prepare(batch)
        with torch.inference_mode(), self.attached(batch, sink):
            self.take_returned(self.module(**model_inputs(self.module, batch.inputs), **self.options), batch, sink)

    def prepare(self, batch: Batch) -> None:
        """Compare the guess at an unknown architecture with the library's own states, once."""
        if self._unchecked is None:
            return
        with torch.inference_mode():
            checked = check_sites(self.module, self._unchecked, model_inputs(self.module, batch.inputs))
        self._from_library, self._unchecked = checked.from_library, None
        self.sites = self._choose(checked.sites)
        self.notes += (checked.note,)

    def _choose(self, sites: Sequence[Site]) -> list[Site]:
        """The sites that are asked for, with the parts of blocks where those are too."""
        every = with_parts(self.module, sites) if self.parts and not self._from_library else list(sites)
        missing = self.parts and len(every) == len(sites)
        self.notes = ("the parts of its blocks were not found",) if missing else ()
        return choose_sites(every, self._patterns)

    def take_returned(self, output: Any, batch: Batch, sink: Sink) -> None:
        """Feed the sink with the states that the model returned, where those are what is measured."""
        if not self._from_library:
            return
        receive, states = self._receiver(batch, sink), returned_states(output)
        for site in self.sites:
            receive(site, states.pop(site.name))

    @contextmanager
    def attached(self, batch: Batch, sink: Sink) -> Iterator[None]:
        """Within this context one forward pass of the model on the batch's inputs feeds the sink."""
        if self._from_library:
            yield
            return
        receive = self._receiver(batch, sink)
        with hooked(self.module, self.sites, receive) as reached:
            yield
            missed = [site.name for site in self.sites if site not in reached]
            if missed:
                raise ModelError("the forward pass did not reach a site", where=type(self.module).__name__, got=missed)

    def _receiver(self, batch: Batch, sink: Sink) -> Callable[[Site, Tensor], None]:
        known: dict[tuple[Any, ...], Counted] = {}  # most sites of a model have the same positions

        def receive(site: Site, state: Tensor) -> None:
            state = _joined_streams(state, batch)
            if site.kind == "part" and state.dim() == 2:  # OPT's MLP reads all positions of a batch as one list
                state = state.unflatten(0, (len(batch), -1))
            if len(state) != len(batch):
                got = f"shape {tuple(state.shape)} from {len(batch)} inputs"
                raise ModelError(
                    "the state does not keep the inputs of a batch apart",
                    where=site.name,
                    got=got,
                    do="run them one by one: --batch-tokens 1",
                )
            flatten = self.maps == "flatten" and (site.positions == "map" or state.dim() == 4)
            state = _as_rows(state, site, self._width)
            if flatten:
                sink(site.name, *self._flattened(state, site))
                return
            length = state.shape[1]
            key = (site.positions, site.prefix_tokens, length, site.name.partition(".")[0] == "decoder")
            if key not in known:
                known[key] = count_positions(
                    site,
                    batch,
                    length,
                    self.body,
                    specials=self.specials,
                    positions=self.positions,
                    whisper_window=self.whisper_window,
                )
            counted, vectors = known[key], state.reshape(-1, state.shape[-1])  # (B·T, d)
            if counted.places is not None:
                vectors = vectors.index_select(0, counted.places.to(vectors.device))
            sink(site.name, vectors, counted.index)

        return receive

    def _flattened(self, state: Tensor, site: Site) -> tuple[Tensor, RowIndex]:
        """One vector per image, of all its positions."""
        state = state[:, site.prefix_tokens :] if self.specials == "drop" else state
        zeros = np.zeros(len(state), dtype=np.int64)
        return state.flatten(1), RowIndex(np.arange(len(state)), zeros, zeros.astype(bool))


def _joined_streams(state: Tensor, batch: Batch) -> Tensor:
    """Several residual streams of a text as one vector per token; other states as they are.

    DeepSeek-V4 has them as (B, T, S, d), Gemma-3n as (S, B, T, d).
    """
    ids = batch.inputs.get("input_ids")
    if ids is None or state.dim() != 4:
        return state
    return (state.movedim(0, 2) if state.shape[1:3] == ids.shape[:2] else state).flatten(2)


def _as_rows(state: Tensor, site: Site, width: int | None) -> Tensor:
    """A map (B, C, H, W), or (B, H, W, C) where C is the width of the model, as (B, H·W, C); (B, T, d) as it is."""
    if state.dim() == 4 and state.shape[3] == width != state.shape[1]:  # SAM keeps channels last
        return state.flatten(1, 2)
    if state.dim() == 4:
        return state.flatten(2).transpose(1, 2)
    if state.dim() != 3:
        got = f"shape {tuple(state.shape)}"
        raise ModelError("this state is neither a sequence nor a map", where=site.name, got=got, expected="3 or 4 axes")
    return state


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"unknown choice for `{name}`", got=repr(value), expected=" or ".join(allowed))
