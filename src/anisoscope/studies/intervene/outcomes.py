"""Causes, not correlations: take a part of the drift away while the model runs, and see what it was for.

Passes over the same windows. The first ones measure what will be taken away (`interventions_edits`). The last runs each
window untouched and then once for each intervention, on the chosen blocks at once:

| intervention | what it does |
|---|---|
| `mean_query`, `mean_key` | q − Q̄, k − K̄, of the vectors that are scored (with `before_rotary`: before rotation) |
| `mean_hidden` | the mean of the states after each block becomes 0 |
| `drift@0.5`, `drift@2` | it becomes half, twice what it is in the untouched model |
| `top_components` | x without its top d/100 principal components about the mean |
| `final_norm_bias` | the bias of the final norm set to 0 |

States are changed after the first position of each window, which is apart in many models (attention sinks); queries and
keys everywhere. Each intervention has a control, `….control`: as much in random directions. Queries and keys: a random
direction of the norm of each mean. States: the same displacements and axes, all turned by one random rotation.

Reported with intervals by sequence: the loss and its change (`interventions_task` says what is asked), the KL
divergence of the output distribution from the untouched one, and what attention and states do: normalised entropy,
greatest probability and share of the first key, averaged over heads and layers, and the average cosine of what the last
block puts out (before an edit of that block itself), each with its change. A model without a head gives all but the
first three.

Softmax cannot see a constant taken from the keys that are scored (q·K̄ is the same for every key), with rotary positions
or without, so `mean_key` must change nothing: that is the built-in check. Before rotation a mean key is no constant:
it turns with the position.

Cost: a forward pass per window for the means, one and one more for each of the shifted states, and one for each
intervention and each control. Memory: two batches of logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from anisoscope.accumulate.keys import GROUPS
from anisoscope.accumulate.moments import Moments
from anisoscope.accumulate.rows import Rows
from anisoscope.capture.attention.call import AttentionCall
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.capture.sites import Site, choose_sites, find_sites
from anisoscope.errors import UsageError
from anisoscope.geometry.cosine import mean_cosine
from anisoscope.inference.jackknife import jackknife_of
from anisoscope.runs.progress import track
from anisoscope.runs.table import Row
from anisoscope.studies.intervene.edits import (
    FACTORS,
    Intervention,
    Means,
    applied,
    final_bias,
    find_means,
    find_shifts,
)
from anisoscope.studies.intervene.task import Task, make_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anisoscope.models.batches.plan import Batches
    from anisoscope.models.open import OpenModel

NAMES = ("mean_query", "mean_key", *FACTORS, "top_components", "final_norm_bias")
_OF_ROWS = {
    "entropy_normalised": ("entropy_normalised", "rows"),
    "max_probability": ("max", "rows"),
    "sink_share": ("sink", "sink_rows"),
}
"""What is told of attention: the sum of `accumulate.rows` that it is, over the count that it goes by."""


def intervene(
    model: OpenModel, batches: Batches, *, what: tuple[str, ...] = NAMES, layers: str = "*block.*", seed: int = 0,
    before_rotary: bool = False,
) -> list[Row]:  # fmt: skip
    """Run every intervention and its control; rows with `site` = the intervention."""
    unknown = set(what) - set(NAMES)
    if unknown:
        raise UsageError("unknown intervention", got=", ".join(sorted(unknown)), expected=", ".join(NAMES))
    blocks = [site for site in choose_sites(find_sites(model.module), [layers]) if site.kind == "block"]
    if not blocks:
        raise UsageError("no block has such a name", got=repr(layers), expected="a pattern such as 'block.[0-3]'")
    means = find_means(
        model, _tasks(model, batches, "measuring means"), blocks, attention=_has_attention(model.module),
        before_rotary=before_rotary,
    )  # fmt: skip
    names = [name for name in what if _possible(name, model.module, means)]
    changes = plan(model, batches, blocks, names, means, seed=seed)
    last = [site for site in find_sites(model.module) if site.kind == "block"][-1]
    outcomes = {change.name: Outcome() for change in changes}
    for task in _tasks(model, batches, f"running {len(changes)} times"):
        base = None
        for change in changes:
            logits = _run(model, change, blocks, task, outcomes[change.name], last, base)
            base = logits if base is None else base
    like = Row(model=model.name, revision=model.revision)
    return [
        row for name, outcome in outcomes.items() for row in outcome_rows(name, outcome, outcomes["untouched"], like)
    ]


def plan(
    model: OpenModel, batches: Batches, blocks: list[Site], names: list[str], means: Means, *, seed: int
) -> list[Intervention]:
    """`untouched` first, then each intervention with its control; the states' shifts are measured here."""
    turned = means.turned(seed)
    both = {name: source for one in names for name, source in ((one, means), (f"{one}.control", turned))}
    wanted = {name: (FACTORS[name.removesuffix(".control")], source.hidden) for name, source in both.items()
              if name.removesuffix(".control") in FACTORS}  # fmt: skip
    tasks = _tasks(model, batches, "measuring shifts") if wanted else ()
    shifts = find_shifts(model, tasks, blocks, wanted)
    return [
        Intervention("untouched", means),
        *(Intervention(name, source, shifts.get(name, {}), means.hidden) for name, source in both.items()),
    ]


def _tasks(model: OpenModel, batches: Batches, what: str) -> Iterator[Task]:
    with track(what, total=batches.total, unit="windows") as bar:
        for _, batch in batches:
            yield make_task(model, batch)
            bar.advance(len(batch))


def _has_attention(module: nn.Module) -> bool:
    """Whether queries and keys can be changed; projections that are only watched cannot."""
    from anisoscope.capture.attention.fallbacks import uses_interface

    return any(uses_interface(part) for part in module.modules())


def _possible(name: str, module: nn.Module, means: Means) -> bool:
    if name in ("mean_query", "mean_key"):
        return bool(means.queries)
    if name == "final_norm_bias":
        return final_bias(module) is not None
    return name != "top_components" or bool(means.axes)


# -- what is seen ------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """Sums by jackknife group of what one intervention did, and of the untouched model on the same tokens."""

    tokens: np.ndarray = field(default_factory=lambda: np.zeros(GROUPS))
    loss: np.ndarray = field(default_factory=lambda: np.zeros(GROUPS))
    change: np.ndarray = field(default_factory=lambda: np.zeros(GROUPS))
    kl: np.ndarray = field(default_factory=lambda: np.zeros(GROUPS))
    moments: Moments | None = None
    rows: dict[str, Rows] = field(default_factory=dict)


def _run(
    model: OpenModel, change: Intervention, blocks: list[Site], task: Task, outcome: Outcome, last: Site,
    base: Tensor | None,
) -> Tensor | None:  # fmt: skip
    """One forward pass under an intervention, added to its outcome; its logits where something is asked."""

    def see(site: str, call: AttentionCall) -> None:
        if call.scaling is not None:
            outcome.rows.setdefault(site, Rows.like(call)).update(call, task.sequences)

    def sink(_: str, vectors: Tensor, index: Any) -> None:
        if outcome.moments is None:
            outcome.moments = Moments(vectors.shape[1], spectrum=False, reservoir=0)
        outcome.moments.update(vectors, sequences=task.sequences[index.row], positions=index.position)

    watching = HiddenCapture(model.module, sites=last.name).attached(task.batch, sink)
    with torch.inference_mode(), watching, applied(model, change, blocks, see):  # it looks before the edit
        output = model.module(**task.inputs)
    if task.labels is None:
        return None
    _score(output.logits, task, outcome, output.logits if base is None else base)
    return output.logits


def _score(logits: Tensor, task: Task, outcome: Outcome, base: Tensor) -> None:
    """Loss, its change and KL of the tokens that are asked for, sequence by sequence: vocabularies are large."""
    assert task.labels is not None
    for row, group in enumerate(task.groups):
        asked = task.labels[row] >= 0
        if not bool(asked.any()):
            continue
        wanted = task.labels[row][asked][:, None]
        now, before = (part[row][asked].float().log_softmax(-1) for part in (logits, base))  # (tokens, V)
        loss, untouched = (-part.gather(-1, wanted).double().sum().item() for part in (now, before))
        outcome.tokens[group] += int(asked.sum())
        outcome.loss[group] += loss
        outcome.change[group] += loss - untouched
        outcome.kl[group] += (before.exp() * (before - now)).double().sum().item()


# -- what is told ------------------------------------------------------------------------------------------------------


def outcome_rows(name: str, outcome: Outcome, untouched: Outcome, like: Row) -> list[Row]:
    """The rows of one intervention, with what it changed."""
    row = partial(replace, like, site=name)
    rows: list[Row] = []
    tokens = outcome.tokens
    if tokens.sum():
        for metric, values in (("loss", outcome.loss), ("loss_change", outcome.change), ("kl", outcome.kl)):
            value, low, high = jackknife_of(_ratio, values, tokens, sizes=tokens)
            null = None if metric == "loss" else 0.0
            rows.append(
                row(metric=metric, value=value, low=low, high=high, null=null, n=int(tokens.sum()), note="nats")
            )
    rows += _attention_rows(outcome.rows, untouched.rows, row)
    if outcome.moments is not None and untouched.moments is not None:
        after, before = outcome.moments.sums(), untouched.moments.sums()
        sizes = after.group_n
        told = {"last_cosine": jackknife_of(mean_cosine, after.group_unit, sizes, sizes=sizes)}
        told["last_cosine_change"] = jackknife_of(
            _cosine_change, after.group_unit, before.group_unit, sizes, sizes=sizes
        )
        rows += [
            row(metric=metric, value=value, low=low, high=high, null=0.0, n=after.n)
            for metric, (value, low, high) in told.items()
        ]
    return rows


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
