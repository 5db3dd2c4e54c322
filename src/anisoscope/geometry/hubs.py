"""Hubs: rows that are among the nearest of too many others, by cosine, and what takes them away.

N_k counts how often a row is among the k nearest of another (or of a query); its mean is k (times queries over rows),
and its skewness is the usual measure of hubness (Radovanović et al. 2010). A row of N_k = 0 is an anti-hub: no search
finds it. Two corrections of the similarity s, each from the rows' own distributions:

- CSLS (Conneau et al. 2018): 2·s(x, y) − r(x) − r(y), r the mean similarity to the k nearest;
- mutual proximity (Schnitzer et al. 2012), as scikit-hubness computes it with `normal`: 1 − P(D_x > d)·P(D_y > d), with
  the distances of each row taken to be normal.

Cost: O(m²·d), m² numbers in memory. Isotropic vectors have hubs too, the more the higher the dimension: compare with
`isotropic_hubs` at the same m and d.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anisoscope.geometry.neighbours import skewness
from anisoscope.geometry.rows import largest, unit_rows

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Hubs:
    """How often each row occurs, and the skewness of that: as it is, after CSLS, after mutual proximity."""

    occurrence: NDArray[np.int64]  # (m,)
    skewness: float | None
    after_csls: float | None = None
    after_mutual_proximity: float | None = None

    @property
    def anti(self) -> float:
        """The share of rows that are nobody's neighbour."""
        return float((self.occurrence == 0).mean())

    def top(self, count: int) -> NDArray[np.int64]:
        """The rows that occur most often, the lower number first among equals."""
        return np.argsort(-self.occurrence, kind="stable")[:count]


def find_hubs(x: ArrayLike, *, queries: ArrayLike | None = None, own: ArrayLike | None = None, k: int = 10) -> Hubs:
    """Hubs among the rows x (m, d): as neighbours of each other, or as answers to queries (q, d).

    `own` (q,): for each query the row that is the query itself, which does not count; −1 where there is none.

    >>> find_hubs([[1.0, 0.1], [1.0, 0.0], [1.0, -0.2], [0.0, 1.0]], k=1).occurrence.tolist()
    [2, 2, 0, 0]
    """
    rows = unit_rows(x)
    asked = rows if queries is None else unit_rows(queries)
    itself = np.arange(len(rows)) if queries is None else np.asarray([-1] * len(asked) if own is None else own)
    s = asked @ rows.T
    s[np.flatnonzero(itself >= 0), itself[itself >= 0]] = -np.inf
    counts = occurrence(s, k)
    if queries is not None:
        return Hubs(counts, skewness(counts))
    return Hubs(counts, skewness(counts), skewness(occurrence(csls(s, k), k)), skewness(occurrence(_proximity(s), k)))


def occurrence(s: Array, k: int) -> NDArray[np.int64]:
    """How often each column is among the k largest of a row of similarities (q, m)."""
    return np.bincount(largest(s, min(k, s.shape[1] - 1)).ravel(), minlength=s.shape[1])


def csls(s: Array, k: int) -> Array:
    """2·s − r(x) − r(y) of similarities (m, m) whose diagonal is −∞."""
    k = min(k, len(s) - 1)
    near = np.sort(np.take_along_axis(s, largest(s, k), axis=1), axis=1).mean(1)
    return 2 * s - near[:, None] - near[None, :]


def _proximity(s: Array) -> Array:
    """Mutual proximity as a similarity, P(D_x > d)·P(D_y > d), of cosines (m, m) whose diagonal is −∞."""
    from scipy.special import log_ndtr

    d, m = 1 - s, len(s)
    others = d.ravel()[1:].reshape(m - 1, m + 1)[:, :-1].reshape(m, m - 1)  # each row without the diagonal
    mean, sd = others.mean(1), others.std(1)
    far = log_ndtr((mean[:, None] - d) / np.where(sd > 0, sd, 1)[:, None])  # log P(D_x > d), (x, y)
    return far + far.T


@lru_cache(maxsize=4)
def isotropic_hubs(m: int, d: int, k: int = 10, seed: int = 0) -> tuple[float | None, float]:
    """Skewness and share of anti-hubs of one simulated cloud of m isotropic vectors in R^d."""
    s = unit_rows(np.random.default_rng(seed).standard_normal((m, d)))
    s = s @ s.T
    np.fill_diagonal(s, -np.inf)
    counts = occurrence(s, k)
    return skewness(counts), float((counts == 0).mean())
