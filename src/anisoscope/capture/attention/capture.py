"""Queries, keys and attention rows, taken while a model runs; what the model computes does not change.

`AttentionCapture` puts one attention function in the place of the model's own, through transformers' interface, and a
mask function of the same name (an attention function without one loses the causal and the padding mask silently):

    with AttentionCapture(module, sink):
        module(**inputs)                 # sink("block.3", call) once per attention layer

The sink reads `call.queries` and `call.keys`, and walks `call.chunks()` for scores and probabilities
(`attention_call`). What is put right on the way, so that a call means the same in every architecture:

- scale: Whisper and OPT hand over queries that are already multiplied by 1/√d_head; that is undone, so norms compare.
- padding: a position of self-attention that no row sees is padding, as query too. Cross-attention takes its valid
  queries from the self-attention of the same block.
- rotary positions: queries and keys are those that are scored, after rotation; with `before_rotary` they are turned
  back, by the model's own rotation with the sine negated. Scores are the model's either way.
- shared modules: ALBERT runs one module many times; each call is a block of its own.
- attention that is not softmax: a module that carries an `anisoscope_attention` (see `models.attention_kinds`) says
  itself how queries and keys are scored, how scores become weights, and what becomes of the output. Any other attention
  function that somebody registered is refused, rather than replaced by softmax in silence.

Models outside the interface: `attention_fallbacks`. Models without attention are refused: "no queries and keys here".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from anisoscope.capture.attention.call import QUERY_CHUNK, AttentionCall, Kind, additive_mask, grouped, visibility
from anisoscope.capture.attention.fallbacks import Projected, uses_interface, watch_projections
from anisoscope.capture.attention.rotary import Rotations
from anisoscope.capture.sites import find_sites
from anisoscope.errors import ModelError

NAME = "anisoscope"
_CROSS = re.compile(r"cross|encdec|encoder_att", re.IGNORECASE)

Sink = Callable[[str, AttentionCall], None]

_active: list[AttentionCapture] = []


class AttentionCapture:
    """While it is entered, every attention layer of `module` calls `sink(site, call)`; afterwards all is as before.

    Site names are those of the block that the layer stands in (`block.3`, `encoder.block.0`, `stage.1.block.0`), with
    `.cross` for cross-attention. A capture within a capture takes the calls of the modules that both contain until it
    ends. `before_rotary` gives queries and keys as they were before rotation; `query_chunk` bounds the rows of a tile.
    """

    def __init__(
        self, module: nn.Module, sink: Sink, *, before_rotary: bool = False, query_chunk: int = QUERY_CHUNK
    ) -> None:
        self.module, self.sink = module, sink
        self.before_rotary, self.query_chunk = before_rotary, query_chunk
        self._paths = {part: path for path, part in module.named_modules()}
        self._blocks = _blocks(module)
        self._calls: Counter[nn.Module] = Counter()
        self._names: dict[str, nn.Module] = {}
        self._valid: dict[str, Tensor] = {}
        self._rotations: Rotations | None = None
        self._previous: list[tuple[Any, str | None]] = []
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask

        within = [part for part in self.module.modules() if uses_interface(part)]
        for part in within:
            _refuse_foreign(part)
        self._handles = watch_projections(self.module, self._projected)
        if not within and not self._handles:
            raise _no_attention(self.module)
        AttentionInterface.register(NAME, _attention)
        AttentionMaskInterface.register(NAME, eager_mask)
        configs: dict[int, Any] = {id(part.config): part.config for part in within if hasattr(part, "config")}
        self._previous = [(config, config._attn_implementation_internal) for config in configs.values()]
        for config, _ in self._previous:
            config._attn_implementation_internal = NAME
        self._handles.append(self.module.register_forward_pre_hook(self._begin))
        self._handles.append(self.module.register_forward_hook(self._end))
        self._rotations = Rotations(within) if self.before_rotary else None
        _active.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _active.remove(self)
        for config, implementation in self._previous:
            config._attn_implementation_internal = implementation
        for handle in self._handles:
            handle.remove()
        if self._rotations is not None:
            self._rotations.remove()
        self._valid.clear()

    def owns(self, module: nn.Module) -> bool:
        return module in self._paths

    def _begin(self, *_: object) -> None:
        self._calls.clear()

    def _end(self, *_: object) -> None:
        if not self._calls and _owner(self.module) is self:
            raise _no_attention(self.module)

    def see(self, seen: Projected, **options: Any) -> AttentionCall:
        """Make a call of what was seen and give it to the sink; `options` are fields of the call."""
        block, name, kind = self._place(seen.module)
        mask = additive_mask(seen.mask, seen.key.shape[2], seen.query.dtype)
        visible = visibility(mask)
        valid_keys = torch.ones(len(seen.key), seen.key.shape[2], dtype=torch.bool, device=seen.key.device)
        valid_keys = valid_keys if visible is None else valid_keys & visible.any(1)
        if kind == "self" and seen.query.shape[2] == seen.key.shape[2]:
            self._valid[block] = valid_keys
        valid_queries = self._valid.get(block)
        if valid_queries is None or valid_queries.shape != seen.query.shape[::2]:
            valid_queries = valid_keys.new_ones(seen.query.shape[::2])  # (B, Tq)
        queries, keys = self._unrotated(seen) if self.before_rotary else (seen.query, seen.key)
        fields: dict[str, Any] = {"score_queries": seen.query, "score_keys": seen.key, "scaling": seen.scaling}
        fields |= {"mask": mask, "bias": seen.bias, "windowed": seen.windowed, "start": seen.start} | options
        call = AttentionCall(
            queries=queries,
            keys=keys,
            kind=kind,
            valid_queries=valid_queries,
            valid_keys=valid_keys,
            visible=visible,
            query_chunk=self.query_chunk,
            **fields,
        )
        self.sink(name, call)
        return call

    def _place(self, module: nn.Module) -> tuple[str, str, Kind]:
        """The path of the block that an attention module stands in, the name of its site, and its kind."""
        path = self._paths[module]
        block = max((prefix for prefix in self._blocks if f"{path}.".startswith(f"{prefix}.")), key=len, default=path)
        kind = "cross" if _CROSS.search(path.removeprefix(block)) else "self"
        names = self._blocks.get(block, [path])
        name = names[self._calls[module] % len(names)] + (".cross" if kind == "cross" else "")
        self._calls[module] += 1
        if self._names.setdefault(name, module) is not module:  # a block with two attentions of one kind
            name = f"{name}.{path.rsplit('.', 1)[-1]}"
        return block, name, kind

    def _unrotated(self, seen: Projected) -> tuple[Tensor, Tensor]:
        """Queries and keys before rotation."""
        if seen.plain is not None:
            return seen.plain
        rotation = self._rotations.of(seen.module) if self._rotations else None
        return (seen.query, seen.key) if rotation is None else rotation.back(seen.query, seen.key)

    def _projected(self, seen: Projected) -> None:
        if _owner(seen.module) is self:
            with torch.no_grad():
                self.see(seen)


def _blocks(module: nn.Module) -> dict[str, list[str]]:
    """Path of each block to the names of its sites: several where one module runs as several blocks (ALBERT)."""
    blocks: dict[str, list[str]] = {}
    for site in find_sites(module):
        if site.kind == "block":
            blocks.setdefault(site.path, []).append(site.name)
    return blocks


def _no_attention(module: nn.Module) -> ModelError:
    return ModelError(
        "no queries and keys here",
        where=type(module).__name__,
        expected="a model with attention, through transformers' interface or with query and key projections",
        do="measure its hidden states instead",
    )


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function that the interface calls: standard attention, shown to the innermost capture."""
    if options.get("s_aux") is not None:
        raise ModelError("attention with learned sink logits cannot be captured", where=type(module).__name__)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    own = getattr(module, "scaling", None)
    if scale == 1.0 and isinstance(own, float) and own != 1.0:  # Whisper, OPT: the query comes multiplied by its scale
        query, scale = query / own, own
    # the tiles are for looking: where gradients or dropout are wanted, the output is computed apart
    apart = dropout > 0 or (torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value)))
    variant, capture = getattr(module, "anisoscope_attention", None), _owner(module)
    if capture is not None:
        seen = Projected(module, query.detach(), key.detach(), scale, attention_mask, position_bias)
        fields = {"values": None if apart else value, "softcap": softcap}
        with torch.no_grad():
            call = capture.see(seen, **fields, **({} if variant is None else _as_scored(variant, seen)))
            if not apart:
                return call.context() if variant is None else variant.finish(call.context()), None
    if variant is not None:
        return variant.attend(query, key, value, attention_mask, scaling=scale, dropout=dropout)[0], None
    scores = grouped(query * scale, key.mT)
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    for term in (position_bias, additive_mask(attention_mask, key.shape[2], query.dtype)):
        scores = scores if term is None else scores + term
    weights = nn.functional.dropout(scores.softmax(-1, dtype=torch.float32).to(value.dtype), dropout)
    return grouped(weights, value).transpose(1, 2).contiguous(), None


def _as_scored(variant: Any, seen: Projected) -> dict[str, Any]:
    """The fields of a call whose module has its own way to score and to weigh."""
    mask = additive_mask(seen.mask, seen.key.shape[2], seen.query.dtype)
    queries, keys = variant.transform(seen.query, seen.key, mask, scaling=seen.scaling)
    return {"score_queries": queries, "score_keys": keys, "weigh": variant.weights}


def _refuse_foreign(module: nn.Module) -> None:
    """An attention function that is neither the library's nor ours may be anything: do not put softmax in its place."""
    from transformers import AttentionInterface

    name = getattr(getattr(module, "config", None), "_attn_implementation", None)
    function = AttentionInterface().get(name) if isinstance(name, str) else None
    home = getattr(function, "__module__", "transformers").partition(".")[0]
    if home not in ("transformers", "functools", __name__.partition(".")[0]):
        raise ModelError(
            "this model computes attention in its own way, which cannot be watched",
            where=type(module).__name__,
            got=f"attention function {name!r} from {home}",
            do="call set_attn_implementation('eager') to measure it with softmax attention",
        )


def _owner(module: nn.Module) -> AttentionCapture | None:
    return next((capture for capture in reversed(_active) if capture.owns(module)), None)
