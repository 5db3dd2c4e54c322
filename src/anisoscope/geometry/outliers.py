"""Dimensions that stand out: few that hold the variance, few that hold the mean.

Both depend on the basis: they speak of coordinates, the ones that LayerNorm gains and quantisation act on, and a
rotation of the cloud makes them vanish. Cost: O(d log d).

>>> outlier_dimensions([1.0] * 62 + [40.0, 90.0])
[63, 62]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from anisoscope.errors import UsageError
from anisoscope.geometry.missing import Values, ratio


def outlier_dimensions(variances: ArrayLike, *, factor: float = 5.0) -> list[int]:
    """Dimensions whose variance is at least `factor` times the mean variance over dimensions, largest first.

    Isotropic null: none, once n is in the hundreds (a sample variance of n vectors has relative sd √(2/n)). At most
    d/factor dimensions can qualify, so none for d < factor. Outlier dimensions by their variance: Rudman et al., EMNLP
    2023 ("Outlier Dimensions Encode Task-Specific Knowledge"); the factor of 5 is a convention.
    """
    values = np.asarray(variances, dtype=np.float64)
    bar = factor * values.mean()
    above = np.flatnonzero((values >= bar) & (bar > 0))
    return above[np.argsort(-values[above], kind="stable")].tolist()


def kurtosis(fourth: ArrayLike, sum_norm2: ArrayLike, n: ArrayLike) -> Values:
    """E[x⁴]/E[x²]² over all coordinates of all vectors, about zero; `fourth` = d·ΣΣ_k x_k⁴. Missing for no energy.

    Range [1, n·d]: 1 if all coordinates are ±1, 3d/(d+2) for uniform directions, large where few coordinates of few
    vectors hold the energy (massive activations). Depends on the basis, like everything here.

    >>> x = np.array([[1.0, 0.0], [0.0, 2.0]])
    >>> float(kurtosis(2 * (x**4).sum(), (x**2).sum(), 2)), float(np.mean(x**4) / np.mean(x**2) ** 2)
    (2.72, 2.72)
    """
    with np.errstate(over="ignore", invalid="ignore"):  # then it is missing
        energy = np.square(np.asarray(sum_norm2, np.float64))
        return ratio(np.asarray(fourth, np.float64) * np.asarray(n, np.float64), energy)


def mean_dimensions(mean: ArrayLike, *, share: float = 0.5) -> list[int]:
    """Fewest dimensions that together hold at least `share` of ‖x̄‖², largest first; empty for a zero mean.

    Null: when the mean has no preferred coordinate (Gaussian entries, as sampling noise has) half of ‖x̄‖² takes about
    0.124·d dimensions. One to three of hundreds says that the drift lives in outlier coordinates. Unlike a rule of
    "more than 3 sd", which 0.27 % of the dimensions pass by chance, the answer is a count with a meaning at every d.

    >>> mean_dimensions([0.1, -5.0, 0.2, 4.0])
    [1]
    >>> mean_dimensions([1.0, 1.0, 1.0, 1.0])
    [0, 1]
    """
    if not 0 < share <= 1:
        raise UsageError("a share of the mean lies in (0, 1]", got=share)
    squares = np.square(np.asarray(mean, dtype=np.float64))
    total = squares.sum()
    if total == 0:
        return []
    order = np.argsort(-squares, kind="stable")
    held = np.cumsum(squares[order]) / total
    return [int(k) for k in order[: int((held < share - 1e-12).sum()) + 1]]
