"""Average cosine over all pairs, from sums of unit vectors: exact, and no pair is ever formed.

With u_i = x_i/‖x_i‖ and s = Σ u_i, the sum of cos(x_i, x_j) over ordered pairs i ≠ j is ‖s‖² − n, so one (d,) vector
holds what n(n−1)/2 pairs would tell. Two more numbers split the pairs by sequence: energy = Σ_seq ‖Σ_seq u‖² and
pairs = Σ_seq n_seq². Every function works over leading axes: `sum_unit` of shape (..., d) with `n` of shape (...),
which is how the jackknife passes its 32 leave-one-out sums at once (see `missing` for what a missing value is there).

Cost: O(d) per cloud. Sources: the sum identity is Machina & Mercer, NAACL 2024 (`cosine_improvement.py`); the average
as a measure of anisotropy, Ethayarajh, EMNLP 2019; the share of a dimension, Timkey & van Schijndel, EMNLP 2021, eq. 3.

>>> u = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
>>> round(mean_cosine(u.sum(axis=0), 3), 12)  # (0.6 + 0.0 + 0.8) / 3
0.466666666667
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from anisoscope.geometry.missing import Values, ratio


def mean_cosine(sum_unit: ArrayLike, n: ArrayLike) -> Values:
    """Average cosine over all pairs of different vectors: (‖s‖² − n) / (n(n−1)). Missing if n < 2.

    Range [−1/(n−1), 1]. Isotropic null: mean 0, sd √(2/(d·n(n−1))) (`isotropic.mean_cosine_sd`). It sees the direction
    that a cloud shares and nothing else: a line through the origin, half of it on each side, has average cosine 0.

    >>> mean_cosine(np.array([2.0, 0.0]), 2), mean_cosine(np.array([1.0, 0.0]), 1)
    (1.0, None)
    """
    count = np.asarray(n, dtype=np.float64)
    return ratio(_square_norm(sum_unit) - count, count * (count - 1))


def mean_cosine_inter(sum_unit: ArrayLike, n: ArrayLike, energy: ArrayLike, pairs: ArrayLike) -> Values:
    """Average cosine over pairs of *different* sequences: (‖s‖² − energy) / (n² − pairs).

    Range [−1, 1]; isotropic null 0. Missing if there is only one sequence. The number to read when
    tokens of one text resemble each other.

    >>> two_texts = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # the first two rows are one text
    >>> mean_cosine_inter(two_texts.sum(axis=0), 3, energy=4.0 + 1.0, pairs=4 + 1)
    0.0
    """
    count = np.asarray(n, dtype=np.float64)
    return ratio(_square_norm(sum_unit) - np.asarray(energy, np.float64), count * count - np.asarray(pairs, np.float64))


def mean_cosine_intra(energy: ArrayLike, n: ArrayLike, pairs: ArrayLike) -> Values:
    """Average cosine over pairs *within* a sequence, pooled over sequences: (energy − n) / (pairs − n).

    Range [−1, 1]; null 0 for independent isotropic vectors. Missing if no sequence has two vectors. Su & Xu's
    "isotropy" of a language model is one minus this.

    >>> mean_cosine_intra(energy=4.0 + 1.0, n=3, pairs=4 + 1)
    1.0
    """
    count = np.asarray(n, dtype=np.float64)
    return ratio(np.asarray(energy, np.float64) - count, np.asarray(pairs, np.float64) - count)


def cosine_share(sum_unit: ArrayLike, sum_unit_squares: ArrayLike, n: int) -> np.ndarray | None:
    """Contribution of each dimension to the average cosine: CC_k = (s_k² − Σ u_k²) / (n(n−1)), shape (..., d).

    Exactly additive: the contributions sum to `mean_cosine`. A dimension that carries nothing has CC_k ≈ 0, never
    below −Σu_k²/(n(n−1)). Missing if n < 2. It depends on the basis: rotating the cloud moves the shares.

    >>> u = np.array([[0.6, 0.8], [0.6, -0.8]])
    >>> cosine_share(u.sum(axis=0), (u * u).sum(axis=0), 2)
    array([ 0.36, -0.64])
    """
    if n < 2:
        return None
    total = np.asarray(sum_unit, dtype=np.float64)
    return (total * total - np.asarray(sum_unit_squares, np.float64)) / (float(n) * (n - 1))


class Share(NamedTuple):
    """What one dimension adds to the average cosine, and which part of it that is."""

    dimension: int
    contribution: float
    share: float | None


def top_shares(contributions: ArrayLike, k: int = 5) -> list[Share]:
    """The k dimensions that add most to the average cosine, largest first.

    `share` = contribution / Σ contributions. It is missing where the total is at most half of Σ|contributions|: the
    positive and negative parts then cancel (as they do for an isotropic cloud) and a ratio to their sum says nothing.

    >>> top_shares([0.01, 0.40, 0.00, 0.09], k=2)
    [Share(dimension=1, contribution=0.4, share=0.8), Share(dimension=3, contribution=0.09, share=0.18)]
    >>> top_shares([0.5, -0.5], k=1)
    [Share(dimension=0, contribution=0.5, share=None)]
    """
    values = np.asarray(contributions, dtype=np.float64)
    total = float(values.sum())
    meaningful = total > 0.5 * float(np.abs(values).sum())
    least = np.partition(values, -k)[-k] if 0 < k < values.size else -np.inf
    leading = np.flatnonzero(values >= least)
    order = leading[np.argsort(-values[leading], kind="stable")][:k]
    return [Share(int(i), float(values[i]), float(values[i]) / total if meaningful else None) for i in order]


def resultant(sum_unit: ArrayLike, n: ArrayLike) -> Values:
    """Length of the mean unit vector, ‖s‖/n: the R̄ of directional statistics. Missing if n = 0.

    Range [0, 1]. Isotropic null ≈ n^(−1/2) (E R̄² = 1/n exactly), so it never reaches 0; R̄² = cos̄ + (1 − cos̄)/n.

    >>> resultant(np.array([1.0, 1.0]), 2)
    0.7071067811865476
    """
    return ratio(np.sqrt(_square_norm(sum_unit)), n)


def _square_norm(vectors: ArrayLike) -> np.ndarray:
    array = np.asarray(vectors, dtype=np.float64)
    return np.einsum("...k,...k->...", array, array)
