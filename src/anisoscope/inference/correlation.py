"""Is anisotropy drift? Correlation tests over the few layers of a model.

The paper correlates the average cosine with ‖x̄‖ over layers (Spearman in its figure 5, Pearson in figure 16) and reads
the asymptotic p-value, which is wrong for a dozen points. Here the p-value is that of a permutation test: exact over
all orders for up to eight layers, else 20,000 seeded random orders, (1 + count)/(1 + draws). The asymptotic p-value,
which is the paper's, is kept beside it. Layers of one network are not independent either: a small p says that the two
quantities move together along the depth, not why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import ArrayLike

_EXACT_UP_TO = 8
_ROUNDING = 1e-6  # of the largest: numbers that differ by less are equal, for states are float32
_DRAWS = 20_000


@dataclass(frozen=True)
class Correlation:
    """`p` by permutation (`how` says exact or sampled), `p_asymptotic` as the paper has it; None where undefined."""

    method: str
    value: float | None
    p: float | None
    p_asymptotic: float | None
    n: int
    how: str


def correlate(a: ArrayLike, b: ArrayLike, *, method: str = "spearman", seed: int = 0) -> Correlation:
    """Test the association of two sequences of numbers, `method` spearman or pearson.

    >>> c = correlate([1, 2, 3, 4, 5], [1, 4, 9, 16, 26])
    >>> c.value, round(c.p, 4), c.how
    (1.0, 0.0167, 'exact over 120 orders')
    """
    from scipy.stats import pearsonr, rankdata

    x, y = np.asarray(a, float), np.asarray(b, float)
    kept = np.isfinite(x) & np.isfinite(y)
    x, y = x[kept], y[kept]
    n = len(x)
    if n < 3 or any(np.ptp(one) <= _ROUNDING * np.abs(one).max() for one in (x, y)):
        return Correlation(method, None, None, None, n, "undefined: fewer than three layers, or all alike")
    if method == "spearman":
        x, y = rankdata(x), rankdata(y)
    test = pearsonr(x, y)
    value, asymptotic = float(test.statistic), float(test.pvalue)  # pyright: ignore[reportAttributeAccessIssue]  # stubs lag
    orders = np.array(list(permutations(range(n)))) if n <= _EXACT_UP_TO else None
    how = f"exact over {math.factorial(n)} orders" if orders is not None else f"{_DRAWS} random orders, seed {seed}"
    if orders is None:
        orders = np.argsort(np.random.default_rng(seed).random((_DRAWS, n)), axis=1)
    centred_x, centred_y = x - x.mean(), y - y.mean()
    scores = np.abs(centred_y[orders] @ centred_x)  # (draws,)
    as_extreme = int((scores >= abs(centred_x @ centred_y) * (1 - 1e-12)).sum())
    exact = len(orders) == math.factorial(n)
    p = as_extreme / len(orders) if exact else (1 + as_extreme) / (1 + len(orders))
    return Correlation(method, value, float(p), asymptotic, n, how)
