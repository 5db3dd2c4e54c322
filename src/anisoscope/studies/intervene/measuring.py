"""What is measured before anything is removed: the means, and the shifts that move them.

The first pass (`add_means`) measures Q̄ and K̄ of every head, x̄ and the top principal axes of every block. The states
need a second (`add_shifts`). Blocks hand on what they receive, so x̄ taken away after block 0 is missing after block 1
as well, and taking the measured mean of each block away would take the lower ones away again and again. What has to be
added after block K is what moves the mean *found there by then* to where it is wanted, x̄ + (f − 1)·x̄: those shifts are
found block after block in one forward pass per batch, and their average over batches is the constant that is applied.
For f = 1 they are zero, exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.accumulate.moments import Moments
from anisoscope.capture.attention.call import AttentionCall
from anisoscope.capture.attention.capture import AttentionCapture
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.capture.sites import Site
from anisoscope.geometry.spectrum import covariance
from anisoscope.studies.intervene.edits import Means, Vectors, editing, with_rest
from anisoscope.studies.intervene.sums import Sums, VectorSum
from anisoscope.studies.intervene.task import Task

if TYPE_CHECKING:
    from anisoscope.models.open import OpenModel


class MeanSums(Sums):
    """Queries and keys (`site/query`, `site/key`) and states (`site/state`) of the chosen blocks."""

    def means(self, blocks: Sequence[Site], *, before_rotary: bool = False) -> Means:
        """The means in the order of the blocks, and of the states also the top principal axes."""
        found = {kind: self.of(kind) for kind in ("query", "key", "state")}
        ordered = {kind: [site.name for site in blocks if site.name in some] for kind, some in found.items()}
        hidden, axes = {}, {}
        for site in ordered["state"]:
            sums = found["state"][site].sums()
            hidden[site] = torch.from_numpy(sums.sum_x / sums.n).float()
            if sums.second is not None:
                vectors = np.linalg.eigh(covariance(sums.second, sums.sum_x, sums.n))[1][:, ::-1]
                axes[site] = torch.from_numpy(vectors[:, : max(1, round(sums.d / 100))].copy()).float()
        queries, keys = ({site: found[kind][site].mean() for site in ordered[kind]} for kind in ("query", "key"))
        return Means(queries, keys, hidden, axes, before_rotary)


def add_means(
    sums: MeanSums,
    model: OpenModel,
    task: Task,
    blocks: Sequence[Site],
    *,
    attention: bool = True,
    before_rotary: bool = False,
) -> None:
    """Run the untouched model on one batch and add what the chosen blocks see."""
    chosen = {site.name for site in blocks}

    def see(site: str, call: AttentionCall) -> None:
        if site not in chosen:
            return
        both = (call.queries, call.keys) if before_rotary else (call.score_queries, call.score_keys)
        for side, vectors, valid in zip(("query", "key"), both, (call.valid_queries, call.valid_keys), strict=True):
            total = torch.einsum("bhtd,bt->hd", vectors.float(), valid.float()).double().cpu()
            sums.add(f"{site}/{side}", VectorSum(total, int(valid.sum())))

    def sink(site: str, vectors: Tensor, index: Any) -> None:
        rest = ~index.first
        moments = sums.parts.setdefault(f"{site}/state", Moments(vectors.shape[1], reservoir=0))
        keys, positions = task.sequences[index.row[rest]], index.position[rest]
        moments.update(vectors[torch.from_numpy(rest)], sequences=keys, positions=positions)

    with torch.inference_mode(), ExitStack() as stack:
        if attention:
            stack.enter_context(AttentionCapture(model.module, see, before_rotary=before_rotary))
        stack.enter_context(_watched(model, task, blocks, sink))
        model.module(**task.inputs)


class ShiftSums(Sums):
    """For each intervention on states and each block the shift of its mean, `site/intervention`, weighted by n."""

    def shifts(self, name: str) -> Vectors:
        return {site: found.mean() for site, found in self.of(name).items()}


def add_shifts(
    sums: ShiftSums, model: OpenModel, task: Task, blocks: Sequence[Site], wanted: Mapping[str, tuple[float, Vectors]]
) -> None:
    """What moves the mean state of every block by (f − 1)·v in one batch, for each name its factor f and its v by site.

    One untouched forward pass, and one more for each name.
    """
    counted: Counter[str] = Counter()
    untouched: Vectors = {}
    with torch.inference_mode(), _watched(model, task, blocks, _means_into(untouched, counted)):
        model.module(**task.inputs)
    for name, (factor, v) in wanted.items():
        targets = {site: mean + (factor - 1) * v[site].to(mean) for site, mean in untouched.items()}
        for site, shift in _shifts_to(targets, model, task, blocks).items():
            sums.add(f"{site}/{name}", VectorSum(shift.double().cpu() * counted[site], counted[site]))


def _shifts_to(targets: Vectors, model: OpenModel, task: Task, blocks: Sequence[Site]) -> Vectors:
    """What moves the mean of one batch to its target at every block, one block after the other."""
    now: Vectors = {}
    shifts: Vectors = {}

    def move(site: Site, state: Tensor) -> Tensor:
        shifts[site.name] = targets[site.name] - now[site.name]
        return with_rest(state, state[:, 1:] + shifts[site.name])

    with torch.inference_mode(), _watched(model, task, blocks, _means_into(now)), editing(model.module, blocks, move):
        model.module(**task.inputs)
    return shifts


def _means_into(means: Vectors, n: Counter[str] | None = None) -> Callable[..., None]:
    def sink(site: str, vectors: Tensor, index: Any) -> None:
        rest = vectors[torch.from_numpy(~index.first)]
        means[site] = rest.sum(0) / max(len(rest), 1)  # a batch may have first positions alone
        if n is not None:
            n[site] += len(rest)

    return sink


def _watched(model: OpenModel, task: Task, sites: Sequence[Site], sink: Callable[..., None]) -> Any:
    """A context that shows the states of a forward pass; those entered later act after it has looked."""
    return HiddenCapture(model.module, sites=[site.name for site in sites]).attached(task.batch, sink)
