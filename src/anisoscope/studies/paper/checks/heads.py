"""Mean queries and mean keys along a training (section 5), against means that have nothing to do with each other.

The cosine of two unrelated directions in d_head dimensions has mean 0 and standard deviation 1/√d_head. That is the
null of everything here: at every step, for every head, an independent isotropic pair. The "reach" of the null is its
two-sided 95 % range, which one head in twenty leaves by chance; so heads are counted, and the count is held against the
binomial law, or the null is simulated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anisoscope.geometry.nulls.isotropic import cosine_quantile
from anisoscope.studies.paper.checks import Check, Seen
from anisoscope.studies.paper.checks.evidence import Evidence

if TYPE_CHECKING:
    from anisoscope.runs.store import Run

ALMOST_ALL = 0.9
ONSET = 0.08  # "only starts after 8% of the total training steps"
MEAN = "/query_mean"
Array = np.ndarray


@dataclass(frozen=True)
class Heads:
    """cos(Q̄, K̄) of every head at every step, heads of all seeds beside each other.

    - `cosine` (steps, heads), `steps` (steps,), `layer` and `seed` (heads,); `d`: the dimension of a head.
    - `options`: what a single check adds.
    """

    steps: Array
    cosine: Array
    layer: Array
    seed: Array
    d: int
    options: tuple[Any, ...] = ()

    @property
    def reach(self) -> float:
        return reach_of(self.d)


@cache
def reach_of(d: int) -> float:
    """What 95 % of unrelated pairs stay within, on either side."""
    return float(cosine_quantile(0.975, d))


@cache
def most_beyond(heads: int) -> int:
    """How many of `heads` unrelated heads lie beyond the reach on one side at most, 95 % of the time."""
    from scipy.stats import binom

    return int(binom.ppf(0.95, heads, 0.025))


def layers_of(run: Run) -> Iterator[tuple[str, int, str]]:
    """(seed, number of the layer, base of its arrays) of everything that a sweep kept."""
    bases = [name.removesuffix(MEAN) for name in run.arrays() if name.endswith(MEAN)]
    for number, base in sorted((int(re.findall(r"\d+", base)[-1]), base) for base in bases):
        yield base.partition("/")[0], number, base


def cosines(query: Array, key: Array) -> Array:
    """cos of vectors along the last axis; 0 where one of them is 0."""
    product = (query * key).sum(-1)
    norms = np.linalg.norm(query, axis=-1) * np.linalg.norm(key, axis=-1)
    return product / np.where(norms == 0, 1, norms)


def read_heads(evidence: Evidence, *options: Any) -> Heads | None:
    """The heads of all seeds of the first run that has any, at the steps that all seeds share."""
    for _, run in evidence.runs:
        found = list(layers_of(run))
        if not found:
            continue
        arrays = run.arrays()
        steps = arrays[f"{found[0][0]}/steps"]
        parts = [(seed, n, arrays[base + MEAN], arrays[f"{base}/key_mean"]) for seed, n, base in found]
        parts = [part for part in parts if len(part[2]) == len(steps)]
        cosine = np.concatenate([cosines(query, key) for _, _, query, key in parts], axis=1)
        layer = np.concatenate([np.full(query.shape[1], n) for _, n, query, _ in parts])
        seed = np.concatenate([np.full(query.shape[1], seed) for seed, _, query, _ in parts])
        return Heads(steps, cosine, layer, seed, parts[0][2].shape[-1], options)
    return None


def unrelated_means(read: Heads | Curves, generator: np.random.Generator) -> Heads | Curves:
    """Independent isotropic means: (1 + cos)/2 has the law Beta((d − 1)/2, (d − 1)/2)."""
    half = (read.d - 1) / 2
    return replace(read, cosine=2 * generator.beta(half, half, read.cosine.shape) - 1)


# -- both directions, almost all heads ---------------------------------------------------------------------------------


def judge_directions(read: Heads) -> Seen:
    """Each side has more heads beyond the null than 95 % of Binomial(heads, 2.5 %)."""
    last = read.cosine[-1]
    common, opposite = int((last > read.reach).sum()), int((last < -read.reach).sum())
    most = most_beyond(len(last))
    words = f"{common} heads of common and {opposite} of opposite direction beyond the null, of {len(last)}; "
    return Seen(common > most and opposite > most, f"{words}unrelated means: up to {most} on either side")


def judge_alignment(read: Heads) -> Seen:
    """At the end almost all heads are beyond the null, and more than at the beginning."""
    beyond = (np.abs(read.cosine) > read.reach).sum(1)
    heads = read.cosine.shape[1]
    words = f"{beyond[0]} → {beyond[-1]} of {heads} heads beyond ±{read.reach:.2g}; median |cos| at the end "
    holds = beyond[-1] >= ALMOST_ALL * heads and beyond[-1] > beyond[0]
    return Seen(bool(holds), f"{words}{np.median(np.abs(read.cosine[-1])):.2f}")


# -- which layers go which way -----------------------------------------------------------------------------------------


def layers_direction(evidence: Evidence, *, part: Literal["first", "last"]) -> Heads | None:
    """The first layers end with a positive cosine that rose, the last ones with a negative cosine that fell."""
    return read_heads(evidence, part)


def judge_layers(read: Heads) -> Seen:
    """The mean over the heads of the quarter of the layers in question, beyond the null of such a mean (one-sided)."""
    (part,) = read.options
    numbers = np.unique(read.layer)
    count = max(1, len(numbers) // 4)
    chosen = numbers[:count] if part == "first" else numbers[-count:]
    mine = read.cosine[:, np.isin(read.layer, chosen)]
    sign = 1 if part == "first" else -1
    beginning, end = float(mine[0].mean()), float(mine[-1].mean())
    bound = 1.645 / np.sqrt(read.d * mine.shape[1])
    by_layer = ", ".join(f"{n}: {read.cosine[-1, read.layer == n].mean():+.2f}" for n in numbers)
    words = (
        f"mean cosine of the {part} {count} of {len(numbers)} layers {beginning:+.2f} → {end:+.2f} (null ±{bound:.2f})"
    )
    return Seen(bool(sign * end > bound and sign * (end - beginning) > 0), f"{words}; at the end by layer {by_layer}")


# -- when it begins ----------------------------------------------------------------------------------------------------


def onset(read: Heads, head: int, sign: int) -> float | None:
    """The share of the training after which a head stays beyond its null; None if it is not beyond at the end."""
    beyond = sign * read.cosine[:, head] > read.reach
    if not beyond[-1]:
        return None
    inside = np.flatnonzero(~beyond)
    first = inside[-1] + 1 if len(inside) else 0
    return float(read.steps[first] / read.steps[-1])


def judge_onset(read: Heads) -> Seen:
    """Of the two heads of figure 12: common direction from the first steps, opposite only after 8 % of training."""
    first_seed = np.flatnonzero(read.seed == read.seed[0])
    last = read.cosine[-1, first_seed]
    common, opposite = (onset(read, int(first_seed[i]), s) for i, s in ((last.argmax(), 1), (last.argmin(), -1)))
    told = ["never" if x is None else f"from {x:.1%} of the training on" for x in (common, opposite)]
    words = f"head of most common direction beyond the null {told[0]}, head of most opposite direction {told[1]}"
    if common is None or opposite is None:
        return Seen(False, words)
    return Seen(common < ONSET <= opposite, words)


# -- planes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InPlane:
    """Of the heads beyond their null: the sign of cos(Q̄, K̄), and of the scalar product on the first direction of a
    plane; whether both means moved away from the origin of the plane along training."""

    sign: Array
    in_plane: Array
    left: Array


def plane_agrees(evidence: Evidence, *, plane: str) -> InPlane | None:
    """In this plane too both means leave the origin, on the same or on opposite sides as cos(Q̄, K̄) says."""
    signs, inside, left = [], [], []
    for _, run in evidence.runs:
        arrays = run.arrays()
        for _, _, base in layers_of(run):
            if f"{base}/{plane}/query" not in arrays:
                continue
            cosine = cosines(arrays[base + MEAN][-1], arrays[f"{base}/key_mean"][-1])
            beyond = np.abs(cosine) > reach_of(arrays[base + MEAN].shape[-1])
            query, key = (arrays[f"{base}/{plane}/{side}"][:, :, 0] for side in ("query", "key"))  # (steps, heads, 2)
            grown = [np.linalg.norm(x[-1], axis=-1) > np.linalg.norm(x[0], axis=-1) for x in (query, key)]
            signs.append(np.sign(cosine)[beyond])
            inside.append(np.sign(query[-1, :, 0] * key[-1, :, 0])[beyond])
            left.append((grown[0] & grown[1])[beyond])
    if not signs or not sum(map(len, signs)):
        return None
    return InPlane(np.concatenate(signs), np.concatenate(inside), np.concatenate(left))


def judge_plane(read: InPlane) -> Seen:
    agreed = read.sign == read.in_plane
    words = f"of {len(agreed)} heads beyond the null, {int(agreed.sum())} have the same sign on the first direction, "
    words += f"and both means of {int(read.left.sum())} moved away from the origin"
    return Seen(bool(agreed.mean() >= ALMOST_ALL and read.left.mean() >= 0.75), words)


def any_sign(read: InPlane, generator: np.random.Generator) -> InPlane:
    """The plane says nothing: signs and movements are tosses of a coin."""
    n = len(read.sign)
    return InPlane(read.sign, generator.choice([-1.0, 1.0], n), generator.random(n) < 0.25)


@dataclass(frozen=True)
class FirstAxis:
    """The share of ‖Q̄‖² + ‖K̄‖² at the last step that lies on the first singular direction, by head."""

    share: Array
    d: int


def drift_on_first_direction(evidence: Evidence) -> FirstAxis | None:
    """For most heads, most of the drift of the means lies along the first direction of the SVD of the union."""
    shares, d = [], 0
    for _, run in evidence.runs:
        arrays = run.arrays()
        for _, _, base in layers_of(run):
            if f"{base}/union/query" not in arrays:
                continue
            means = [arrays[f"{base}/{side}_mean"][-1] for side in ("query", "key")]  # (heads, d)
            on_axis = [arrays[f"{base}/union/{side}"][-1, :, 0, 0] for side in ("query", "key")]
            whole = sum((x**2).sum(-1) for x in means)
            shares.append(sum(x**2 for x in on_axis) / np.where(whole == 0, 1, whole))
            d = means[0].shape[-1]
    return FirstAxis(np.concatenate(shares), d) if shares else None


def judge_axis(read: FirstAxis) -> Seen:
    good = read.share > 0.5
    words = f"more than half of the drift on the first direction in {int(good.sum())} of {len(good)} heads; "
    return Seen(
        bool(good.mean() >= 0.75),
        f"{words}median share {np.median(read.share):.2f}, a random direction has {1 / read.d:.2g}",
    )


def random_axis(read: FirstAxis, generator: np.random.Generator) -> FirstAxis:
    """Two isotropic means of one length and a direction that knows neither."""
    parts = [generator.beta(0.5, (read.d - 1) / 2, len(read.share)) for _ in range(2)]
    return replace(read, share=(parts[0] + parts[1]) / 2)


# -- seeds -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curves:
    """cos(Q̄, K̄) with the heads of a layer concatenated: (seeds, steps, layers), and the dimension of the whole."""

    cosine: Array
    d: int


def seeds_agree(evidence: Evidence) -> Curves | None:
    """The curves of every two seeds, heads concatenated, go together over steps and layers."""
    for _, run in evidence.runs:
        arrays, by_seed, d = run.arrays(), {}, 0
        for seed, _, base in layers_of(run):
            query, key = (arrays[f"{base}/{side}_mean"] for side in ("query", "key"))
            d = query.shape[1] * query.shape[2]
            by_seed.setdefault(seed, []).append(cosines(query.reshape(len(query), d), key.reshape(len(key), d)))
        curves = [np.stack(layers, axis=1) for layers in by_seed.values()]
        if len(curves) > 1 and len({curve.shape for curve in curves}) == 1:
            return Curves(np.stack(curves), d)
    return None


def judge_seeds(read: Curves) -> Seen:
    table = np.corrcoef(read.cosine.reshape(len(read.cosine), -1))
    pairs = table[np.triu_indices(len(table), 1)]
    ends = "; ".join(f"seed {i}: " + ", ".join(f"{x:+.2f}" for x in curve[-1]) for i, curve in enumerate(read.cosine))
    words = f"correlation of the curves of two seeds {pairs.min():.2f} … {pairs.max():.2f}; at the end by layer, {ends}"
    return Seen(bool(pairs.min() > 0.5), words)


CHECKS = {
    "both_directions": Check(read_heads, judge_directions, unrelated_means),
    "almost_all_align": Check(read_heads, judge_alignment, unrelated_means),
    "layers_direction": Check(layers_direction, judge_layers, unrelated_means),
    "opposite_starts_late": Check(read_heads, judge_onset, unrelated_means),
    "plane_agrees": Check(plane_agrees, judge_plane, any_sign),
    "drift_on_first_direction": Check(drift_on_first_direction, judge_axis, random_axis),
    "seeds_agree": Check(seeds_agree, judge_seeds, unrelated_means),
}
