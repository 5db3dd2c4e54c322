"""What each part of a block adds to the residual stream, as sites of their own: `block.3.attention`, `block.3.mlp`.

A block with the norms before its parts puts out x + attention + mlp; one with norms after them, LN(LN(x + attention) +
mlp). The sites hold `attention` and `mlp` as they are added: after the output projection, and after a norm or a gain
that stands between the part and the stream (Gemma 2, OLMo 2, DINOv2). Factors without a module, such as Granite's
residual multiplier, are not in them, and cross-attention has no such site.

The module of a part is found by its name within the block: the first of the names below that exists. Blocks of staged
networks, whose attention sees windows, and blocks without these names have no such sites.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from torch import nn

from anisoscope.capture.sites import Site
from anisoscope.capture.unknown import part_at

_AFTER_NORM = {"attention": "post_attention_layernorm", "mlp": "post_feedforward_layernorm"}  # if both are there
_NAMES = {
    "attention": (
        *("layer_scale1", "attention.output.dense", "attention.attn", "self_attention.dense"),
        *("albert_layers.0.attention.dense", "layer.0.SelfAttention"),
        *("attn", "self_attn", "self_attention", "attention"),
    ),
    "mlp": (
        *("layer_scale2", "output.dense", "mlp.dense_4h_to_h", "albert_layers.0.ffn_output"),
        *("layer.2.DenseReluDense", "layer.1.DenseReluDense", "mlp", "ffn", "feed_forward", "fc2"),
    ),
}
_ADD_INSIDE = ("bloom",)  # here attention and MLP add the stream themselves, so their last projection is taken


def with_parts(module: nn.Module, sites: Iterable[Site]) -> list[Site]:
    """The sites, with those of the parts before each block, in order of computation."""
    found: list[Site] = []
    for site in sites:
        found += [*_parts(module, site), site] if site.kind == "block" and site.positions != "map" else [site]
    return found


def _parts(module: nn.Module, site: Site) -> Iterator[Site]:
    block = module.get_submodule(site.path)
    for part in _NAMES:
        path = _path(block, part)
        if path is not None:
            yield replace(site, name=f"{site.name}.{part}", path=f"{site.path}.{path}", kind="part", layer=None)


def _path(block: nn.Module, part: str) -> str | None:
    if all(part_at(block, name) is not None for name in _AFTER_NORM.values()):
        return _AFTER_NORM[part]
    inside = any(family in type(block).__module__ for family in _ADD_INSIDE)
    names = (name for name in _NAMES[part] if inside or name not in ("self_attention.dense", "mlp.dense_4h_to_h"))
    return next((name for name in names if part_at(block, name) is not None), None)
