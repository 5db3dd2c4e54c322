"""Estimates of a language model's output, from `accumulate.outputs`: means over positions with jackknife intervals.

Nulls: a uniform prediction (all logits 0: logsumexp and entropy log V); for the gradient, a random direction of the
logits (its share within the d columns of the head is √(d/V)) and random directions of the states (k/d of the energy).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.geometry.missing import Values, ratio
from anisoscope.inference.estimates import Estimate
from anisoscope.inference.jackknife import jackknife_of

TOP = 10  # a tenth of the directions


def output_estimates(sums: Mapping[str, NDArray[Any]], vocabulary: int) -> list[Estimate]:
    """Logits over all positions; loss and gradient over those with a label, where there are any."""
    level, d = float(np.log(vocabulary)), len(sums["states"])
    nulls = {"logsumexp": level, "logsumexp_square": level**2, "logit_norm": 0.0, "prediction_entropy": level}
    found = [_mean(name, sums, "positions", null) for name, null in nulls.items()]
    if not sums["asked"].sum():
        return found
    asked = sums["asked"].astype(float)
    share = jackknife_of(_norm_share, sums["through"], sums["gradient"], sizes=asked)
    found.append(_mean("loss", sums, "asked", level))
    found.append(Estimate("head_gradient_share", *share, null=min(1.0, d / vocabulary) ** 0.5, n=int(asked.sum())))
    return [*found, _top_energy(sums["states"], sums["gradients"], n=int(asked.sum()))]


def _mean(name: str, sums: Mapping[str, NDArray[Any]], count: str, null: float) -> Estimate:
    n = sums[count].astype(float)
    return Estimate(name, *jackknife_of(ratio, sums[name], n, sizes=n), null=null, n=int(n.sum()))


def _norm_share(through: Any, gradient: Any) -> Values:
    return ratio(np.sqrt(through), np.sqrt(gradient))


def _top_energy(states: NDArray[Any], gradients: NDArray[Any], *, n: int) -> Estimate:
    """The share of the gradient's energy in the top tenth of the directions of the states, about the origin."""
    d = len(states)
    k = max(1, d // TOP)
    value = None
    if np.isfinite(states).all() and np.isfinite(gradients).all():
        top = np.linalg.eigh(states)[1][:, -k:]
        value = ratio(np.trace(top.T @ gradients @ top), np.trace(gradients))
    return Estimate("gradient_top_energy", value, null=k / d, n=n, note=f"top {k} of {d} directions")
