"""What an intervention changes in a running model: constants that were measured before, and hooks that apply them.

States at the first position of a window neither count for the means nor are they moved: many models keep a state there
that is a hundred times longer than all others, and its share of the mean would be a displacement of everything.

With `before_rotary` the means of queries and keys are those before rotation; they are turned with the position as the
queries and keys are, and then taken away from these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anisoscope.capture.attention.call import AttentionCall
from anisoscope.capture.attention.capture import AttentionCapture
from anisoscope.capture.attention.fallbacks import Projected
from anisoscope.capture.sites import Site, find_sites
from anisoscope.studies.intervene import FACTORS

if TYPE_CHECKING:
    from anisoscope.models.open import OpenModel

See = Callable[[str, AttentionCall], None]
Vectors = dict[str, Tensor]  # by site


@dataclass(frozen=True)
class Means:
    """What the first pass found: means of queries and keys (heads, d_head), of states (d,), their top axes (d, k)."""

    queries: Vectors
    keys: Vectors
    hidden: Vectors
    axes: Vectors
    before_rotary: bool = False

    def turned(self, seed: int) -> Means:
        """The same norms in random directions: the control. States of all blocks are turned by one rotation, so that
        the angles between the means of different blocks stay what they are."""
        draw = torch.Generator().manual_seed(seed)
        widths = {len(mean) for mean in self.hidden.values()}
        rotation = {d: torch.linalg.qr(torch.randn(d, d, generator=draw))[0] for d in sorted(widths)}

        def anew(means: Vectors) -> Vectors:
            noise = {site: torch.randn(mean.shape, generator=draw) for site, mean in means.items()}
            return {
                site: part / part.norm(dim=-1, keepdim=True) * means[site].norm(dim=-1, keepdim=True)
                for site, part in noise.items()
            }

        hidden, axes = (
            {site: rotation[len(of_site)] @ of_site for site, of_site in vectors.items()}
            for vectors in (self.hidden, self.axes)
        )
        return Means(anew(self.queries), anew(self.keys), hidden, axes, self.before_rotary)


@dataclass(frozen=True)
class Intervention:
    """One intervention, or with `means` in random directions its control.

    `shifts` are added to the states; `centres` are the measured means, of the control too.
    """

    name: str
    means: Means
    shifts: Vectors = field(default_factory=dict)
    centres: Vectors = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.name.removesuffix(".control")

    @property
    def is_control(self) -> bool:
        return self.name.endswith(".control")


# -- what is applied ---------------------------------------------------------------------------------------------------


@contextmanager
def applied(model: OpenModel, change: Intervention, blocks: Sequence[Site], see: See | None = None) -> Iterator[None]:
    """Within this context the model runs with the intervention; `see(site, call)` is shown every attention call."""
    with ExitStack() as stack:
        if change.means.queries:
            stack.enter_context(_edited_attention(model.module, change, {site.name for site in blocks}, see))
        if change.kind in FACTORS:
            stack.enter_context(editing(model.module, blocks, _shifting(change.shifts)))
        if change.kind == "top_components":
            stack.enter_context(editing(model.module, blocks, _without_axes(change)))
        if change.kind == "final_norm_bias":
            stack.enter_context(_without_bias(model.module, random=change.is_control))
        yield


def _edited_attention(module: nn.Module, change: Intervention, chosen: set[str], see: See | None) -> AttentionCapture:
    means = change.means

    def edit(site: str, call: AttentionCall) -> None:
        if site in chosen and change.kind == "mean_query":
            call.score_queries = call.score_queries - capture.turned(means.queries[site], call.score_queries)
        if site in chosen and change.kind == "mean_key":
            call.score_keys = call.score_keys - capture.turned(means.keys[site], call.score_keys)
        if see is not None:
            see(site, call)

    capture = _TurningCapture(module, edit, before_rotary=means.before_rotary)
    return capture


class _TurningCapture(AttentionCapture):
    """A capture that can turn a vector as the queries of the call at hand were turned."""

    def see(self, seen: Projected, **options: Any) -> AttentionCall:
        self._seen = seen
        return super().see(seen, **options)

    def turned(self, mean: Tensor, like: Tensor) -> Tensor:
        """A mean (heads, d_head) as it is taken from vectors (B, heads, T, d_head)."""
        mean = mean[:, None].to(like)
        rotation = self._rotations.of(self._seen.module) if self._rotations else None
        if rotation is None:
            return mean
        wide = mean.expand(len(rotation.cos), -1, rotation.cos.shape[-2], -1)  # (B, heads, T, d_head)
        return rotation.there(wide, wide)[0]


@contextmanager
def editing(module: nn.Module, sites: Sequence[Site], change: Callable[[Site, Tensor], Tensor]) -> Iterator[None]:
    """Within this context `change(site, state)` stands in for the output at each site, in one forward pass."""
    with ExitStack() as stack:
        for path in dict.fromkeys(site.path for site in sites):
            by_call = {site.call: site for site in sites if site.path == path}
            handle = module.get_submodule(path).register_forward_hook(_edit(by_call, change))
            stack.callback(handle.remove)
        yield


def _edit(by_call: dict[int, Site], change: Callable[[Site, Tensor], Tensor]) -> Callable[..., Any]:
    """A hook on a module that may run as several blocks (ALBERT)."""
    calls: Counter[str] = Counter()

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        site = by_call.get(calls["done"])
        calls["done"] += 1
        if site is None:
            return output
        return (change(site, output[0]), *output[1:]) if isinstance(output, tuple) else change(site, output)

    return hook


def with_rest(state: Tensor, rest: Tensor) -> Tensor:
    """The state (B, T, d) with other vectors after the first position."""
    return torch.cat([state[:, :1], rest], 1)


def _shifting(shifts: Vectors) -> Callable[[Site, Tensor], Tensor]:
    return lambda site, state: with_rest(state, state[:, 1:] + shifts[site.name].to(state))


def _without_axes(intervention: Intervention) -> Callable[[Site, Tensor], Tensor]:
    """x − AAᵀ(x − x̄): what varies along the axes goes, the mean stays."""

    def change(site: Site, state: Tensor) -> Tensor:
        axes, mean = (
            vectors[site.name].to(state) for vectors in (intervention.means.axes, intervention.centres)
        )  # (d, k), (d,)
        rest = state[:, 1:]
        return with_rest(state, rest - ((rest - mean) @ axes) @ axes.T)

    return change


@contextmanager
def _without_bias(module: nn.Module, *, random: bool) -> Iterator[None]:
    bias = final_bias(module)
    assert bias is not None
    before = bias.detach().clone()
    noise = torch.randn(before.shape, generator=torch.Generator().manual_seed(0)).to(before)
    try:
        bias.data.copy_(before - noise / noise.norm() * before.norm() if random else torch.zeros_like(before))
        yield
    finally:
        bias.data.copy_(before)


def final_bias(module: nn.Module) -> nn.Parameter | None:
    """The bias of the final norm, where there is one."""
    norms = [site for site in find_sites(module) if site.kind == "norm"]
    return getattr(module.get_submodule(norms[-1].path), "bias", None) if norms else None
