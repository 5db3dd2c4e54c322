"""Causes, not correlations: take a part of the drift away while the model runs, and see what it was for.

Two passes over the same windows. The first measures the means: of the queries and keys of every head, of the hidden
states of every block, their top principal components. The second runs each window untouched and then once for each
intervention, on the chosen blocks at once:

| intervention | what it does |
|---|---|
| `mean_query`, `mean_key` | q − Q̄, k − K̄, of the vectors that are scored |
| `mean_hidden` | x − x̄ after each block; `drift@0.5`, `drift@2`: x + (f − 1)·x̄ |
| `top_components` | x without its top d/100 principal components about the mean |
| `final_norm_bias` | the bias of the final norm set to 0 |

Each has a control, `….control`: a random direction of the same norm (as many random components) in the place of the
measured one. Reported with intervals by sequence: the change of the loss (next token, or 15 % of the tokens masked by a
hash of their place), the KL divergence of the output distribution, the entropy of attention, and the average cosine at
the last block. A model without a head gives the last two alone.

Softmax cannot see a constant taken from the keys that are scored (q·K̄ is the same for every key), with rotary positions
or without, so `mean_key` must change nothing: that is the built-in check. (Before rotation a mean key is no constant;
it turns with the position, and what it does is part of content.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from anisoscope.accumulate.heads import HeadCloud
from anisoscope.accumulate.keys import GROUPS, group_of, priority, sequence_keys
from anisoscope.accumulate.moments import Moments
from anisoscope.accumulate.rows import Rows
from anisoscope.capture.attention import AttentionCapture
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.capture.sites import Site, choose_sites, find_sites
from anisoscope.errors import UsageError
from anisoscope.geometry.cosine import mean_cosine
from anisoscope.geometry.spectrum import covariance
from anisoscope.inference.jackknife import jackknife_of
from anisoscope.runs.table import Row
from anisoscope.studies.attention_pass import AttentionSums

if TYPE_CHECKING:
    from anisoscope.models.batches import Batch, Batches
    from anisoscope.models.open import OpenModel

NAMES = ("mean_query", "mean_key", "mean_hidden", "drift@0.5", "drift@2", "top_components", "final_norm_bias")
_MASKED = 0.15


@dataclass(frozen=True)
class Means:
    """What the first pass found, by site: means of queries and keys (heads, d_head), of hidden states, their axes."""

    queries: dict[str, Tensor]
    keys: dict[str, Tensor]
    hidden: dict[str, Tensor]  # (d,)
    axes: dict[str, Tensor]  # (d, k)

    def randomised(self, seed: int) -> Means:
        """The same norms in random directions: the control."""
        draw = torch.Generator().manual_seed(seed)

        def turn(vectors: Tensor) -> Tensor:
            noise = torch.randn(vectors.shape, generator=draw)
            return noise / noise.norm(dim=-1, keepdim=True) * vectors.norm(dim=-1, keepdim=True)

        def turn_all(means: dict[str, Tensor]) -> dict[str, Tensor]:
            return {site: turn(mean) for site, mean in means.items()}

        axes = {site: torch.linalg.qr(torch.randn(a.shape, generator=draw))[0] for site, a in self.axes.items()}
        return Means(turn_all(self.queries), turn_all(self.keys), turn_all(self.hidden), axes)


def find_means(model: OpenModel, batches: Batches, blocks: list[Site], *, attention: bool) -> Means:
    """The first pass."""
    heads, moments = AttentionSums(sample=0), {}
    for _, batch in batches:
        keys = sequence_keys(batch.keys)

        def sink(site: str, vectors: Tensor, index: Any, keys: Any = keys) -> None:
            sums = moments.setdefault(site, Moments(vectors.shape[1], reservoir=0))
            sums.update(vectors, sequences=keys[index.row], positions=index.position)

        with torch.inference_mode(), ExitStack() as stack:
            if attention:
                stack.enter_context(heads.watch(model.module, batch))
            capture = HiddenCapture(model.module, sites=[site.name for site in blocks])
            stack.enter_context(capture.attached(batch, sink))
            model.module(**batch.inputs)
    hidden, axes = {}, {}
    for site, sums in ((site, m.sums()) for site, m in moments.items()):
        hidden[site] = torch.from_numpy(sums.sum_x / sums.n).float()
        if sums.second is not None:
            vectors = np.linalg.eigh(covariance(sums.second, sums.sum_x, sums.n))[1][:, ::-1]
            axes[site] = torch.from_numpy(vectors[:, : max(1, round(sums.d / 100))].copy()).float()
    means = {site: (_head_mean(part.queries), _head_mean(part.keys)) for site, part in heads.heads.items()}
    return Means({s: q for s, (q, _) in means.items()}, {s: k for s, (_, k) in means.items()}, hidden, axes)


def _head_mean(cloud: HeadCloud) -> Tensor:
    """Q̄ or K̄ of each head, (heads, d_head)."""
    return (cloud.total.sum(0) / cloud.n.sum()).float()


@dataclass
class Outcome:
    """Sums by jackknife group of what one intervention did, and of the untouched model on the same tokens."""

    tokens: np.ndarray = field(default_factory=lambda: np.zeros(GROUPS))
    loss: np.ndarray = field(default_factory=lambda: np.zeros(GROUPS))
    change: np.ndarray = field(default_factory=lambda: np.zeros(GROUPS))
    kl: np.ndarray = field(default_factory=lambda: np.zeros(GROUPS))
    moments: Moments | None = None
    rows: dict[str, Rows] = field(default_factory=dict)


@contextmanager
def applied(model: OpenModel, name: str, means: Means, blocks: list[Site], see: Callable[..., None]) -> Iterator[None]:
    """Within this context the model runs with the intervention; `see(site, call)` is shown every attention call."""
    kind = name.removesuffix(".control")
    chosen = {site.name for site in blocks}

    def edit(site: str, call: Any) -> None:
        if site in chosen and kind == "mean_query":
            call.score_queries = call.score_queries - means.queries[site][:, None].to(call.score_queries)
        if site in chosen and kind == "mean_key":
            call.score_keys = call.score_keys - means.keys[site][:, None].to(call.score_keys)
        see(site, call)

    with ExitStack() as stack:
        if means.queries:
            stack.enter_context(AttentionCapture(model.module, edit))
        if kind in ("mean_hidden", "top_components") or kind.startswith("drift@"):
            for site in blocks:
                handle = model.module.get_submodule(site.path).register_forward_hook(_hidden_edit(kind, site, means))
                stack.callback(handle.remove)
        if kind == "final_norm_bias":
            stack.enter_context(_without_bias(model.module, random=name.endswith(".control")))
        yield


def _hidden_edit(kind: str, site: Site, means: Means) -> Callable[..., Any]:
    def change(state: Tensor) -> Tensor:
        mean = means.hidden[site.name].to(state)
        if kind == "top_components":
            axes = means.axes[site.name].to(state)
            return state - ((state - mean) @ axes) @ axes.T
        factor = 0.0 if kind == "mean_hidden" else float(kind.partition("@")[2])
        return state + (factor - 1) * mean

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    return hook


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


def intervene(
    model: OpenModel, batches: Batches, *, what: tuple[str, ...] = NAMES, layers: str = "*block.*", seed: int = 0
) -> list[Row]:
    """Run every intervention and its control; rows with `site` = the intervention."""
    unknown = set(what) - set(NAMES)
    if unknown:
        raise UsageError("unknown intervention", got=", ".join(sorted(unknown)), expected=", ".join(NAMES))
    blocks = [site for site in choose_sites(find_sites(model.module), [layers]) if site.kind == "block"]
    attention = _has_attention(model.module)
    measured = find_means(model, batches, blocks, attention=attention)
    control = measured.randomised(seed)
    names = [name for name in what if _possible(name, model.module, measured)]
    outcomes = {name: Outcome() for name in ["untouched", *(n for one in names for n in (one, f"{one}.control"))]}
    last = [site for site in find_sites(model.module) if site.kind == "block"][-1]
    for _, batch in batches:
        task = _task(model, batch)
        base = _run(model, "untouched", measured, blocks, batch, task, outcomes["untouched"], last, None)
        for name in outcomes:
            if name != "untouched":
                means = control if name.endswith(".control") else measured
                _run(model, name, means, blocks, batch, task, outcomes[name], last, base)
    return [row for name, outcome in outcomes.items() for row in _rows(name, outcome, outcomes["untouched"], model)]


def _has_attention(module: nn.Module) -> bool:
    from anisoscope.capture.attention_fallbacks import uses_interface

    return any(uses_interface(part) for part in module.modules())


def _possible(name: str, module: nn.Module, means: Means) -> bool:
    if name in ("mean_query", "mean_key"):
        return bool(means.queries)
    if name == "final_norm_bias":
        return final_bias(module) is not None
    return name != "top_components" or bool(means.axes)


@dataclass(frozen=True)
class _Task:
    """What the model is asked: inputs, and labels (B, T) with −100 where nothing is asked; None without a head."""

    inputs: dict[str, Tensor]
    labels: Tensor | None
    groups: np.ndarray  # (B,)


def _task(model: OpenModel, batch: Batch) -> _Task:
    keys = sequence_keys(batch.keys)
    groups = group_of(keys)
    ids = batch.inputs.get("input_ids")
    find_head = getattr(model.module, "get_output_embeddings", None)
    head = find_head() if callable(find_head) else None
    if ids is None or head is None:
        return _Task(batch.inputs, None, groups)
    asked = torch.where(batch.valid & ~batch.special, ids, -100)
    mask_token = getattr(model.processor, "mask_token_id", None)
    if "Masked" not in type(model.module).__name__ or mask_token is None:  # causal: position t is asked for token t + 1
        labels = torch.full_like(asked, -100)
        labels[:, :-1] = asked[:, 1:]
        return _Task(batch.inputs, labels, groups)
    length = ids.shape[1]
    places = np.array(batch.starts)[:, None] + np.arange(length)
    hashed = priority(np.repeat(keys, length), places.ravel(), seed=15).reshape(places.shape)
    chosen = torch.from_numpy(hashed < np.uint64(_MASKED * 2**64)) & (asked >= 0)
    return _Task(
        {**batch.inputs, "input_ids": torch.where(chosen, mask_token, ids)}, torch.where(chosen, ids, -100), groups
    )


def _run(
    model: OpenModel, name: str, means: Means, blocks: list[Site], batch: Batch, task: _Task, outcome: Outcome,
    last: Site, base: Tensor | None,
) -> Tensor | None:  # fmt: skip
    """One forward pass under an intervention, added to its outcome; its log-probabilities where something is asked."""
    keys = sequence_keys(batch.keys)

    def see(site: str, call: Any) -> None:
        if call.scaling is not None:
            outcome.rows.setdefault(site, Rows.like(call)).update(call, keys)

    def sink(_: str, vectors: Tensor, index: Any) -> None:
        if outcome.moments is None:
            outcome.moments = Moments(vectors.shape[1], spectrum=False, reservoir=0)
        outcome.moments.update(vectors, sequences=keys[index.row], positions=index.position)

    with torch.inference_mode(), applied(model, name, means, blocks, see):
        with HiddenCapture(model.module, sites=last.name).attached(batch, sink):
            output = model.module(**task.inputs)
        if task.labels is None:
            return None
        logged = output.logits.float().log_softmax(-1)  # (B, T, V)
        _score(logged, task, outcome, logged if base is None else base)
        return logged


def _score(logged: Tensor, task: _Task, outcome: Outcome, base: Tensor) -> None:
    assert task.labels is not None
    asked = task.labels >= 0
    picked = task.labels.clamp(min=0)[..., None]
    loss, before = (-(part.gather(-1, picked)[..., 0]) for part in (logged, base))  # (B, T)
    kl = (base.exp() * (base - logged)).sum(-1)
    for name, values in (("tokens", asked), ("loss", loss), ("change", loss - before), ("kl", kl)):
        by_sequence = (values.double() * asked).sum(1).numpy()
        np.add.at(getattr(outcome, name), task.groups, by_sequence)


def _rows(name: str, outcome: Outcome, untouched: Outcome, model: OpenModel) -> list[Row]:
    context = {"model": model.name, "revision": model.revision, "site": name}
    tokens = outcome.tokens
    rows: list[Row] = []
    for metric, values in (("loss", outcome.loss), ("loss_change", outcome.change), ("kl", outcome.kl)):
        if tokens.sum():
            value, low, high = jackknife_of(lambda a, b: a / np.maximum(b, 1e-300), values, tokens, sizes=tokens)
            null = None if metric == "loss" else 0.0
            rows.append(
                Row(
                    metric=metric,
                    value=value,
                    low=low,
                    high=high,
                    null=null,
                    n=int(tokens.sum()),
                    note="nats",
                    **context,
                )
            )
    entropy = _entropy(outcome.rows)
    if entropy is not None:
        change = entropy - (_entropy(untouched.rows) or 0.0)
        rows.append(Row(metric="entropy_normalised", value=entropy, note="mean over heads and layers", **context))
        rows.append(Row(metric="entropy_change", value=change, null=0.0, note="of entropy_normalised", **context))
    if outcome.moments is not None:
        sums = outcome.moments.sums()
        value, low, high = jackknife_of(mean_cosine, sums.group_unit, sums.group_n, sizes=sums.group_n)
        rows.append(Row(metric="last_cosine", value=value, low=low, high=high, null=0.0, n=sums.n, **context))
    return rows


def _entropy(rows: Mapping[str, Rows]) -> float | None:
    """Mean normalised entropy over rows, heads and layers."""
    means = [
        float((part.sums["entropy_normalised"].sum(0) / part.sums["rows"].sum()).mean())
        for part in rows.values()
        if int(part.sums["rows"].sum())
    ]
    return float(np.mean(means)) if means else None
