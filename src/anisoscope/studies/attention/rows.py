"""One model's attention as tidy rows: how queries and keys drift, how sharp rows are, what their scores vary by.

    table = attention_rows(sums.heads, sums.rows)            # sums: runs.work.observers.AttentionSums

Each head is a site (`block.3.head.5`, with the key head that it reads) and so is each layer (`block.3`, the mean over
its heads; `decoder.block.0.cross` is cross-attention). Intervals are delete-a-group jackknifes over sequences; that of
a layer is of the mean over heads, so it knows that heads vary together. Nulls: unrelated isotropic queries and keys
(cosine 0 with sd 1/√d_head, drift share 1/n), and uniform attention (entropy log m, probability 1/m, m visible keys).

Formulas are in docs/metrics.md (Heads), meanings and ranges in inference/metrics/studies.toml.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.accumulate.attention.heads import Heads
from anisoscope.accumulate.attention.rows import COUNTS, OF_LENGTHS, SPREAD_GROUPS, Rows
from anisoscope.geometry.cosine import mean_cosine
from anisoscope.geometry.drift import drift_ratio
from anisoscope.geometry.missing import ratio
from anisoscope.geometry.queries_keys import (
    cosine_null_sd,
    drift_direction,
    q_filters,
    query_key_cosine,
    query_key_dot,
    split_variance,
)
from anisoscope.inference.jackknife import jackknife, without_each
from anisoscope.runs.table import Row
from anisoscope.studies.attention.peaks import peak_rows

Array = NDArray[np.float64]
_Told = tuple[str, float | None, str]  # name of a metric, its null, a note
Part = TypeVar("Part")
_OF_COUNTS = (*COUNTS, *OF_LENGTHS)  # of groups, all heads together
_OF_CLOUD = ("total", "norm2", "unit", "norm")
_AT_ONCE = 2**22  # numbers in the largest sums of layers that are read together


def attention_rows(
    heads: Mapping[str, Heads],
    rows: Mapping[str, Rows],
    *,
    like: Row | None = None,
    layers: Mapping[str, int | None] | None = None,
    of_heads: Collection[str] | None = None,
) -> list[Row]:
    """The measurements of every head, layer by layer. `like` gives the other columns: model, step, protocol…

    `layers` is `layers_of` all sites of the model, where `heads` holds only some of them. `of_heads` names the metrics
    that single heads get a row of; layers get all.
    """
    blank = Row() if like is None else like
    layers = layers_of(heads) if layers is None else layers
    sites = [site for site in layers if site in heads]
    clouds, known = [heads[site] for site in sites], [rows[site] for site in sites if site in rows]
    of_clouds = _each(clouds, _like_cloud, _of_heads)
    of_rows = dict(zip((site for site in sites if site in rows), _each(known, _like_rows, _of_rows), strict=True))
    table: list[Row] = []
    for site, cloud, estimates in zip(sites, clouds, of_clouds, strict=True):
        here = replace(blank, site=site, layer=layers[site])
        for estimate in (*estimates, *of_rows.get(site, ())):
            single = of_heads is None or estimate.metric in of_heads
            table += estimate.as_rows(here, group=cloud.group) if single else [estimate.layer_row(here)]
        table += peak_rows(rows[site].peaks, here) if site in rows else ()
    return table


def layers_of(sites: Iterable[str]) -> dict[str, int | None]:
    """The number of each block in its stack, in this order; blocks of a staged network are numbered through.

    Sums that are read from a file come in the order of their names, where `block.10` stands before `block.2`.

    >>> layers_of(["decoder.block.4.cross", "pooler", "stage.0.block.0", "stage.0.block.1", "stage.1.block.0"])
    ... # doctest: +NORMALIZE_WHITESPACE
    {'stage.0.block.0': 0, 'stage.0.block.1': 1, 'stage.1.block.0': 2, 'pooler': None, 'decoder.block.4.cross': 4}
    """
    found = {site: re.search(r"(?:stage\.(\d+)\.)?block\.(\d+)", site) for site in sites}
    staged = sorted({(int(at[1]), int(at[2])) for at in found.values() if at and at[1]})
    layers = {
        site: None if at is None else staged.index((int(at[1]), int(at[2]))) if at[1] else int(at[2])
        for site, at in found.items()
    }
    of_decoder = {site: site.startswith("decoder.") for site in layers}
    return dict(sorted(layers.items(), key=lambda pair: (of_decoder[pair[0]], pair[1] is None, pair[1] or 0)))


# -- values with intervals, of all heads at once -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Estimate:
    """A metric of each head of a layer, and of the layer: values, low and high ends."""

    metric: str
    of_heads: tuple[Array, Array, Array]  # each (heads,), NaN where missing
    of_layer: tuple[float, float, float]
    n: int
    null: float | None = None
    note: str = ""
    null_sd: float | None = None  # of one head

    def layer_row(self, like: Row) -> Row:
        return replace(like, **self._common(), **_ends(self.of_layer), note=_join("mean over heads", self.note))

    def _common(self) -> dict[str, Any]:
        return {"metric": self.metric, "null": self.null, "n": self.n}

    def as_rows(self, like: Row, *, group: int) -> Iterator[Row]:
        yield self.layer_row(like)
        common = self._common()
        for head, ends in enumerate(zip(*self.of_heads, strict=True)):
            reads = f"reads key head {head // group}" if group > 1 else ""
            site = f"{like.site}.head.{head}"
            own = {"site": site, "head": head, "null_sd": self.null_sd}
            yield replace(like, **common, **_ends(ends), **own, note=_join(reads, self.note))


def _ends(ends: Iterable[float]) -> dict[str, float | None]:
    values = [float(end) if np.isfinite(end) else None for end in ends]
    return dict(zip(("value", "low", "high"), values, strict=True))


def _join(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def _each(
    parts: Sequence[Part], like: Callable[[Part], Any], read: Callable[[Sequence[Part]], Iterator[list[_Estimate]]]
) -> list[list[_Estimate]]:
    """The estimates of each layer. Those of one `like` are read together: the same groups of the same sizes."""
    kinds: dict[Any, list[int]] = {}
    for place, part in enumerate(parts):
        kinds.setdefault(like(part), []).append(place)
    found: list[list[_Estimate]] = [[] for _ in parts]
    for kind, places in kinds.items():
        size = max(1, _AT_ONCE // kind[0])
        for some in (places[first : first + size] for first in range(0, len(places), size)):
            for estimates in read([parts[place] for place in some]):
                for place, estimate in zip(some, estimates, strict=True):
                    found[place].append(estimate)
    return found


def _like_cloud(heads: Heads) -> tuple[Any, ...]:
    """Numbers in the largest sum, heads, and how many vectors each group has."""
    queries, keys = heads.queries, heads.keys
    counts = tuple(cloud.n.numpy().tobytes() for cloud in (queries, keys))
    return (queries.total.numel(), queries.heads, keys.heads, *counts)


def _like_rows(rows: Rows) -> tuple[Any, ...]:
    """The same of rows: all sums that heads have in common."""
    shared = tuple((name, rows.sums[name].numpy().tobytes()) for name in _OF_COUNTS if name in rows.sums)
    return (rows.sums["spread"].numel(), rows.heads, rows.sums["spread"].shape, tuple(rows.sums), shared)


def _estimates(
    formula: Callable[..., Any], *groups: Array, sizes: Array, told: Sequence[_Told]
) -> Iterator[list[_Estimate]]:
    """Formulas of group sums (g, …, layers, heads), with jackknife intervals per head and for the mean over heads.

    The formula gives (…, metrics, layers, heads), a metric for each that is `told` of: one call for all of them. Yields
    one metric of all layers at a time.
    """
    full = np.asarray(formula(*(sums.sum(0) for sums in groups)), np.float64)  # (metrics, layers, heads)
    left = np.asarray(formula(*(without_each(sums) for sums in groups)), np.float64)[sizes > 0]  # (g, …)
    filled, n = sizes[sizes > 0], round(float(sizes.sum()))
    low, high = jackknife(left, full, filled)
    means = full.mean(-1)
    of_layer = np.stack([means, *jackknife(left.mean(-1), means, filled)], -1)  # (metrics, layers, 3)
    of_heads = np.stack([full, low, high], 2)  # (metrics, layers, 3, heads)
    for place, (metric, null, note) in enumerate(told):
        yield [
            _Estimate(metric, tuple(heads), tuple(layer.tolist()), n, null, note)
            for heads, layer in zip(of_heads[place], of_layer[place], strict=True)
        ]


def _estimate(
    metric: str, formula: Callable[..., Any], *groups: Array, sizes: Array, null: float | None = None
) -> list[_Estimate]:
    """One formula, which gives (…, layers, heads)."""
    alone = lambda *of_groups: np.asarray(formula(*of_groups), np.float64)[..., None, :, :]  # noqa: E731
    return next(_estimates(alone, *groups, sizes=sizes, told=[(metric, null, "")]))


def _of_heads(layers: Sequence[Heads]) -> Iterator[list[_Estimate]]:
    """Every metric of queries and keys of layers that are alike, one metric of all of them at a time."""
    queries, keys, group = layers[0].queries, layers[0].keys, layers[0].group
    n_query, n_key = _column(queries.n), _column(keys.n)  # (g, 1, 1)
    sums = {
        "query": [_stacked([getattr(one.queries, name) for one in layers], 1) for name in _OF_CLOUD],
        "key": [_stacked([getattr(one.keys, name) for one in layers], group) for name in _OF_CLOUD],
    }
    sizes = {"query": n_query[:, 0, 0], "key": n_key[:, 0, 0]}
    total_query, total_key = sums["query"][0], sums["key"][0]
    found = _estimate("query_key_cosine", query_key_cosine, total_query, total_key, sizes=sizes["query"], null=0.0)
    yield [replace(one, null_sd=cosine_null_sd(queries.d)) for one in found]
    yield _estimate(
        "query_key_dot", query_key_dot, total_query, n_query, total_key, n_key, sizes=sizes["query"], null=0.0
    )
    for side, n in (("query", n_query), ("key", n_key)):
        total, norm2, unit, norm = sums[side]
        null = 1 / max(float(n.sum()), 1.0)
        yield _estimate(f"{side}_drift_ratio", drift_ratio, total, norm2, n, sizes=sizes[side], null=null)
        yield _estimate(f"{side}_mean_cosine", mean_cosine, unit, n, sizes=sizes[side], null=0.0)
        yield _estimate(f"{side}_norm", ratio, norm, n, sizes=sizes[side])


_MEANS: tuple[tuple[str, str, str, str | float | None], ...] = (
    ("entropy", "entropy", "rows", "log_visible"),
    ("entropy_normalised", "entropy_normalised", "rows", 1.0),
    ("max_probability", "max", "rows", "inverse_visible"),
    ("median_probability", "median", "rows", "inverse_visible"),
    ("min_probability", "min", "rows", "inverse_visible"),
    ("sequence_max", "sequence_max", "sequences", None),
    ("sequence_min", "sequence_min", "sequences", None),
    ("sink_share", "sink", "sink_rows", "inverse_visible"),
    ("self_share", "self", "self_rows", "inverse_visible"),
    ("entropy_collapse", "collapsed", "rows", 0.0),
    ("one_key_share", "one_key", "rows", 0.0),
    ("output_value_cosine", "output", "output_rows", None),
    ("sink_alpha", "alpha", "sink_sequences", None),
    ("sink_epsilon", "sinks", "sink_sequences", None),
    ("score_mean", "score", "rows", 0.0),
)
"""Metrics that are means: the sum, what it is divided by, and the null (of uniform attention where it is a sum)."""


def _of_rows(layers: Sequence[Rows]) -> Iterator[list[_Estimate]]:
    """Every metric of the rows of layers that are alike, one metric of all of them at a time."""
    shared = {name: layers[0].sums[name].numpy() for name in _OF_COUNTS if name in layers[0].sums}
    totals = {name: float(array.sum()) for name, array in shared.items()}
    if not totals["rows"]:
        return
    of = lambda name, group=1: _stacked([one.sums[name] for one in layers], group)  # noqa: E731
    sees = f"T = {totals['sink_length'] / max(totals['sink_sequences'], 1):.0f}"
    left_out = f"{totals['one_key_rows']:.0f} rows of one key left out" if totals["one_key_rows"] else ""
    means: dict[str, tuple[list[Array], list[_Told]]] = {}
    for metric, name, count, null in _MEANS:
        if name in layers[0].sums and totals.get(count):  # runs of earlier versions have fewer sums
            null = totals[null] / totals["rows"] if isinstance(null, str) else null
            note = sees if count == "sink_sequences" else left_out if name.startswith("entropy") else ""
            of_count, told = means.setdefault(count, ([], []))
            of_count.append(of(name))
            told.append((metric, null, note))
    found: dict[str, list[_Estimate]] = {}
    for count, (of_count, told) in means.items():
        n = shared[count].astype(float)
        estimates = _estimates(ratio, np.stack(of_count, 1), n[:, None, None, None], sizes=n, told=told)
        found |= {several[0].metric: several for several in estimates}
    yield from (found[metric] for metric, *_ in _MEANS if metric in found)
    if totals.get("values"):
        group, keys = layers[0].heads // layers[0].sums["value"].shape[1], shared["values"].astype(float)
        yield _estimate("value_norm", ratio, of("value", group), keys[:, None, None], sizes=keys)
    n = shared["rows"].astype(float)
    yield _estimate("score_sd", _sd, of("score"), of("score_square"), n[:, None, None], sizes=n)
    yield from _of_scores(layers[0].heads // layers[0].sums["spread"].shape[1], n, of)


def _of_scores(group: int, rows: Array, of: Callable[..., Array]) -> Iterator[list[_Estimate]]:
    """Salience and content, with intervals from the coarser groups that hold `spread`."""
    within, query, n = (_coarse(sums) for sums in (of("within"), of("query"), rows))
    given = (within, of("spread", group), of("spread_query"), query, n[:, None, None])
    nulls = {"salience_share": 1 / max(float(n.sum()), 1.0)}
    parts = ("score_variance", "salience_variance", "content_variance", "cross_variance", "salience_share")
    told = [(metric, nulls.get(metric), "") for metric in parts]
    return _estimates(lambda *sums: np.stack(split_variance(*sums), -3), *given, sizes=n, told=told)


def _sd(total: Array, square: Array, n: Array) -> Any:
    mean = ratio(total, n)
    return np.sqrt(np.maximum(ratio(square, n) - mean * mean, 0.0))


def _coarse(groups: NDArray[Any]) -> NDArray[Any]:
    """Sums of the jackknife groups as those of group modulo 8."""
    return groups.reshape(-1, SPREAD_GROUPS, *groups.shape[1:]).sum(0)


def _stacked(by_layer: Sequence[Tensor], group: int) -> Array:
    """Sums (g, key heads, …) of layers as (g, layers, heads, …): each head has those of the key head that it reads."""
    sums = np.stack([one.numpy() for one in by_layer], 1)
    return np.repeat(sums, group, axis=2) if group > 1 else sums


def _column(counts: Tensor) -> Array:
    return counts.numpy().astype(np.float64)[:, None, None]


# -- directions --------------------------------------------------------------------------------------------------------


def drift_directions(heads: Mapping[str, Heads]) -> dict[str, Array]:
    """The drift direction of each head, to be kept as safetensors.

    `site.query` (heads, d) and `site.key` (key heads, d) are unit vectors; `site.q_filter` (key heads, d) follows the
    convention of published Q-Filters files. Measure after rotation to compare with those.
    """
    found: dict[str, Array] = {}
    for site, layer in heads.items():
        for side, cloud in (("query", layer.queries), ("key", layer.keys)):
            found[f"{site}.{side}"] = drift_direction(cloud.second.numpy(), cloud.total.sum(0).numpy())
        found[f"{site}.q_filter"] = q_filters(found[f"{site}.query"], group=layer.group)
    return found
