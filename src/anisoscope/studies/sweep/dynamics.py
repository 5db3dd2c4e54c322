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
| `PLANE/query_points.text`, … | (steps, heads, m) | the numbers of their texts, where texts are kept |
| `PLANE/share` | (heads, d) | of the energy Σ‖x‖² of the union, what each direction holds |
| `PLANE/axes` | (heads, 2, d) | the plane; Q̄ of the last step has positive coordinates |

PLANE is `union`, `keys` or `queries`. Keys shared by several query heads are repeated for each.
Cost: O(steps · heads · (d² + m·d)) and one eigendecomposition per head; one layer in memory at a time.
Source: Godey et al., EACL 2024, section 5 and appendices C, D.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.attention.heads import Heads
from anisoscope.accumulate.texts import Texts
from anisoscope.geometry.queries_keys import union_directions
from anisoscope.inference.jackknife import jackknife, without_each
from anisoscope.runs.work.clouds import TOKENS
from anisoscope.runs.work.collected import Part

Array = NDArray[Any]
SIDES = ("query", "key")


def series_arrays(steps: Sequence[int], parts: Sequence[Part], texts: dict[str, int] | None = None) -> dict[str, Array]:
    """The arrays of one seed, from the parts of its steps in order; one layer of every step is in memory at a time.

    `texts` numbers the texts of sampled points, and grows by those of these parts.
    """
    told = [part.get("texts", TOKENS) if TOKENS in part.keys("texts") else None for part in parts]
    held = [set(part.keys("attention")) for part in parts]
    arrays: dict[str, Array] = {"steps": np.array(steps, dtype=np.int64)}
    for site in sites_of_heads(parts):
        if all(f"{site}/heads" in keys for keys in held):
            layers: list[dict[str, Array]] = []
            for part, kept in zip(parts, told, strict=True):
                heads = part.get("attention", f"{site}/heads")
                layers.append(_of_layer(heads))
                if texts is not None and kept is not None and None not in told and not site.startswith("decoder"):
                    layers[-1] |= _numbers(heads, kept, texts)
            if len({layer["query.second"].shape for layer in layers}) > 1:  # other heads: none is the same at all steps
                continue
            stacked = {name: _stacked([layer[name] for layer in layers]) for name in layers[0]}
            arrays |= {f"{site}/{name}": array for name, array in layer_arrays(stacked).items()}
    return arrays


def sites_of_heads(parts: Sequence[Part]) -> list[str]:
    """The sites that have queries and keys at some step."""
    keys = {key for part in parts for key in part.keys("attention")}
    return sorted(key.removesuffix("/heads") for key in keys if key.endswith("/heads"))


def _of_layer(layer: Heads) -> dict[str, Array]:
    """What the planes need of one step: per side the sums and the sampled points, keys repeated for their queries."""
    found: dict[str, Array] = {}
    for side, cloud, group in (("query", layer.queries, 1), ("key", layer.keys, layer.group)):
        found[f"{side}.n"] = cloud.n.numpy()  # (g,)
        found[f"{side}.total"] = np.repeat(cloud.total.numpy(), group, axis=1)  # (g, heads, d)
        found[f"{side}.second"] = np.repeat(cloud.second.numpy(), group, axis=0)  # (heads, d, d)
        found[f"{side}.points"] = np.repeat(cloud.points(), group, axis=0)  # (heads, m, d)
    return found


def _numbers(layer: Heads, kept: Texts, texts: dict[str, int]) -> dict[str, Array]:
    """The number of the text of each sampled point, (heads, m), −1 for none; texts that are new get the next number."""
    found: dict[str, Array] = {}
    for side, cloud in (("query", layer.queries), ("key", layer.keys)):
        sample = cloud.sample.sample()
        told = kept.of(sample.keys, sample.positions)
        numbers = [-1 if text is None else texts.setdefault(text, len(texts)) for text in told]
        found[f"{side}.text"] = np.tile(np.array(numbers, np.int32), (layer.queries.heads, 1))
    return found


def _stacked(arrays: Sequence[Array]) -> Array:
    """Along a new first axis. Samples may differ in size, where a checkpoint saw other tokens."""
    if len({array.shape for array in arrays}) > 1:
        fewest = min(array.shape[1] for array in arrays)
        arrays = [array[:, :fewest] for array in arrays]
    return np.stack(arrays)


def layer_arrays(layer: Mapping[str, Array]) -> dict[str, Array]:
    """One layer over all steps: means, and the three planes with everything projected on them."""
    counts = {side: np.maximum(layer[f"{side}.n"].sum(1), 1)[:, None, None] for side in SIDES}
    means = {side: layer[f"{side}.total"].sum(1) / counts[side] for side in SIDES}
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
            if f"{side}.text" in layer:
                arrays[f"{plane}/{side}_points.text"] = layer[f"{side}.text"]
    return arrays


def _projected(total: Array, n: Array, axes: Array) -> Array:
    """Coordinates of a step's mean (heads, 3, 2): value, low, high; `total` (g, heads, d) by jackknife group."""
    sums = np.einsum("ghd,had->gha", total, axes)
    full = sums.sum(0) / max(n.sum(), 1.0)
    left = without_each(sums) / np.maximum(without_each(n), 1.0)[:, None, None]
    return np.stack([full, *jackknife(left, full, n)], axis=1)
