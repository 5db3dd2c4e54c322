"""Where the rules of a verdict draw their lines, in one place; the page reads the same numbers as plain data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """Where the rules draw their lines."""

    drift: float = 0.1  # average cosine from which a cloud is drifted; also how far an interval around 0 may reach
    no_drift: float = 0.05  # average cosine up to which it is not
    rayleigh: float = 0.01  # p-value below which the Rayleigh test stands in for an interval
    few_dimensions: float = 0.1  # participation ratio over d
    many_dimensions: float = 0.5
    outlier_dimensions: int = 8  # at most so many dimensions
    outlier_share: float = 0.5  # that hold this share of the variance, or of the average cosine
    cosine_dimensions: int = 3  # so many dimensions hold that share of the average cosine
    cosine_width: int = 32  # of at least so many
    vectors: int = 32
    vectors_per_dimension: int = 10

    def as_dict(self) -> dict[str, float]:
        return dataclasses.asdict(self)


THRESHOLDS = Thresholds()
