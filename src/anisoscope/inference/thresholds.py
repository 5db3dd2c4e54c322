"""Where verdicts and warnings draw their lines, in one place; the page reads the same numbers as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Literal


@dataclass(frozen=True)
class Thresholds:
    """Where the rules draw their lines."""

    drift: float = 0.1  # average cosine from which a cloud is drifted; also how far an interval around 0 may reach
    no_drift: float = 0.05  # average cosine up to which it is not
    rayleigh: float = 0.01  # p-value below which the Rayleigh test stands in for an interval
    few_dimensions: float = 0.1  # participation ratio over d
    many_dimensions: float = 0.5
    outlier_dimensions: int = 8  # at most this many dimensions
    outlier_share: float = 0.5  # that hold this share of the variance, or of the average cosine
    cosine_dimensions: int = 3  # this many dimensions hold that share of the average cosine
    cosine_width: int = 32  # of at least this many
    massive_value: float = 100.0  # an activation above it
    massive_ratio: float = 1000.0  # and above this many medians is massive (Sun et al. 2024)
    vectors: int = 32
    vectors_per_dimension: int = 10

    def as_dict(self) -> dict[str, float]:
        return dataclasses.asdict(self)


THRESHOLDS = Thresholds()


# -- rules of warning --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Band:
    """When a series of numbers leaves its level.

    The band is made of `window` observations; it is left when each of the `in_a_row` after them lies beyond its mean by
    `margin`, by `deviations` of its standard deviations and by `factor` of the mean itself. Observations before step
    `after` do not count: healthy trainings pass through a collapse while they warm up (in the embedded series the
    cosine at the last block is 0.05 at step 0, 0.98 at 64 and 0.14 at 8192). A training that warms up for longer needs
    a later `after`.
    """

    after: int = 1024
    window: int = 5
    margin: float = 0.1
    deviations: float = 4.0
    in_a_row: int = 2
    factor: float = 0.0

    def level(self, values: Sequence[float]) -> float | None:
        """The mean of the band that the last values are compared with; missing where it is not yet made."""
        before = values[-self.window - self.in_a_row : -self.in_a_row]
        return sum(before) / self.window if len(before) == self.window else None

    def left(self, values: Sequence[float], *, falling: bool = False) -> bool:
        """Whether the last values lie above (or below) the band that the ones before them make.

        >>> Band().left([0.2, 0.21, 0.2, 0.19, 0.2, 0.5, 0.6]), Band().left([0.2, 0.21, 0.2, 0.19, 0.2, 0.22, 0.21])
        (True, False)
        """
        level, sign = self.level(values), -1 if falling else 1
        if level is None:
            return False
        before = values[-self.window - self.in_a_row : -self.in_a_row]
        reach = max(self.margin, self.deviations * stdev(before), self.factor * abs(level))
        return all(sign * (value - level) > reach for value in values[-self.in_a_row :])


@dataclass(frozen=True)
class Rule:
    """One rule of warning, as data: which metric, where, and when it warns.

    - `where`: the last site that has the metric, or each site (rows of single heads are not read: the row of a layer
      has the greatest logit of its heads);
    - `bound`: beyond it the rule warns at once, whatever the level was; `band`: it warns when the level is left;
    - `falling`: low values are the bad ones; `sentence` has {site}, {value}, and {level} where a band was left.
    """

    name: str
    metric: str
    sentence: str
    where: Literal["last", "each"] = "each"
    bound: float | None = None
    band: Band | None = None
    falling: bool = False


RULES = (
    Rule("nan", "nonfinite_vectors", "{value:.0f} states at {site} are NaN or infinite", bound=0.0),
    Rule(
        "drift",
        "mean_cosine",
        "the average cosine at the last site left its band: {level:.3f} → {value:.3f}",
        where="last",
        band=Band(),
    ),
    Rule(
        "rank_collapse",
        "effective_rank",
        "the effective rank at the last site fell: {level:.1f} → {value:.1f}",
        where="last",
        band=Band(margin=0.0, deviations=0.0, factor=0.5),
        falling=True,
    ),
    Rule(
        "entropy_collapse",
        "entropy_collapse",
        "attention of {site} collapses: {level:.2f} → {value:.2f} of its rows",
        bound=0.5,
        band=Band(margin=0.2, deviations=0.0),
    ),
    Rule(
        "logit_growth",
        "max_logit",
        "the greatest attention logit of {site} grew: {level:.1f} → {value:.1f}",
        bound=100.0,
        band=Band(margin=5.0, deviations=0.0, factor=1.0),
    ),
    Rule(
        "massive_activation",
        "massive_activation_ratio",
        "the largest activation at {site} grew: {level:.0f} → {value:.0f} medians",
        band=Band(margin=50.0, deviations=0.0, factor=1.0),
    ),
)
"""The rules of the monitor. The bounds were tried on failing trainings (docs/studies/warning.md): no false alarm in 20
healthy ones. The bands are starting points. Those that follow growth ask for no deviations: a number that grows by a
constant factor has a band as wide as its growth, and would never leave it."""
