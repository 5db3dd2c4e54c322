"""A verdict in plain words, from rules that are stated here and nowhere else.

| word | rule |
|---|---|
| too few samples to say | fewer than 32 vectors, or no rule below holds and n < 10·d |
| drifted | average cosine ≥ 0.1, with an interval above 0 (without an interval: Rayleigh p < 0.01) |
| dominated by outlier dimensions | 1 to 8 hold half of the variance, or 3 (of ≥ 32) half of a cosine ≥ 0.1 |
| few-dimensional | unbiased participation ratio ≤ d/10, seen by at least ten times as many vectors |
| isotropic | n ≥ 10·d, average cosine within ±0.05, unbiased participation ratio ≥ d/2 |
| not drifted | none of these, and the spectrum was not measured |
| weakly anisotropic | none of these |

Several may hold at once. IsoScore and its kin cannot see drift and the cosine cannot see the spectrum, so isotropy
needs both. The thresholds are conventions: the numbers, their intervals and their nulls stand beside every verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anisoscope.inference.estimates import Estimate

DRIFT, NO_DRIFT = 0.1, 0.05
FEW_DIMENSIONS, MANY_DIMENSIONS = 0.1, 0.5
FEWEST_VECTORS, VECTORS_PER_DIMENSION = 32, 10


@dataclass(frozen=True)
class Verdict:
    """`words` as in the table of this module, `because` the numbers that decided."""

    words: tuple[str, ...]
    because: str

    def __str__(self) -> str:
        return ", ".join(self.words)


def verdict(estimates: Sequence[Estimate], outlier_share: float | None = None) -> Verdict:
    """Judge one cloud from its estimates and the variance share of its outlier dimensions."""
    by_name = {estimate.metric: estimate for estimate in estimates if estimate.metric != "cosine_share"}
    cosine, d = by_name["mean_cosine"], _value(by_name, "dimension") or 1.0
    n = cosine.n or 0
    if n < FEWEST_VECTORS or cosine.value is None:
        return Verdict(("too few samples to say",), f"n = {n}")
    ratio = _value(by_name, "participation_ratio_unbiased")
    share = None if ratio is None else ratio / d
    words = []
    if _drifted(cosine, _value(by_name, "rayleigh_p")):
        words.append("drifted")
    if _outlying(estimates, cosine.value, outlier_share):
        words.append("dominated by outlier dimensions")
    if ratio is not None and ratio <= FEW_DIMENSIONS * d and n >= VECTORS_PER_DIMENSION * ratio:
        words.append("few-dimensional")
    because = f"average cosine {cosine.value:.3f}" + (
        "" if ratio is None else f", {ratio:.4g} of {d:.0f} dimensions in use (unbiased participation ratio)"
    )
    if words:
        return Verdict(tuple(words), because)
    if share is None:
        return Verdict(("not drifted",), f"{because}, no spectrum")
    if n < VECTORS_PER_DIMENSION * d:
        return Verdict(("too few samples to say",), f"{because}, n = {n} < {VECTORS_PER_DIMENSION}·d")
    if abs(cosine.value) <= NO_DRIFT and share >= MANY_DIMENSIONS:
        return Verdict(("isotropic",), because)
    return Verdict(("weakly anisotropic",), because)


def _value(by_name: dict[str, Estimate], name: str) -> float | None:
    return by_name[name].value if name in by_name else None


def _drifted(cosine: Estimate, rayleigh_p: float | None) -> bool:
    certain = cosine.low > 0 if cosine.low is not None else rayleigh_p is not None and rayleigh_p < 0.01
    return cosine.value is not None and cosine.value >= DRIFT and certain


def _outlying(estimates: Sequence[Estimate], cosine: float, outlier_share: float | None) -> bool:
    counts = [estimate.value for estimate in estimates if estimate.metric == "outlier_dimensions"]
    few = bool(counts) and counts[0] is not None and 1 <= counts[0] <= 8
    shares = [estimate.value or 0.0 for estimate in estimates if estimate.metric == "cosine_share"]
    dimensions = next((e.value or 0.0 for e in estimates if e.metric == "dimension"), 0.0)
    carried = cosine >= DRIFT and sum(sorted(shares, reverse=True)[:3]) >= 0.5 and dimensions >= 32
    return (few and outlier_share is not None and outlier_share >= 0.5) or carried
