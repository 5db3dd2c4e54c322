"""Intervals by the delete-a-group jackknife over sequences.

Tokens of one text are not independent, so whole groups of sequences are left out. With g groups of sizes m_j,
n in all, h_j = n/m_j, the estimate θ and θ_(j) without group j, the pseudo-values are h_j·θ − (h_j − 1)·θ_(j), and

    var = 1/g Σ_j (pseudo_j − θ_J)² / (h_j − 1),    θ_J = g·θ − Σ_j (1 − m_j/n)·θ_(j)

(Busing, Meijer & van der Leeden 1999, "Delete-m jackknife for unequal m"). The interval is θ ± t_{g−1}·√var.
Cost: one evaluation of the metric on a stack of g leave-one-out sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anisoscope.geometry.scale import scale_of

FEWEST_GROUPS = 5  # fewer non-empty groups say nothing about a spread
_STUDENT = (  # the 97.5 % quantiles of Student's t, for 5 … 32 groups: to import scipy takes longer than most commands
    *(2.7764451051977934, 2.5705818356363146, 2.4469118511449786, 2.364624251592784, 2.306004135204166),
    *(2.262157162798205, 2.228138851986274, 2.200985160091639, 2.1788128296672284, 2.1603686564627913),
    *(2.144786687917804, 2.131449545559776, 2.1199052992212546, 2.1098155778333156, 2.1009220402410382),
    *(2.0930240544083087, 2.085963447265864, 2.0796138447276795, 2.0738730679040254, 2.0686576104190486),
    *(2.0638985616280245, 2.0595385527532972, 2.0555294386428735, 2.0518305164802846, 2.0484071417952454),
    *(2.045229642132703, 2.0422724563012378, 2.039513446396408),
)

Array = NDArray[np.float64]


def jackknife(leave_one_out: ArrayLike, full: ArrayLike, sizes: ArrayLike) -> tuple[Any, Any]:
    """Low and high of the 95 % interval from the leave-one-out values (g, …), the full value (…) and the group sizes.

    Groups of size 0 are passed over. Where fewer than five are left, both ends are None (NaN in a stack).

    >>> x = np.random.default_rng(0).standard_normal((32, 100)).mean(1)
    >>> low, high = jackknife((x.sum() - x) / 31, x.mean(), np.full(32, 100))
    >>> bool(low < 0 < high), bool(np.isclose(high - low, 2 * 2.0395 * x.std(ddof=1) / 32**0.5, rtol=1e-4))
    (True, True)
    """
    error = standard_error(leave_one_out, full, sizes)
    if error is None:
        empty = np.full(np.shape(full), np.nan)
        return (empty, empty) if empty.ndim else (None, None)
    groups = int(np.count_nonzero(np.asarray(sizes)))
    reach = t_quantile(groups - 1) * error
    low, high = np.asarray(full) - reach, np.asarray(full) + reach
    return (low, high) if low.ndim else (float(low), float(high))


def standard_error(leave_one_out: ArrayLike, full: ArrayLike, sizes: ArrayLike) -> Array | None:
    """The jackknife's standard error, or None where fewer than five groups hold anything."""
    values, theta, m = np.asarray(leave_one_out, float), np.asarray(full, float), np.asarray(sizes, float)
    values, m = values[m > 0], m[m > 0]
    g = len(m)
    if g < FEWEST_GROUPS:
        return None
    n = m.sum()
    h = (n / m).reshape(-1, *[1] * theta.ndim)  # (g, 1, …)
    centre = g * theta - ((1 - 1 / h) * values).sum(0)
    apart = h * theta - (h - 1) * values - centre  # pseudo-values about their centre
    scale = scale_of(np.abs(apart).max(0, initial=0.0))  # of each value: others may be far greater
    return np.sqrt((np.square(apart / scale) / (h - 1)).mean(0)) * scale


def in_parts(groups: Array) -> tuple[Array, Array]:
    """The sum of all groups, and the sums without each."""
    total = groups.sum(0)
    with np.errstate(invalid="ignore"):  # ∞ − ∞: then there is no interval
        return total, total - groups


def without_each(groups: Array) -> Array:
    """The sums without each group in turn: total − group, along the first axis."""
    return in_parts(groups)[1]


def jackknife_of(
    metric: Callable[..., Any],
    *group_sums: Array,
    sizes: Array,
    parts: Callable[[Array], tuple[Array, Array]] = in_parts,
) -> tuple[float | None, float | None, float | None]:
    """Value, low and high of a metric that is a function of group sums and takes leading axes.

    >>> n, total = np.full(32, 10.0), np.arange(320.0).reshape(32, 10).sum(1)
    >>> [round(v, 1) for v in jackknife_of(lambda s, n: s / n, total, n, sizes=n)]
    [159.5, 125.7, 193.3]
    """
    totals, without = zip(*map(parts, group_sums), strict=True)
    full = metric(*totals)
    if full is None or not np.isfinite(full):
        return None, None, None
    with np.errstate(divide="ignore", invalid="ignore"):  # without one group there may be nothing
        left = np.asarray(metric(*without), float)
    if not np.isfinite(left[sizes > 0]).all():  # a group holds all that the metric needs
        return float(full), None, None
    low, high = jackknife(left, full, sizes)
    return float(full), low, high


def jackknife_mean(values: Array, groups: NDArray[np.int64]) -> tuple[float | None, float | None, float | None]:
    """The mean of values (m,), with its interval over their jackknife groups (m,).

    >>> [round(one, 2) for one in jackknife_mean(np.arange(64.0), np.arange(64) % 32)]
    [31.5, 28.12, 34.88]
    """
    sizes = np.bincount(groups).astype(float)
    return jackknife_of(
        lambda total, n: total / n, np.bincount(groups, weights=values).astype(float), sizes, sizes=sizes
    )


@cache
def t_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t: how many standard errors a 95 % interval reaches."""
    if FEWEST_GROUPS - 1 <= degrees < FEWEST_GROUPS - 1 + len(_STUDENT):
        return _STUDENT[degrees - FEWEST_GROUPS + 1]
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))
