"""What is measured while an intervention acts, and how it is reported.

Each window runs untouched and then once for each intervention and each control, on the chosen blocks at once. Reported
with intervals by sequence: the loss and its change (`task` says what is asked), the KL divergence of the output
distribution from the untouched one, and what attention and states do: normalised entropy, greatest probability and
share of the first key, averaged over heads and layers, and the average cosine of what the last block puts out (before
an edit of that block itself), each with its change. A model without a head gives all but the first three.

Cost: a forward pass for each intervention and each control. Memory: two batches of logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.accumulate.attention.rows import Rows
from anisoscope.accumulate.moments import Moments
from anisoscope.capture.attention.call import AttentionCall
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.capture.sites import Site, find_sites
from anisoscope.geometry.cosine import mean_cosine
from anisoscope.inference.jackknife import jackknife_of
from anisoscope.runs.table import Row
from anisoscope.studies.intervene.edits import Intervention, applied
from anisoscope.studies.intervene.sums import Scores, Sums
from anisoscope.studies.intervene.task import Task

if TYPE_CHECKING:
    from anisoscope.models.open import OpenModel

UNTOUCHED = "untouched"
_OF_ROWS = {
    "entropy_normalised": ("entropy_normalised", "rows"),
    "max_probability": ("max", "rows"),
    "sink_share": ("sink", "sink_rows"),
}
"""What is reported of attention: a sum of `accumulate.attention.rows`, and the count that divides it."""


# -- what is measured --------------------------------------------------------------------------------------------------


def add_outcomes(
    sums: Sums, model: OpenModel, task: Task, changes: Sequence[Intervention], blocks: Sequence[Site]
) -> None:
    """Run one batch under every intervention, the untouched model first, and add what it did.

    Of each intervention: `name/scores`, `name/state` (of the last block) and `name/site/rows`.
    """
    last = [site for site in find_sites(model.module) if site.kind == "block"][-1]
    base = None
    for change in changes:
        logits = _run(sums, model, change, blocks, task, last)
        if logits is not None:
            base = logits if base is None else base
            _score(logits, task, sums.parts.setdefault(f"{change.name}/scores", Scores()), base)


def _run(
    sums: Sums, model: OpenModel, change: Intervention, blocks: Sequence[Site], task: Task, last: Site
) -> Tensor | None:
    """One forward pass under an intervention; its logits where something is asked."""

    def see(site: str, call: AttentionCall) -> None:
        if call.scaling is None:
            return
        key = f"{change.name}/{site}/rows"
        if key not in sums.parts:
            sums.parts[key] = Rows.like(call)
        sums.parts[key].update(call, task.sequences)

    def sink(_: str, vectors: Tensor, index: Any) -> None:
        key = f"{change.name}/state"
        if key not in sums.parts:
            sums.parts[key] = Moments(vectors.shape[1], spectrum=False, reservoir=0)
        sums.parts[key].update(vectors, sequences=task.sequences[index.row], positions=index.position)

    watching = HiddenCapture(model.module, sites=last.name).attached(task.batch, sink)
    with torch.inference_mode(), watching, applied(model, change, blocks, see):  # it looks before the edit
        output = model.module(**task.inputs)
    return None if task.labels is None else output.logits


def _score(logits: Tensor, task: Task, scores: Scores, base: Tensor) -> None:
    """Loss, its change and KL of the tokens that are asked for, sequence by sequence: vocabularies are large."""
    assert task.labels is not None
    labels = task.labels.to(logits.device)
    for row, group in enumerate(task.groups):
        asked = labels[row] >= 0
        if not bool(asked.any()):
            continue
        wanted = labels[row][asked][:, None]
        now, before = (part[row][asked].float().log_softmax(-1) for part in (logits, base))  # (tokens, V)
        loss, untouched = (-part.gather(-1, wanted).double().sum().item() for part in (now, before))
        kl = (before.exp() * (before - now)).double().sum().item()
        scores.add(int(group), tokens=int(asked.sum()), loss=loss, change=loss - untouched, kl=kl)


# -- what is reported --------------------------------------------------------------------------------------------------


def outcome_rows(sums: Sums, name: str, layers: Sequence[str], like: Row) -> list[Row]:
    """The rows of one intervention, with what it changed; `layers` are the sites of attention in their order."""
    row = partial(replace, like, site=name)
    rows: list[Row] = []
    if f"{name}/scores" in sums.parts:
        rows += _score_rows(sums.parts[f"{name}/scores"], row)
    after, before = (
        {site: sums.parts[f"{one}/{site}/rows"] for site in layers if f"{one}/{site}/rows" in sums.parts}
        for one in (name, UNTOUCHED)
    )
    rows += _attention_rows(after, before, row)
    states = [sums.parts[f"{one}/state"].sums() for one in (name, UNTOUCHED)]
    return rows + _cosine_rows(states[0], states[1], row)


def _score_rows(scores: Scores, row: Callable[..., Row]) -> list[Row]:
    """Loss, change and divergence per token."""
    numbers = {name: part.numpy() for name, part in scores.sums.items()}
    tokens, told = numbers["tokens"], {"loss": "loss", "loss_change": "change", "kl": "kl"}
    rows = []
    for metric, name in told.items():
        value, low, high = jackknife_of(_ratio, numbers[name], tokens, sizes=tokens)
        null = None if metric == "loss" else 0.0
        rows.append(row(metric=metric, value=value, low=low, high=high, null=null, n=int(tokens.sum()), note="nats"))
    return rows


def _cosine_rows(after: Any, before: Any, row: Callable[..., Row]) -> list[Row]:
    """The average cosine of what the last block puts out, with its change."""
    sizes = after.group_n
    told = {
        "last_cosine": jackknife_of(mean_cosine, after.group_unit, sizes, sizes=sizes),
        "last_cosine_change": jackknife_of(_cosine_change, after.group_unit, before.group_unit, sizes, sizes=sizes),
    }
    return [
        row(metric=metric, value=value, low=low, high=high, null=0.0, n=after.n)
        for metric, (value, low, high) in told.items()
    ]


def _attention_rows(rows: Mapping[str, Rows], untouched: Mapping[str, Rows], row: Callable[..., Row]) -> list[Row]:
    """Sharpness and sinks, each the mean over heads and layers, with its change."""
    found: list[Row] = []
    for metric, (sums, count) in _OF_ROWS.items():
        sites = [site for site, part in rows.items() if int(part.sums[count].sum())]
        if not sites:
            continue
        after, before, n = _layers(rows, sites, sums), _layers(untouched, sites, sums), _layers(rows, sites, count)
        sizes, told = n.sum(1), {}
        told[metric] = jackknife_of(lambda a, n: _ratio(a, n).mean(-1), after, n, sizes=sizes)
        told[f"{metric}_change"] = jackknife_of(lambda a, n: _ratio(a, n).mean(-1), after - before, n, sizes=sizes)
        for name, (value, low, high) in told.items():
            null = 0.0 if name.endswith("_change") else None
            note = "mean over heads and layers"
            found.append(row(metric=name, value=value, low=low, high=high, null=null, n=int(n[:, 0].sum()), note=note))
    return found


def _layers(rows: Mapping[str, Rows], sites: list[str], name: str) -> np.ndarray:
    """One of the sums, (groups, layers), averaged over heads where heads have it each."""
    found = [rows[site].sums[name].double() for site in sites]
    return np.stack([part.mean(1).numpy() if part.ndim > 1 else part.numpy() for part in found], 1)


def _ratio(total: np.ndarray, n: np.ndarray) -> np.ndarray:
    return total / np.maximum(n, 1e-300)


def _cosine_change(after: np.ndarray, before: np.ndarray, n: np.ndarray) -> Any:
    now, then = mean_cosine(after, n), mean_cosine(before, n)
    return None if now is None or then is None else np.asarray(now) - np.asarray(then)
