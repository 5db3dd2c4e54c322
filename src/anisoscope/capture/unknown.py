"""Architectures that are in no table: guess the stacks from the shape of the module tree, then check the guess.

The guess: the blocks are the members of a list of modules: of the classes that the library itself records as
`hidden_states` where it says so (Jamba has two), else of one class, in the outermost such list with the most
parameters. The final norm is a norm beside the list or above it. The check, on the first batch: what the hooks see must
be what the model returns as `hidden_states`, one by one, and the final norm must be fed the last block's output. If the
guess fails, the model's own `hidden_states` are measured as they come, as sites `state.K`: whether the last of them is
before or after a final norm is then up to the model, which is why it is not called `block.K`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anisoscope.capture.families import Stack
from anisoscope.capture.hooks import hooked
from anisoscope.errors import ModelError

if TYPE_CHECKING:
    from anisoscope.capture.sites import Site

_SIDES = ("encoder", "decoder")


def part_at(module: nn.Module, path: str) -> nn.Module | None:
    """The module at a dotted path, or `None`."""
    part: Any = module
    for name in path.split(".") if path else ():
        part = getattr(part, name, None)
    return part if isinstance(part, nn.Module) else None


def guess_stacks(body: nn.Module) -> list[Stack]:
    """The likely stacks of a model, encoder before decoder."""
    recorded = _recorded_classes(body)
    found = _outermost(_lists(body, recorded)) or _outermost(_lists(body, (nn.Module,)))
    if not found:
        raise ModelError(
            "no list of blocks was found in this model",
            where=type(body).__name__,
            expected="a ModuleList or Sequential of modules",
        )
    named = [path for path, blocks in found if recorded and isinstance(blocks[0], recorded)]
    stacks = _by_side(named or [path for path, _ in found])
    if stacks is None:
        path = max(named or [path for path, _ in found], key=lambda path: _size(part_at(body, path)))
        stacks = [Stack(path, positions="unknown")]
    return [_with_norm(body, stack) for stack in stacks]


def _lists(body: nn.Module, mixed: tuple[type, ...]) -> Iterator[tuple[str, nn.ModuleList | nn.Sequential]]:
    """Lists of composed modules, of one class or of those that may be `mixed`."""
    for path, part in body.named_modules():
        if isinstance(part, nn.ModuleList | nn.Sequential) and len(part) and _size(part):
            alike = len({type(member) for member in part}) == 1 or all(isinstance(member, mixed) for member in part)
            if alike and all(next(member.children(), None) is not None for member in part):
                yield path, part


def _outermost(
    lists: Iterable[tuple[str, nn.ModuleList | nn.Sequential]],
) -> list[tuple[str, nn.ModuleList | nn.Sequential]]:
    kept: list[tuple[str, nn.ModuleList | nn.Sequential]] = []
    for path, part in lists:  # named_modules gives the outer before the inner
        if not any(path.startswith(f"{outer}.") for outer, _ in kept):
            kept.append((path, part))
    return kept


def _recorded_classes(body: nn.Module) -> tuple[type, ...]:
    """The classes whose outputs the library returns as `hidden_states`, where the model says so."""
    recorded = (getattr(body, "_can_record_outputs", None) or {}).get("hidden_states", ())
    entries = recorded if isinstance(recorded, list | tuple) else [recorded]
    classes = [getattr(entry, "target_class", entry) for entry in entries]
    return tuple(one for one in classes if isinstance(one, type))


def _by_side(paths: list[str]) -> list[Stack] | None:
    """An encoder and a decoder, if there is exactly one list in each."""
    sides = {side: [path for path in paths if side in path.split(".")] for side in _SIDES}
    if any(len(found) != 1 for found in sides.values()):
        return None
    return [
        Stack(found[0], None, f"{side}.", f"{side}.embeddings", f"{side}.final_norm", positions="unknown")
        for side, found in sides.items()
    ]


def _with_norm(body: nn.Module, stack: Stack) -> Stack:
    """Add the norm that may follow the blocks: beside their list, or beside what holds the list."""
    owner = stack.blocks
    while owner:
        owner = owner.rpartition(".")[0]
        parent = part_at(body, owner)
        assert parent is not None
        names = [name for name, part in parent.named_children() if _is_norm(part)]
        likely = [name for name in names if "embed" not in name] or names  # LFM2 calls its final norm embedding_norm
        if likely:
            name = next((name for name in likely if name == "norm" or "final" in name), likely[-1])
            path = f"{owner}.{name}" if owner else name
            return Stack(stack.blocks, path, stack.name, stack.enters, stack.ends, stack.positions)
    return stack


def _is_norm(part: nn.Module) -> bool:
    return "norm" in type(part).__name__.lower() and next(part.children(), None) is None


def _size(part: nn.Module | None) -> int:
    return 0 if part is None else sum(weight.numel() for weight in part.parameters())


@dataclass(frozen=True)
class Checked:
    """The sites that hold, what to say about them, and whether they are the library's `hidden_states`."""

    sites: tuple[Site, ...]
    note: str
    from_library: bool = False


def check_sites(module: nn.Module, sites: Sequence[Site], inputs: dict[str, Any]) -> Checked:
    """Run the model once and compare guessed sites with its `hidden_states`."""
    family = getattr(getattr(module, "config", None), "model_type", type(module).__name__)
    norm_inputs = {
        replace(site, name=f"{site.name}:input", take="input"): site for site in sites if site.kind == "norm"
    }
    seen: dict[str, Tensor] = {}
    with hooked(module, [*sites, *norm_inputs], lambda site, state: seen.__setitem__(site.name, state)) as reached:
        returned = library_states(module, inputs)
    unfed = {site for before, site in norm_inputs.items() if not _fed_by_last_block(before, site, sites, seen)}
    kept = tuple(site for site in sites if site not in unfed)
    if all(site in reached for site in kept):
        if not returned:
            return Checked(
                kept, f"{family}: sites guessed from the module tree; the model returns nothing to check with"
            )
        if _agree(kept, seen, returned):
            return Checked(kept, f"{family}: sites guessed from the module tree, equal to the model's hidden_states")
    if not returned:
        raise ModelError(
            "the blocks of this model cannot be found, and it returns no hidden_states",
            where=family,
            got=f"guessed {', '.join(site.path for site in sites[:4])}…",
        )
    return Checked(
        tuple(_library_sites(sites[0], returned)),
        f"{family}: unknown architecture, its own hidden_states are measured; the last may be after a final norm",
        from_library=True,
    )


def library_states(module: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor]:
    """Run the model; its own hidden states by name (`state.0`, `encoder.state.0`, …), empty if it returns none."""
    return returned_states(module(**inputs, **hidden_states_option(module)))


def hidden_states_option(module: nn.Module) -> dict[str, Any]:
    """The argument that makes a model return its hidden states, where its forward takes it."""
    parameters = inspect.signature(module.forward).parameters.values()
    taken = any(one.name == "output_hidden_states" or one.kind is one.VAR_KEYWORD for one in parameters)
    return {"output_hidden_states": True} if taken else {}


def returned_states(outputs: Any) -> dict[str, Tensor]:
    """The hidden states of an output by name."""
    names = {"": "hidden_states", "encoder.": "encoder_hidden_states", "decoder.": "decoder_hidden_states"}
    series = {side: getattr(outputs, name, None) or () for side, name in names.items()}
    return {
        f"{side}state.{k}": state[0] if isinstance(state, tuple) else state  # PEGASUS-X adds its global tokens
        for side, states in series.items()
        for k, state in enumerate(states)
    }


def _fed_by_last_block(before: Site, norm: Site, sites: Sequence[Site], seen: dict[str, Tensor]) -> bool:
    """Whether what enters the norm is the output of the last block before it."""
    last = [site for site in sites[: sites.index(norm)] if site.kind == "block"][-1]
    return before.name in seen and last.name in seen and _same(seen[before.name], seen[last.name])


def _agree(sites: Sequence[Site], seen: dict[str, Tensor], returned: dict[str, Tensor]) -> bool:
    """Whether the returned states are states of the sites, in order, and leave out no block but perhaps the last."""
    for side in {site.name[: -len("embeddings")] for site in sites if site.kind == "embeddings"}:
        states = [state for name, state in returned.items() if name.startswith(f"{side}state.")]
        here = [site for site in sites if site.name.startswith(side)]
        missed = []
        for site in here:
            if states and _same(seen[site.name], states[0]):
                states.pop(0)
            elif site.kind == "block":
                missed.append(site)
        last = [site for site in here if site.kind == "block"][-1:]
        if states or missed not in ([], last):
            return False
    return True


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


def _library_sites(example: Site, returned: dict[str, Tensor]) -> Iterator[Site]:
    for name in returned:
        layer = int(name.rpartition(".")[2])
        yield replace(
            example, name=name, path="", kind="block", take="output", layer=layer, positions="unknown", prefix_tokens=0
        )
