"""An estimate: one metric of one cloud with its interval, its isotropic null, its n and its note."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anisoscope.inference.metrics import Metric


@dataclass(frozen=True, slots=True)
class Estimate:
    """`value` is missing (None) where the metric is undefined; `at` tells apart several values of one metric."""

    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    null: float | None = None
    n: int | None = None
    note: str = ""
    at: float | None = None


def estimated(
    metric: Metric,
    value: float | None,
    low: float | None = None,
    high: float | None = None,
    *,
    n: int,
    d: int,
    note: str = "",
    at: float | None = None,
) -> Estimate:
    """An estimate of a declared metric, beside its isotropic null at n vectors in d dimensions."""
    return Estimate(metric.name, value, low, high, metric.isotropic(n, d), n, note, at)


def left_out(count: int, vectors: str) -> str:
    """What was not counted, in words.

    >>> left_out(7, "zero vectors"), left_out(1, "vectors with NaN or infinite entries")
    ('7 zero vectors left out', '1 vector with NaN or infinite entries left out')
    """
    return f"{count} {vectors.replace('vectors', 'vector') if count == 1 else vectors} left out"
