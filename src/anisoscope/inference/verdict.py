"""A verdict as data: words from stated rules, the numbers that decided, and one plain sentence with both.

| word | rule |
|---|---|
| too few samples to say | fewer than 32 vectors, or no rule below holds and n < 10·d |
| drifted | average cosine ≥ 0.1, with an interval above 0 (without an interval: Rayleigh p < 0.01) |
| looks drifted, too few sequences to be sure | average cosine ≥ 0.1, and neither interval nor test to support it |
| dominated by outlier dimensions | 1 to 8 hold half of the variance, or 3 (of ≥ 32) half of a cosine ≥ 0.1 |
| few-dimensional | unbiased participation ratio ≤ d/10, seen by at least ten times as many vectors |
| isotropic | n ≥ 10·d, average cosine within ±0.05, its interval within ±0.1, unbiased participation ratio ≥ d/2 |
| looks isotropic, too few sequences to be sure | the same, but the interval is missing or wider |
| no drift seen; spectrum not measured | average cosine within ±0.05, its interval within ±0.1, and no spectrum |
| cannot say | the spectrum was not measured, and nothing above holds |
| weakly anisotropic | the spectrum was measured, and nothing above holds |

Several may hold at once. IsoScore and its kin cannot see drift and the cosine cannot see the spectrum, so isotropy
needs both, and a number that is missing never counts as a small one. The thresholds are conventions (`Thresholds`):
the numbers, their intervals and their nulls stand beside every verdict.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from anisoscope.geometry.nulls.isotropic import mean_cosine_sd
from anisoscope.inference.estimates import Estimate
from anisoscope.inference.sentences import sentence_on, sentence_on_many
from anisoscope.inference.thresholds import THRESHOLDS, Thresholds

TOO_FEW, UNSURE = "too few samples to say", "too few sequences to be sure"
DRIFTED, OUTLYING, FLAT = "drifted", "dominated by outlier dimensions", "few-dimensional"
NO_DRIFT, CANNOT_SAY = "no drift seen; spectrum not measured", "cannot say"


@dataclass(frozen=True)
class Number:
    """A number that decided: its interval and its isotropic value, which has a spread at this n (`null_sd`)."""

    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    null: float | None = None
    null_sd: float | None = None
    n: int | None = None


@dataclass(frozen=True)
class Verdict:
    """`words` (`drifted`, `isotropic`, …), the `numbers` that decided, and a `sentence` that says both."""

    words: tuple[str, ...]
    numbers: tuple[Number, ...]
    sentence: str

    def __str__(self) -> str:
        return ", ".join(self.words)

    def number(self, metric: str) -> Number | None:
        return next((number for number in self.numbers if number.metric == metric), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        numbers = tuple(Number(**number) for number in data["numbers"])
        return cls(tuple(data["words"]), numbers, data["sentence"])


def verdict(
    estimates: Sequence[Estimate],
    outlier_share: float | None = None,
    *,
    things: str = "vectors",
    thresholds: Thresholds = THRESHOLDS,
) -> Verdict:
    """Judge one cloud from its estimates and the variance share of its outlier dimensions.

    `things` is what the vectors stand for in the sentence: tokens, frames, vectors.
    """
    seen = _Seen(estimates, outlier_share, thresholds)
    words = seen.words()
    numbers = seen.numbers()
    return Verdict(
        words, numbers, sentence_on(words, {number.metric: number for number in numbers}, things, thresholds)
    )


class _Seen:
    """The numbers of a cloud by name, and what the rules make of them."""

    def __init__(self, estimates: Sequence[Estimate], outlier_share: float | None, thresholds: Thresholds) -> None:
        self.by_name = {estimate.metric: estimate for estimate in estimates if estimate.metric != "cosine_share"}
        self.shares = sorted((e.value for e in estimates if e.metric == "cosine_share" and e.value), reverse=True)
        self.outlier_share, self.limits = outlier_share, thresholds
        self.cosine = self.by_name["mean_cosine"]
        self.n, self.d = self.cosine.n or 0, self.value("dimension") or 1.0
        self.ratio = self.value("participation_ratio_unbiased")

    def value(self, name: str) -> float | None:
        return self.by_name[name].value if name in self.by_name else None

    def words(self) -> tuple[str, ...]:
        if self.n < self.limits.vectors or self.cosine.value is None:
            return (TOO_FEW,)
        found = (*self._drift(), *((OUTLYING,) if self._outlying() else ()), *((FLAT,) if self._flat() else ()))
        return found or self._nothing_found(self.cosine.value)

    def _drift(self) -> tuple[str, ...]:
        cosine, p = self.cosine, self.value("rayleigh_p")
        if cosine.value is None or cosine.value < self.limits.drift:
            return ()
        certain = cosine.low > 0 if cosine.low is not None else p is not None and p < self.limits.rayleigh
        return (DRIFTED,) if certain else ("looks drifted", UNSURE)

    def _outlying(self) -> bool:
        limits, count = self.limits, self.value("outlier_dimensions")
        few = count is not None and 1 <= count <= limits.outlier_dimensions
        in_variance = few and self.outlier_share is not None and self.outlier_share >= limits.outlier_share
        carried = sum(self.shares[: limits.cosine_dimensions]) >= limits.outlier_share
        drifted = self.cosine.value is not None and self.cosine.value >= limits.drift
        return in_variance or (drifted and carried and self.d >= limits.cosine_width)

    def _flat(self) -> bool:
        ratio, limits = self.ratio, self.limits
        return ratio is not None and ratio <= limits.few_dimensions * self.d and self._enough_for(ratio)

    def _enough_for(self, dimensions: float) -> bool:
        return self.n >= self.limits.vectors_per_dimension * dimensions

    def _nothing_found(self, cosine: float) -> tuple[str, ...]:
        central = abs(cosine) <= self.limits.no_drift
        if self.ratio is None:
            return (NO_DRIFT,) if central and self._certainly_small() else (CANNOT_SAY,)
        if not self._enough_for(self.d):
            return (TOO_FEW,)
        if central and self.ratio >= self.limits.many_dimensions * self.d:
            return ("isotropic",) if self._certainly_small() else ("looks isotropic", UNSURE)
        return ("weakly anisotropic",)

    def _certainly_small(self) -> bool:
        low, high, most = self.cosine.low, self.cosine.high, self.limits.drift
        return low is not None and high is not None and -most <= low and high <= most

    def numbers(self) -> tuple[Number, ...]:
        """What the words rest on: always the cosine; the rest where it was measured."""
        names = ("drift_ratio", "participation_ratio_unbiased", "outlier_dimensions", "dimension", "sequences")
        names += ("rayleigh_p",) if self.cosine.low is None else ()
        spread = mean_cosine_sd(self.n, int(self.d)) if self.d >= 2 else None
        found = [_number(self.cosine, null_sd=spread)]
        found += [_number(self.by_name[name]) for name in names if self.value(name) is not None]
        if self.outlier_share is not None:
            found.append(Number("outlier_share", self.outlier_share, null=0.0, n=self.n))
        if self.shares:
            carried = sum(self.shares[: self.limits.cosine_dimensions])
            found.append(Number("cosine_share", carried, n=self.n))
        return tuple(found)


def _number(e: Estimate, *, null_sd: float | None = None) -> Number:
    return Number(e.metric, e.value, e.low, e.high, e.null, null_sd, e.n)


def verdict_of_many(verdicts: Mapping[str, Verdict]) -> Verdict:
    """One verdict for the sites of a model: how many sites are what, and where the average cosine is largest.

    Every site counts once in the sentence, by its first word; further words of the same sites stand in brackets.

    >>> one = Verdict(("drifted",), (Number("mean_cosine", 0.7, 0.6, 0.8),), "")
    >>> other = Verdict(("isotropic",), (Number("mean_cosine", 0.0, -0.01, 0.01),), "")
    >>> verdict_of_many({"block.0": one, "block.1": other, "block.2": one}).sentence
    'Drifted at 2 of 3 sites, isotropic at 1; the average cosine is largest at block.0: 0.70 (0.60 to 0.80).'
    """
    if len(verdicts) == 1:
        return next(iter(verdicts.values()))
    counts = Counter(word for found in verdicts.values() for word in found.words)
    ordered = dict(sorted(counts.items(), key=lambda item: -item[1]))
    first = Counter(found.words[0] for found in verdicts.values())
    besides = {one: Counter(w for v in verdicts.values() if v.words[0] == one for w in v.words[1:]) for one in first}
    cosines = {site: found.number("mean_cosine") for site, found in verdicts.items()}
    known = {site: number for site, number in cosines.items() if number is not None and number.value is not None}
    site = max(known, key=lambda site: known[site].value or 0.0, default=None)
    largest = None if site is None else known[site]
    words = tuple(f"{word} at {count} of {len(verdicts)} sites" for word, count in ordered.items())
    sequences = None if site is None else verdicts[site].number("sequences")
    sentence = sentence_on_many(
        dict(first.most_common()), besides, site, largest, None if sequences is None else sequences.value
    )
    return Verdict(words, () if largest is None else (largest,), sentence)
