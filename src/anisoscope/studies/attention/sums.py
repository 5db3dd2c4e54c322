"""One pass over a model's attention: queries, keys and rows of every head, as sums.

    sums = measure_attention(model, batches)

`AttentionSums` holds the sums of all layers; it adds, like everything else, so shards and resumed passes merge. To take
attention and hidden states in the same pass, run the hidden capture inside `sums.watch(module, batch)`.

What counts: the positions of the hidden states' protocol, special tokens kept (they are where sinks are). Keys that are
padding are invisible to the model itself, but for Whisper's encoder, which attends to its whole window: there rows see
everything, while only the positions that hear speech count as queries and as keys.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from anisoscope.accumulate.heads import SAMPLE, Heads
from anisoscope.accumulate.keys import sequence_keys
from anisoscope.accumulate.rows import Rows
from anisoscope.capture.attention.call import AttentionCall
from anisoscope.capture.attention.capture import AttentionCapture
from anisoscope.capture.masks import count_positions
from anisoscope.capture.sites import Site, body_of, find_sites
from anisoscope.errors import ModelError
from anisoscope.geometry.queries_keys import RemovalEffect, removal_effect

if TYPE_CHECKING:
    from torch import Tensor, nn

    from anisoscope.models.batches.plan import Batch
    from anisoscope.models.open import OpenModel


@dataclass
class AttentionSums:
    """The sums of every attention layer of a model, by site. `rows` lacks layers whose scores cannot be rebuilt."""

    before_rotary: bool = False
    sample: int = SAMPLE
    seed: int = 0
    heads: dict[str, Heads] = field(default_factory=dict)
    rows: dict[str, Rows] = field(default_factory=dict)

    @property
    def protocol(self) -> str:
        rotary = "before" if self.before_rotary else "after"
        return f"queries and keys {rotary} rotation, special tokens kept, padding left out, rows of one key left out"

    def watch(self, module: nn.Module, batch: Batch) -> AttentionCapture:
        """A context in which a forward pass of the module on the batch is added."""
        sites = {site.name: site for site in find_sites(module) if site.kind == "block"}
        body = body_of(module)[0]
        keys, starts = sequence_keys(batch.keys), np.array(batch.starts, dtype=np.int64)

        def sink(name: str, call: AttentionCall) -> None:
            _count_only_real(call, sites.get(name.removesuffix(".cross")), batch, body)
            if name not in self.heads:
                self.heads[name] = Heads.like(call, sample=self.sample, seed=self.seed)
            self.heads[name].update(call, keys, starts)
            if call.scaling is None:
                return
            if name not in self.rows:
                self.rows[name] = Rows.like(call)
            self.rows[name].update(call, keys)

        return AttentionCapture(module, sink, before_rotary=self.before_rotary)

    def merge(self, other: AttentionSums) -> None:
        for site, heads in other.heads.items():
            if site in self.heads:
                self.heads[site].merge(heads)
            else:
                self.heads[site] = Heads.from_state(heads.state())
        for site, rows in other.rows.items():
            if site in self.rows:
                self.rows[site].merge(rows)
            else:
                self.rows[site] = Rows.from_state(rows.state())

    def state(self) -> dict[str, Tensor]:
        """Every sum, named `site/heads/…` or `site/rows/…`: safetensors keeps it."""
        parts = [("heads", self.heads), ("rows", self.rows)]
        return {
            f"{site}/{part}/{name}": tensor
            for part, by_site in parts
            for site, sums in by_site.items()
            for name, tensor in sums.state().items()
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], **options: Any) -> Self:
        split: dict[tuple[str, str], dict[str, Tensor]] = {}
        for name, tensor in state.items():
            site, part, rest = name.split("/", 2)
            split.setdefault((site, part), {})[rest] = tensor
        sums = cls(**options)
        for (site, part), tensors in split.items():
            if part == "heads":
                sums.heads[site] = Heads.from_state(tensors)
            else:
                sums.rows[site] = Rows.from_state(tensors)
        return sums


def measure_attention(
    model: OpenModel,
    batches: Iterable[tuple[int, Batch]],
    *,
    before_rotary: bool = False,
    sample: int = SAMPLE,
    seed: int = 0,
) -> AttentionSums:
    """Run the model over the batches and sum the queries, keys and rows of all its heads."""
    sums = AttentionSums(before_rotary=before_rotary, sample=sample, seed=seed)
    for _, batch in batches:
        with torch.inference_mode(), sums.watch(model.module, batch):
            _run(model.module, batch)
    if not sums.heads:
        raise ModelError("no attention was seen", where=model.name, do="give at least one batch")
    return sums


def removal_effects(model: OpenModel, batch: Batch) -> dict[str, RemovalEffect]:
    """What the mean key and the mean query of each layer do to its attention on a batch: the greatest over its heads.

    The means are those of a sequence, of the vectors that are scored. Taking the key's away changes nothing but
    rounding; if it did, the rows would not be softmax(q·k).
    """
    found: dict[str, list[RemovalEffect]] = {}

    def sink(name: str, call: AttentionCall) -> None:
        if call.scaling is not None:
            found.setdefault(name, []).extend(_removals(call))

    with torch.inference_mode(), AttentionCapture(model.module, sink):
        _run(model.module, batch)
    return {
        name: RemovalEffect(max(effect.key for effect in effects), max(effect.query for effect in effects))
        for name, effects in found.items()
    }


def _removals(call: AttentionCall) -> list[RemovalEffect]:
    assert call.scaling is not None
    effects: list[RemovalEffect] = []
    queries, keys = call.score_queries.double().cpu().numpy(), call.score_keys.double().cpu().numpy()
    rows, columns = call.valid_queries.cpu().numpy(), call.valid_keys.cpu().numpy()
    for b, h in np.ndindex(queries.shape[:2]):
        visible = None
        if call.visible is not None:
            whole = call.visible.expand(len(rows), rows.shape[1], -1)[b].cpu().numpy()
            visible = whole[np.ix_(rows[b], columns[b])]
        if rows[b].any():
            q, k = queries[b, h][rows[b]], keys[b, h // call.group][columns[b]]
            effects.append(removal_effect(q, k, scaling=call.scaling, visible=visible))
    return effects


def _run(module: nn.Module, batch: Batch) -> None:
    weight = next(module.parameters())
    options = {"use_cache": False} if "use_cache" in inspect.signature(module.forward).parameters else {}
    inputs = {
        name: tensor.to(weight.device, weight.dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in batch.inputs.items()
    }
    module(**inputs, **options)


def _count_only_real(call: AttentionCall, site: Site | None, batch: Batch, body: nn.Module) -> None:
    """Leave out what the batch says is padding, also where the model's mask does not say so."""
    if site is None or call.windowed or len(call.queries) != len(batch):
        return
    length = call.queries.shape[2]
    counted = count_positions(site, batch, length, body, specials="keep", whisper_window="speech").index
    real = torch.zeros(len(batch), length, dtype=torch.bool)
    real[torch.from_numpy(counted.row), torch.from_numpy(counted.position)] = True
    real = real.to(call.queries.device)
    call.valid_queries = call.valid_queries & real
    if call.kind == "self" and call.keys.shape[2] == length:
        call.valid_keys = call.valid_keys & real
