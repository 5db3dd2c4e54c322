"""Queries and keys of models that do not go through transformers' attention interface: hooks on their projections.

An attention module that has a query and a key projection under names that say so (`query`/`key`, `q_proj`/`k_proj`, …)
and a number of heads is watched: what the two projections return, cut into heads, is what the module scores. For some
families the rest of the score is known too, so their rows can be rebuilt exactly:

- CANINE: 1/√d_head and a mask; its character layers attend window by window, one call for each;
- CvT: scale embed_dim^−½ (not d_head^−½), no mask, keys fewer than queries;
- MPNet: 1/√d_head, a mask and a relative position bias;
- RoFormer and GPT-J: 1/√d_head and a mask, after a rotation of queries and keys that is repeated here.

For any other (DeBERTa adds relative terms, WavLM gates a position bias, Longformer's rows are local and global at once)
queries and keys, as the projections return them, are all that is given: `scaling` is then None, and no rows are rebuilt
that would not be the model's.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

_PAIRS = (
    ("query", "key"),
    ("q_proj", "k_proj"),
    ("query_proj", "key_proj"),
    ("projection_query", "projection_key"),
    ("q_lin", "k_lin"),
    ("to_q", "to_k"),
    ("q", "k"),
)
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads")


@dataclass(frozen=True)
class Projected:
    """One call of an attention module, as its projections show it.

    `scaling`, `mask` (to add, or True where visible) and `bias` rebuild the scores; `scaling` is None where that fails.
    `windowed`: the call is one of several windows of a sequence, and its first query stands at `start`.
    """

    module: nn.Module
    query: Tensor  # (B, heads, Tq, d_head)
    key: Tensor  # (B, key heads, Tk, d_head)
    scaling: float | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None
    windowed: bool = False
    start: int = 0
    plain: tuple[Tensor, Tensor] | None = None  # query and key before rotation, where they were rotated here


Emit = Callable[[Projected], None]


def uses_interface(module: nn.Module) -> bool:
    """Whether the file that defines the module calls transformers' attention interface."""
    return hasattr(sys.modules.get(type(module).__module__), "ALL_ATTENTION_FUNCTIONS")


def watch_projections(module: nn.Module, emit: Emit) -> list[RemovableHandle]:
    """Hook every attention module with recognisable projections outside the interface; `emit` gets each call."""
    watches: dict[nn.Module, _Watch] = {}
    for part in module.modules():
        pair = _projections(part)
        if pair is not None and not uses_interface(part):
            watches[part] = _Watch(part, *pair, emit)
    for part in module.modules():
        if getattr(part, "local", False) is True:  # CanineAttention: runs its module `self` on one window after another
            for watch in (watches[child] for child in part.children() if child in watches):
                watch.follow_windows_of(part)
    return [handle for watch in watches.values() for handle in watch.handles]


def _projections(module: nn.Module) -> tuple[nn.Module, nn.Module] | None:
    """The query and the key projection of an attention module, if it is recognisable as one."""
    children = dict(module.named_children())
    pairs = [(children[q], children[k]) for q, k in _PAIRS if q in children and k in children]
    return pairs[0] if pairs and _heads(module) else None


def _heads(module: nn.Module) -> int:
    counts = (getattr(module, name, None) for name in _HEADS)
    return next((count for count in counts if isinstance(count, int)), 0)


class _Watch:
    """The hooks on one attention module: remember what its projections return, say when the module is done."""

    def __init__(self, module: nn.Module, query: nn.Module, key: nn.Module, emit: Emit) -> None:
        self.projections, self.emit = {"query": query, "key": key}, emit
        self.seen: dict[str, Tensor] = {}
        self.windowed, self.start = False, 0
        self.handles = [
            query.register_forward_hook(self._remember("query")),
            key.register_forward_hook(self._remember("key")),
            module.register_forward_hook(self._done, with_kwargs=True),
        ]

    def _remember(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def keep(module: nn.Module, _: Any, output: Any) -> None:
            output = output[0] if isinstance(output, tuple) else output  # I-BERT: and its scale
            channels_first = isinstance(module, nn.Conv1d)  # SqueezeBERT
            output = output.mT if channels_first else output
            self.seen.setdefault(name, output.clone())  # some scale it in place; DeBERTa projects positions afterwards

        return keep

    def follow_windows_of(self, outer: nn.Module) -> None:
        """`outer` runs the module once for each window: count positions from where it begins."""

        def begin(*_: Any) -> None:
            self.windowed, self.start = True, 0

        self.handles.append(outer.register_forward_pre_hook(begin))

    def _done(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        given = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        for name, projection in self.projections.items():
            if name not in self.seen:  # the module used the projection's weights without calling it
                self.seen[name] = projection(next(value for value in given.values() if torch.is_tensor(value)))
        width = self.seen["query"].shape[-1] // _heads(module)
        # (B, T, heads · d_head) → (B, heads, T, d_head)
        query, key = (self.seen[name].unflatten(-1, (-1, width)).transpose(1, 2) for name in ("query", "key"))
        name = type(module).__name__
        if (type(module).__module__.rpartition("_")[2], name) in _TIME_FIRST:
            query, key = query.transpose(0, 2), key.transpose(0, 2)
        self.seen.clear()
        rebuilt = _SCORES.get(name, lambda *_: {})(module, given, width)
        if name in _ROTATIONS:
            rebuilt["plain"] = query, key
            query, key = _ROTATIONS[name](module, given, query, key)
        self.emit(Projected(module, query, key, **rebuilt, windowed=self.windowed, start=self.start))
        self.start += query.shape[2]


# -- how the families that are known make scores of queries and keys ---------------------------------------------------


def _canine(_: nn.Module, given: dict[str, Any], width: int) -> dict[str, Any]:
    mask = given.get("attention_mask")
    if mask is not None and mask.ndim == 3:  # ones and zeros, before the library makes an additive mask of it
        mask = (1.0 - mask[:, None].float()) * torch.finfo(torch.float32).min
    return {"scaling": width**-0.5, "mask": mask}


def _cvt(module: Any, _: dict[str, Any], __: int) -> dict[str, Any]:
    return {"scaling": module.scale}


def _mpnet(_: nn.Module, given: dict[str, Any], width: int) -> dict[str, Any]:
    return {"scaling": width**-0.5, "mask": given.get("attention_mask"), "bias": given.get("position_bias")}


def _longformer(_: nn.Module, given: dict[str, Any], __: int) -> dict[str, Any]:
    padding = given.get("is_index_masked")  # (B, T)
    return {} if padding is None else {"mask": ~padding[:, None, None]}


def _rotary(_: nn.Module, given: dict[str, Any], width: int) -> dict[str, Any]:
    return {"scaling": width**-0.5, "mask": given.get("attention_mask")}


def _rotate_roformer(module: Any, given: dict[str, Any], query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    angles = given.get("sinusoidal_pos")
    return (query, key) if angles is None else module.apply_rotary_position_embeddings(angles, query, key)


def _rotate_gptj(module: Any, given: dict[str, Any], query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb

    places = given["position_ids"]
    sin, cos = module._get_embed_positions(places)[0][places].to(key.dtype).chunk(2, dim=-1)
    width = 2 * sin.shape[-1]  # a part of the dimensions may not be rotated

    def rotate(x: Tensor) -> Tensor:
        turned = apply_rotary_pos_emb(x[..., :width].transpose(1, 2), sin, cos).transpose(1, 2)
        return torch.cat([turned, x[..., width:]], -1)

    return rotate(query), rotate(key)


_SCORES: dict[str, Callable[[Any, dict[str, Any], int], dict[str, Any]]] = {
    "CanineSelfAttention": _canine,
    "CvtSelfAttention": _cvt,
    "GPTJAttention": _rotary,
    "LEDEncoderSelfAttention": _longformer,
    "LongformerSelfAttention": _longformer,
    "MPNetSelfAttention": _mpnet,
    "RoFormerSelfAttention": _rotary,
}
_ROTATIONS: dict[str, Callable[[Any, dict[str, Any], Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "GPTJAttention": _rotate_gptj,
    "RoFormerSelfAttention": _rotate_roformer,
}
_TIME_FIRST = (("fsmt", "Attention"), ("led", "LEDEncoderSelfAttention"), ("longformer", "LongformerSelfAttention"))
"""They project (T, B, d)."""
