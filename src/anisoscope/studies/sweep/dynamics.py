"""Queries and keys along a training: one plane for all steps of a head, exact, and what became of the drift.

The paper projects the queries Q_s and the keys K_s of a head at steps s on the SVD of their union over all steps, of a
fifth of the vectors, since it had to hold them. The right singular vectors of stacked vectors are the eigenvectors of
Σ_s (Q_sᵀQ_s + K_sᵀK_s), a sum of d_head×d_head matrices: here the SVD is that of *all* vectors, and so are those of the
keys alone and of the queries alone (the paper's appendix C). Means are exact, with jackknife intervals over sequences;
clouds are a seeded sample, of the same positions at every step and on both sides.

Arrays, by `seed-S/site/…` (S is `None` where a series has no seeds), first axis the step as in `seed-S/steps`:

| name | shape | is |
|---|---|---|
| `query_mean`, `key_mean` | (steps, heads, d) | Q̄_s, K̄_s |
| `PLANE/query`, `PLANE/key` | (steps, heads, 3, 2) | their coordinates: value, low and high (NaN below five groups) |
| `PLANE/query_points`, `PLANE/key_points` | (steps, heads, m, 2) | the sampled clouds |
| `PLANE/share` | (heads, d) | of the energy Σ‖x‖² of the union, what each direction holds |
| `PLANE/axes` | (heads, 2, d) | the plane; Q̄ of the last step has positive coordinates |

PLANE is `union`, `keys` or `queries`. Keys shared by several query heads are repeated for each.
Cost: O(steps · heads · (d² + m·d)) and one eigendecomposition a head; one layer in memory at a time.
Source: Godey et al., EACL 2024, section 5 and appendices C, D.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.heads import Heads
from anisoscope.geometry.queries_keys import cosine_null_sd, union_directions
from anisoscope.inference.jackknife import jackknife, without_each
from anisoscope.runs.table import Row

Array = NDArray[Any]
PLANES = ("union", "keys", "queries")
SIDES = ("query", "key")
BEYOND = 1.96  # standard deviations of the null


def kept_of(heads: Mapping[str, Heads]) -> dict[str, Array]:
    """What a checkpoint leaves for the study of its series: per layer and side the sums and the sampled points."""
    kept: dict[str, Array] = {}
    for site, layer in heads.items():
        for side, cloud, group in (("query", layer.queries, 1), ("key", layer.keys, layer.group)):
            kept[f"{site}/{side}.n"] = cloud.n.numpy()  # (g,)
            kept[f"{site}/{side}.total"] = np.repeat(cloud.total.numpy(), group, axis=1)  # (g, heads, d)
            kept[f"{site}/{side}.second"] = np.repeat(cloud.second.numpy(), group, axis=0)  # (heads, d, d)
            kept[f"{site}/{side}.points"] = np.repeat(cloud.points(), group, axis=0)  # (heads, m, d)
    return kept


def series_arrays(steps: Sequence[int], files: Sequence[Path]) -> dict[str, Array]:
    """The arrays of one seed, from the files (safetensors of `kept_of`) of its steps in order."""
    from safetensors import safe_open

    opened = [safe_open(path, "numpy") for path in files]
    held = [set(file.keys()) for file in opened]
    sites = [name.removesuffix("/query.second") for name in sorted(held[0]) if name.endswith("/query.second")]
    arrays: dict[str, Array] = {"steps": np.array(steps, dtype=np.int64)}
    for site in sites:
        if all(f"{site}/query.second" in names for names in held):
            parts = ("n", "total", "second", "points")
            layer = {
                f"{side}.{part}": _stacked([file.get_tensor(f"{site}/{side}.{part}") for file in opened])
                for side in SIDES
                for part in parts
            }
            arrays |= {f"{site}/{name}": array for name, array in layer_arrays(layer).items()}
    return arrays


def _stacked(arrays: Sequence[Array]) -> Array:
    """Along a new first axis. Samples may differ in size, where a checkpoint saw other tokens."""
    if len({array.shape for array in arrays}) > 1:
        fewest = min(array.shape[1] for array in arrays)
        arrays = [array[:, :fewest] for array in arrays]
    return np.stack(arrays)


def layer_arrays(layer: Mapping[str, Array]) -> dict[str, Array]:
    """One layer over all steps: means, and the three planes with everything projected on them."""
    means = {side: layer[f"{side}.total"].sum(1) / _count(layer[f"{side}.n"].sum(1)) for side in SIDES}
    arrays: dict[str, Array] = {f"{side}_mean": mean for side, mean in means.items()}
    moments = {side: layer[f"{side}.second"].sum(0) for side in SIDES}  # (heads, d, d)
    of_plane = {"union": (moments["query"], moments["key"]), "keys": (moments["key"],), "queries": (moments["query"],)}
    for plane, summed in of_plane.items():
        found = union_directions(*summed)
        axes = found.vectors[:, :2]  # (heads, 2, d)
        axes = axes * np.where(np.einsum("had,hd->ha", axes, means["query"][-1]) < 0, -1.0, 1.0)[..., None]
        energy = np.square(found.singular_values)
        arrays[f"{plane}/axes"] = axes
        arrays[f"{plane}/share"] = energy / np.maximum(energy.sum(-1, keepdims=True), np.finfo(float).tiny)
        for side in SIDES:
            total, n = layer[f"{side}.total"], layer[f"{side}.n"].astype(np.float64)
            arrays[f"{plane}/{side}"] = np.stack([_projected(*step, axes) for step in zip(total, n, strict=True)])
            points = np.einsum("shmd,had->shma", layer[f"{side}.points"], axes, optimize=True)
            arrays[f"{plane}/{side}_points"] = points.astype(np.float32)
    return arrays


def _count(n: Array) -> Array:
    return np.maximum(n, 1).astype(np.float64)[:, None, None]


def _projected(total: Array, n: Array, axes: Array) -> Array:
    """Coordinates of a step's mean (heads, 3, 2): value, low, high; `total` (g, heads, d) by jackknife group."""
    sums = np.einsum("ghd,had->gha", total, axes)
    full = sums.sum(0) / max(n.sum(), 1.0)
    left = without_each(sums) / np.maximum(without_each(n), 1.0)[:, None, None]
    return np.stack([full, *jackknife(left, full, n)], axis=1)


# -- in words ----------------------------------------------------------------------------------------------------------


def null_sds(arrays: Mapping[str, Array]) -> dict[str, float]:
    """The standard deviation of cos(Q̄, K̄) for unrelated means, by layer."""
    return {
        name.split("/", 1)[1].removesuffix("/query_mean"): cosine_null_sd(array.shape[-1])
        for name, array in arrays.items()
        if name.endswith("/query_mean")
    }


def verdict_on(rows: Iterable[Row], null_sd: Mapping[str, float]) -> str:
    """The first step against the last: heads whose means agree or oppose beyond chance, sharpness, hidden states."""
    told = [row for row in rows if row.value is not None and row.positions == "all" and row.step is not None]
    steps = sorted({row.step for row in told if row.step is not None})
    if not steps:
        return ""
    first, last = ([row for row in told if row.step == step] for step in (steps[0], steps[-1]))
    words = [f"from step {steps[0]} to {steps[-1]}"] if len(steps) > 1 else [f"at step {steps[0]}"]
    before, after = agreeing(first, null_sd), agreeing(last, null_sd)
    if after is not None and before is not None:
        words.append(
            f"heads with cos(Q̄, K̄) beyond ±1.96/√d: {before[0] + before[1]} → {after[0] + after[1]} of {after[2]} "
            f"({after[0]} common, {after[1]} opposite)"
        )
    for metric, name in (("entropy_normalised", "entropy over log n"), ("mean_cosine", "average cosine of blocks")):
        ends = [_mean(row.value for row in part if row.metric == metric and _is_block(row)) for part in (first, last)]
        if None not in ends:
            words.append(f"{name} {ends[0]:.3g} → {ends[1]:.3g}")
    return "; ".join(words)


def agreeing(rows: Iterable[Row], null_sd: Mapping[str, float]) -> tuple[int, int, int] | None:
    """Heads whose cos(Q̄, K̄) is above, below ±1.96 standard deviations of its null, and all; None without heads."""
    cosines = [
        (row.value, BEYOND * null_sd[row.site.rpartition(".head.")[0]])
        for row in rows
        if row.metric == "query_key_cosine" and row.head is not None and row.value is not None
    ]
    if not cosines:
        return None
    return sum(v > bound for v, bound in cosines), sum(v < -bound for v, bound in cosines), len(cosines)


def _is_block(row: Row) -> bool:
    return row.layer is not None and row.head is None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
