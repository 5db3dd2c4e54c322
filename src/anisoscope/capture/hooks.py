"""Hooks on the modules of sites, which come off again whatever happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from anisoscope.errors import ModelError

if TYPE_CHECKING:
    from anisoscope.capture.sites import Site

Receive = Callable[["Site", Tensor], None]


@contextmanager
def hooked(module: nn.Module, sites: Sequence[Site], receive: Receive) -> Iterator[set[Site]]:
    """Within this context one forward pass calls `receive(site, state)` at each site; yields the sites reached."""
    reached: set[Site] = set()
    handles = [module.register_forward_pre_hook(_only_once())]
    try:
        for path in dict.fromkeys(site.path for site in sites):
            here = [site for site in sites if site.path == path]
            handles += _hook(module.get_submodule(path), here, receive, reached)
        yield reached
    finally:
        for handle in handles:
            handle.remove()


def _hook(part: nn.Module, sites: Sequence[Site], receive: Receive, reached: set[Site]) -> Iterator[RemovableHandle]:
    """Two hooks on one module, which may hold several sites: its input, its output, and each of its calls."""
    inputs = {site.call: site for site in sites if site.take == "input"}
    outputs = {site.call: site for site in sites if site.take == "output"}
    calls: Counter[str] = Counter()

    def take(site: Site | None, state: Tensor | None) -> None:
        if site is None:
            return
        if state is None:
            raise ModelError("there is no tensor at a site", where=f"{site.name} ({site.path})")
        reached.add(site)
        receive(site, state)

    def before(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        take(inputs.get(calls["before"]), _first_tensor((*args, named.get("hidden_states"), named)))
        calls["before"] += 1

    def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        take(outputs.get(calls["after"]), _first_tensor((output,)))
        calls["after"] += 1

    if inputs:
        yield part.register_forward_pre_hook(before, with_kwargs=True)
    if outputs:
        yield part.register_forward_hook(after)


def _only_once() -> Callable[..., None]:
    """A second pass would be taken for a later call of the blocks, and its states would be lost silently."""
    passes: list[bool] = []

    def before(module: nn.Module, args: Any) -> None:
        if passes:
            raise ModelError("a batch must be one forward pass", where=type(module).__name__, got="a second one")
        passes.append(True)

    return before


def _first_tensor(values: Sequence[Any]) -> Tensor | None:
    """The state among a module's arguments or results: the first tensor, also inside a tuple or a mapping."""
    for value in values:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, Mapping):
            value = tuple(value.values())
        found = _first_tensor(value) if isinstance(value, tuple | list) else None
        if found is not None:
            return found
    return None
