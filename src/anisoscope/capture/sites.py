"""One name for each place in a network, whatever the library calls it.

A **site** is a named place where vectors are looked at. The names, in order of computation:

| name | what it is |
|---|---|
| `embeddings` | what enters the first block |
| `block.K` | the raw output of block K, whatever the library's `hidden_states` hold there |
| `final_norm` | what the final norm makes of the last block's output, where there is such a norm |
| `encoder.…`, `decoder.…` | the same of each stack of an encoder-decoder |
| `stage.S.block.K`, `stage.S.norm` | staged networks: block K of stage S, and the norm in which a stage ends |
| `block.K.attention`, `block.K.mlp` | what each part of the block adds, where asked for (`parts.py`) |
| `char.…`, plain, `final.…` | CANINE: characters, downsampled molecules, characters again |

`hidden_states[-1]` is before the final norm in some models of the library and after it in others; here the two are two
sites, everywhere. A site is the input or output of one call of one module, so finding them runs nothing.

>>> from transformers import GPT2Config, GPT2Model
>>> model = GPT2Model(GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=10))
>>> [(site.name, site.path, site.take) for site in find_sites(model)]  # doctest: +NORMALIZE_WHITESPACE
[('embeddings', 'h.0', 'input'), ('block.0', 'h.0', 'output'), ('block.1', 'h.1', 'output'),
 ('final_norm', 'ln_f', 'output')]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from torch import nn

from anisoscope.capture.families import Positions, Stack, known_stacks
from anisoscope.capture.unknown import guess_stacks, part_at
from anisoscope.errors import ModelError, UsageError

Kind = Literal["embeddings", "block", "norm", "part"]


@dataclass(frozen=True)
class Site:
    """A place in a network: what goes into or comes out of the `call`-th call of the module at `path`.

    - `layer`: the number of the block in its stack, or among all blocks of a staged network; missing for the others.
    - `positions`, `prefix_tokens`: what the positions of its state are (`families.Positions`), and how many of them, at
      the front, are special.
    """

    name: str
    path: str
    kind: Kind
    take: Literal["input", "output"] = "output"
    call: int = 0
    layer: int | None = None
    positions: Positions = "tokens"
    prefix_tokens: int = 0


@dataclass(frozen=True)
class SiteMap:
    """The sites of a model, in order of computation; `known` says that its family is in the tables, not guessed."""

    sites: tuple[Site, ...]
    known: bool


def find_sites(module: nn.Module) -> list[Site]:
    """The sites of a model, with or without head, in order of computation."""
    return list(map_sites(module).sites)


def map_sites(module: nn.Module) -> SiteMap:
    """The sites of a model, and whether they are known or guessed."""
    body, path = body_of(module)
    config = getattr(body, "config", None)
    stacks = [stack for stack in known_stacks(config) or () if part_at(body, stack.blocks) is not None]
    known = bool(stacks)
    if not stacks:
        _refuse_composite(config)
        stacks = guess_stacks(body)
    return SiteMap(tuple(_sites_of(body, stacks, path)), known)


def body_of(module: nn.Module) -> tuple[nn.Module, str]:
    """The model without its head, and its path (empty, or ending in a dot)."""
    body = getattr(module, "base_model", module)
    if body is module or not isinstance(body, nn.Module):
        return module, ""
    return body, next((f"{name}." for name, part in module.named_modules() if part is body), "")


def choose_sites(sites: Sequence[Site], patterns: str | Iterable[str]) -> list[Site]:
    """The sites whose names match one of the patterns (`*`, `?`, `[…]`), in order of computation.

    >>> sites = [Site(f"block.{k}", f"h.{k}", "block") for k in range(3)]
    >>> [site.name for site in choose_sites(sites, ["*.0", "block.[2-9]"])]
    ['block.0', 'block.2']
    """
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in wanted:
        if not any(fnmatchcase(site.name, pattern) for site in sites):
            names = [site.name for site in sites]
            shown = ", ".join(names if len(names) <= 12 else [*names[:6], "…", *names[-3:]])
            raise UsageError("no site of this model has such a name", got=repr(pattern), expected=shown)
    return [site for site in sites if any(fnmatchcase(site.name, pattern) for pattern in wanted)]


def _refuse_composite(config: Any) -> None:
    if hasattr(config, "text_config") and hasattr(config, "vision_config"):
        raise ModelError(
            "a model of two modalities has no single sequence of sites",
            where=getattr(config, "model_type", None),
            do="open one of its towers: --tower text or --tower vision",
        )


def _sites_of(body: nn.Module, stacks: Sequence[Stack], path: str) -> Iterator[Site]:
    calls: Counter[str] = Counter()
    layer = 0
    for stack in stacks:
        common: dict[str, Any] = {"positions": stack.positions, "prefix_tokens": stack.prefix_tokens}
        layer = layer if stack.name.startswith("stage.") else 0
        for number, member in enumerate(_order(body, stack)):
            block = f"{path}{stack.blocks}.{member}"
            if number == 0 and stack.enters is not None:
                yield Site(stack.enters, block, "embeddings", take="input", call=calls[block], **common)
            yield Site(f"{stack.name}block.{number}", block, "block", call=calls[block], layer=layer, **common)
            calls[block] += 1
            layer += 1
        norm = None if stack.norm is None else part_at(body, stack.norm)
        if norm is not None and not isinstance(norm, nn.Identity):
            yield Site(stack.ends, f"{path}{stack.norm}", "norm", **common)


def _order(body: nn.Module, stack: Stack) -> Sequence[int]:
    if stack.order is not None:
        return stack.order
    blocks = part_at(body, stack.blocks)
    assert isinstance(blocks, nn.ModuleList | nn.Sequential)
    return range(len(blocks))
