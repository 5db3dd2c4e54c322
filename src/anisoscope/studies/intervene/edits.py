"""What an intervention changes in a running model: constants that are measured first, and hooks that apply them.

`find_means` makes one pass over the data: Q̄ and K̄ of every head, x̄ and the top principal axes of every block. The
states need a second, `find_shifts`. Blocks hand on what they receive, so x̄ taken away after block 0 is missing after
block 1 as well, and taking the measured mean of each block away would take the lower ones away again and again. What
has to be added after block K is what moves the mean *that is there then* to where it is wanted, x̄ + (f − 1)·x̄: those
shifts are found block after block in one forward pass per batch, and their average over batches is the constant that is
applied. For f = 1 they are zero, exactly.

States at the first position of a window neither count for these means nor are they moved: many models keep a state
there that is a hundred times longer than all others, and its share of the mean would be a displacement of everything.

With `before_rotary` the means of queries and keys are those before rotation; they are turned with the position as the
queries and keys are, and then taken away from these.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from anisoscope.accumulate.moments import Moments
from anisoscope.capture.attention.call import AttentionCall
from anisoscope.capture.attention.capture import AttentionCapture
from anisoscope.capture.attention.fallbacks import Projected
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.capture.sites import Site, find_sites
from anisoscope.errors import ModelError
from anisoscope.geometry.spectrum import covariance
from anisoscope.studies.intervene.task import Task

if TYPE_CHECKING:
    from anisoscope.models.open import OpenModel

FACTORS = {"mean_hidden": 0.0, "drift@0.5": 0.5, "drift@2": 2.0}
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


# -- what is measured --------------------------------------------------------------------------------------------------


def find_means(
    model: OpenModel, tasks: Iterable[Task], blocks: Sequence[Site], *, attention: bool, before_rotary: bool = False
) -> Means:
    """The pass that measures what will be taken away."""
    chosen = {site.name for site in blocks}
    heads: dict[str, _HeadMeans] = {}
    moments: dict[str, Moments] = {}

    def see(site: str, call: AttentionCall) -> None:
        if site in chosen:
            heads.setdefault(site, _HeadMeans()).add(call, before_rotary=before_rotary)

    for task in tasks:

        def sink(site: str, vectors: Tensor, index: Any, task: Task = task) -> None:
            rest = ~index.first
            sums = moments.setdefault(site, Moments(vectors.shape[1], reservoir=0))
            sums.update(
                vectors[torch.from_numpy(rest)],
                sequences=task.sequences[index.row[rest]],
                positions=index.position[rest],
            )

        with torch.inference_mode(), ExitStack() as stack:
            if attention:
                stack.enter_context(AttentionCapture(model.module, see, before_rotary=before_rotary))
            stack.enter_context(_watched(model, task, blocks, sink))
            model.module(**task.inputs)
    hidden, axes = {}, {}
    for site, sums in ((site, found.sums()) for site, found in moments.items()):
        hidden[site] = torch.from_numpy(sums.sum_x / sums.n).float()
        if sums.second is not None:
            vectors = np.linalg.eigh(covariance(sums.second, sums.sum_x, sums.n))[1][:, ::-1]
            axes[site] = torch.from_numpy(vectors[:, : max(1, round(sums.d / 100))].copy()).float()
    queries, keys = ({site: found.mean(side) for site, found in heads.items()} for side in ("query", "key"))
    return Means(queries, keys, hidden, axes, before_rotary)


@dataclass
class _HeadMeans:
    """Sums of the queries and keys of one layer, over the positions that count."""

    total: dict[str, Any] = field(default_factory=lambda: {"query": 0.0, "key": 0.0})
    n: Counter[str] = field(default_factory=Counter)

    def add(self, call: AttentionCall, *, before_rotary: bool) -> None:
        queries, keys = (
            (call.queries, call.keys) if before_rotary else (call.score_queries, call.score_keys)
        )  # (B, heads, T, d_head)
        for side, vectors, valid in (("query", queries, call.valid_queries), ("key", keys, call.valid_keys)):
            self.total[side] += torch.einsum("bhtd,bt->hd", vectors.float(), valid.float()).double().cpu()
            self.n[side] += int(valid.sum())

    def mean(self, side: str) -> Tensor:
        return (self.total[side] / self.n[side]).float()


def find_shifts(
    model: OpenModel, tasks: Iterable[Task], blocks: Sequence[Site], wanted: dict[str, tuple[float, Vectors]]
) -> dict[str, Vectors]:
    """The constants that move the mean state of every block by (f − 1)·v, for each name its factor f and its v by site.

    One untouched forward pass per batch, and one more for each name.
    """
    total: dict[str, Vectors] = {name: {} for name in wanted}
    n: Counter[str] = Counter()
    for task in tasks:
        counted: Counter[str] = Counter()
        untouched: Vectors = {}
        with torch.inference_mode(), _watched(model, task, blocks, _means_into(untouched, counted)):
            model.module(**task.inputs)
        n += counted
        for name, (factor, v) in wanted.items():
            targets = {site: mean + (factor - 1) * v[site].to(mean) for site, mean in untouched.items()}
            for site, shift in _shifts_to(targets, model, task, blocks).items():
                total[name][site] = total[name].get(site, 0.0) + shift.double().cpu() * counted[site]
    return {name: {site: (part / n[site]).float() for site, part in of_name.items()} for name, of_name in total.items()}


def _shifts_to(targets: Vectors, model: OpenModel, task: Task, blocks: Sequence[Site]) -> Vectors:
    """What moves the mean of one batch to its target at every block, one block after the other."""
    now: Vectors = {}
    shifts: Vectors = {}

    def move(site: Site, state: Tensor) -> Tensor:
        shifts[site.name] = targets[site.name] - now[site.name]
        return _with_rest(state, state[:, 1:] + shifts[site.name])

    with torch.inference_mode(), _watched(model, task, blocks, _means_into(now)), editing(model.module, blocks, move):
        model.module(**task.inputs)
    return shifts


def _means_into(means: Vectors, n: Counter[str] | None = None) -> Callable[..., None]:
    def sink(site: str, vectors: Tensor, index: Any) -> None:
        rest = vectors[torch.from_numpy(~index.first)]
        means[site] = rest.mean(0)
        if n is not None:
            n[site] += len(rest)

    return sink


def _watched(model: OpenModel, task: Task, sites: Sequence[Site], sink: Callable[..., None]) -> Any:
    """A context that shows the states of a forward pass; those entered later act after it has looked."""
    return HiddenCapture(model.module, sites=[site.name for site in sites]).attached(task.batch, sink)


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
        module = self._seen.module
        rotate = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
        if not self.before_rotary or rotate is None or getattr(module, "use_rope", True) is False:
            return mean
        if module not in self._rotations:
            raise ModelError(
                "the rotary positions of this model cannot be followed", where=type(module).__name__,
                do="intervene on queries and keys after rotation (leave out --before-rotary)",
            )  # fmt: skip
        cos, sin = self._rotations[module]
        width = cos.shape[-1]  # a part of the dimensions may not be rotated
        wide = mean.expand(len(cos), -1, cos.shape[-2], -1)  # (B, heads, T, d_head)
        turned = rotate(wide[..., :width], wide[..., :width], cos, sin)[0]
        return torch.cat([turned, wide[..., width:]], -1)


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


def _with_rest(state: Tensor, rest: Tensor) -> Tensor:
    """The state (B, T, d) with other vectors after the first position."""
    return torch.cat([state[:, :1], rest], 1)


def _shifting(shifts: Vectors) -> Callable[[Site, Tensor], Tensor]:
    return lambda site, state: _with_rest(state, state[:, 1:] + shifts[site.name].to(state))


def _without_axes(intervention: Intervention) -> Callable[[Site, Tensor], Tensor]:
    """x − AAᵀ(x − x̄): what varies along the axes goes, the mean stays."""

    def change(site: Site, state: Tensor) -> Tensor:
        axes, mean = (
            vectors[site.name].to(state) for vectors in (intervention.means.axes, intervention.centres)
        )  # (d, k), (d,)
        rest = state[:, 1:]
        return _with_rest(state, rest - ((rest - mean) @ axes) @ axes.T)

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
