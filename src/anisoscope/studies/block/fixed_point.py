"""The fixed point in norm of a block: the drift N* at which the output is as long as the input.

    E‖x + b‖ = E‖T(x + b)‖,   ‖b‖ = N*

The input side is known exactly at every N; the output side is measured on a grid and is smooth, so it is interpolated
(monotone cubic), the first crossing is found by Brent's method, the block is run there, and the crossing is found again
through the new point until it stays. "No crossing in [a, b]" is an answer: `None`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_TOUCHING = 1e-4  # relative gap under which the curves meet: float32 norms agree no better
_SETTLED, _MOST_RUNS = 1e-4, 5


@dataclass(frozen=True)
class InputNorms:
    """The norms of x + N·b̂ for every N, from ‖x‖² and x·b̂ of each vector and of their mean: no vector is kept."""

    squares: NDArray[np.float64]  # (n,)
    along: NDArray[np.float64]  # (n,)
    mean_square: float
    mean_along: float

    def mean_norm(self, norm: float) -> float:
        return float(np.sqrt(np.maximum(self.squares + 2 * norm * self.along + norm * norm, 0)).mean())

    def norm_of_mean(self, norm: float) -> float:
        return float(np.sqrt(max(self.mean_square + 2 * norm * self.mean_along + norm * norm, 0.0)))


class NormCurve:
    """Input and output norms of one draw as functions of N.

    >>> curve = NormCurve(lambda n: n, at=[0.0, 10.0, 20.0], output=[12.0, 12.0, 12.0])
    >>> round(first_crossing([curve], 0.0, 20.0), 6)
    12.0
    >>> first_crossing([curve], 0.0, 10.0) is None
    True
    """

    def __init__(self, inputs: Callable[[float], float], *, at: Sequence[float], output: Sequence[float]) -> None:
        self.inputs = inputs
        self._points = dict(zip(at, output, strict=True))

    def add(self, norm: float, output: float) -> None:
        self._points[norm] = output

    @property
    def at(self) -> NDArray[np.float64]:
        return np.array(sorted(self._points))

    def output(self, norm: float) -> float:
        """The output norm at N, interpolated between the measured points."""
        from scipy.interpolate import PchipInterpolator

        at = self.at
        return float(PchipInterpolator(at, [self._points[n] for n in at])(norm))


def first_crossing(curves: Sequence[NormCurve], low: float, high: float) -> float | None:
    """The smallest N in [low, high] at which the averages of the input and output norms over the curves agree."""
    from scipy.optimize import root_scalar

    def gap(norm: float) -> float:
        return float(np.mean([curve.output(norm) - curve.inputs(norm) for curve in curves]))

    measured = sorted({n for curve in curves for n in curve.at if low <= n <= high})
    gaps = [gap(n) for n in measured]
    scale = float(np.mean([curve.output(measured[0]) for curve in curves]))
    touching = [abs(value) <= _TOUCHING * scale for value in gaps]
    if touching[0]:
        return None if all(touching) else measured[0]  # a block that is the identity has no fixed point: it has all
    for left, right, before, after in zip(measured, measured[1:], gaps, gaps[1:], strict=False):
        if before * after <= 0:
            return float(root_scalar(gap, bracket=(left, right), method="brentq", xtol=1e-9).root)
    return None


def fixed_point(curve: NormCurve, run: Callable[[float], float], low: float, high: float) -> float | None:
    """N* of one draw; `run(N)` measures the output norm where the interpolation says that the curves cross.

    The new point moves the crossing; it is run again until it stays, which is at once where the output norm is flat.
    """
    crossing = first_crossing([curve], low, high)
    for _ in range(_MOST_RUNS):
        if crossing is None:
            return None
        before = crossing
        curve.add(before, run(before))
        crossing = first_crossing([curve], low, high)
        if crossing is not None and abs(crossing - before) <= _SETTLED * (1 + before):
            break
    return crossing
