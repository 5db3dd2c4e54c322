"""The whole distribution of pair cosines in a sample, and the average cosine after the usual post-processing.

The average over all pairs of a cloud is a sum (`cosine`); its quantiles are not, so they come from a sample of vectors
x (m, d). All m(m−1)/2 pairs are taken when they fit the limit, else that many seeded random pairs.

Cost: O(m²·d) time and 8 bytes a pair. Sources: centring and removing the top principal components, Mu & Viswanath,
ICLR 2018 ("all-but-the-top"). There the removal acts on *centred* vectors, as it does here; a widely copied gist
projects the uncentred ones, which is another thing.

>>> found = pair_cosines([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
>>> found.exact, found.cosines.round(3).tolist()
(True, [0.0, 0.707, 0.707])
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from anisoscope.errors import InputError, UsageError
from anisoscope.geometry.cosine import mean_cosine
from anisoscope.geometry.rows import as_rows, row_blocks, unit_rows

PAIR_LIMIT = 10_000_000
NOTHING_LEFT = 1e-10
"""A row this much shorter than the cloud's root mean square is what rounding left of a zero row."""


@dataclass(frozen=True, slots=True)
class PairCosines:
    """Sorted cosines of pairs: all of them (`exact`) or a seeded random sample out of `pairs`."""

    cosines: np.ndarray
    exact: bool
    pairs: int

    def mean(self) -> float:
        return float(self.cosines.mean())

    def sd(self) -> float:
        """Spread over pairs. Isotropic null: 1/√d."""
        return float(self.cosines.std())

    def mean_square(self) -> float:
        """E[cos²]. Isotropic null: 1/d; `null.equivalent_dimension` turns it into a dimension."""
        return float(np.square(self.cosines).mean())

    def quantile(self, levels: ArrayLike) -> np.ndarray:
        """Cosines below which the given shares of the pairs lie, by linear interpolation."""
        return np.quantile(self.cosines, np.asarray(levels, np.float64))

    def above(self, threshold: float) -> float:
        """Share of the pairs whose cosine is at least `threshold`: a false-positive rate if the pairs are unrelated."""
        return 1.0 - float(np.searchsorted(self.cosines, threshold, side="left")) / len(self.cosines)

    def histogram(self, bins: int = 200) -> tuple[np.ndarray, np.ndarray]:
        """Density over [−1, 1] in `bins` equal bins, and the bins+1 edges; the density integrates to 1."""
        counts, edges = np.histogram(np.clip(self.cosines, -1.0, 1.0), bins=bins, range=(-1.0, 1.0))
        return counts * (bins / 2.0 / len(self.cosines)), edges


def pair_cosines(x: ArrayLike, *, limit: int = PAIR_LIMIT, seed: int = 0) -> PairCosines:
    """Cosines of the pairs i < j of the rows of x (m, d): every pair if there are at most `limit`, else `limit` drawn.

    Isotropic null: each cosine follows `null.cosine_density(c, d)` exactly, with mean 0 and sd 1/√d.
    """
    units = unit_rows(x)
    m = len(units)
    if m < 2:
        raise InputError("a pair needs two vectors", got=f"{m} rows")
    pairs = m * (m - 1) // 2
    cosines = _all_pairs(units) if pairs <= limit else _random_pairs(units, limit, seed)
    cosines.sort()
    return PairCosines(cosines=cosines, exact=pairs <= limit, pairs=pairs)


def mean_cosine_centred(x: ArrayLike) -> float | None:
    """Average cosine over all pairs of rows after their mean is subtracted.

    Drift is gone, so what remains is shape: clusters and skew. Range [−1/(m−1), 1]; null ≈ −1/(m−1), for centring
    makes m isotropic vectors that much opposed. Missing if fewer than two rows differ from the mean. Cost O(m·d).

    >>> mean_cosine_centred([[5.0, 1.0], [5.0, -1.0]])
    -1.0
    """
    rows = as_rows(x)
    return _mean_cosine_of(rows - rows.mean(axis=0), rows)


def mean_cosine_without_top(x: ArrayLike, k: int) -> float | None:
    """Average cosine after centring and removing the top k principal components; k = 0 only centres.

    Range and null as `mean_cosine_centred`. Missing if nothing is left. Needs k < min(m − 1, d). Cost O(m·d·min(m, d)).

    >>> x = np.random.default_rng(0).normal(size=(400, 6)) + [9.0, 0, 0, 0, 0, 0]
    >>> abs(mean_cosine_without_top(x, 1)) < 0.01
    True
    """
    rows = as_rows(x)
    if not 0 <= k < min(len(rows) - 1, rows.shape[1]):
        raise UsageError(
            "cannot remove that many principal components",
            got=f"k = {k} of {len(rows)} vectors in {rows.shape[1]} dimensions",
            expected="0 <= k < min(m - 1, d)",
        )
    centred = rows - rows.mean(axis=0)
    top = principal_directions(centred, k)
    return _mean_cosine_of(centred - (centred @ top) @ top.T, rows)


def principal_directions(centred: np.ndarray, k: int) -> np.ndarray:
    """The k directions of largest variance of centred rows, as orthonormal columns (d, k), largest first."""
    from scipy.linalg import eigh

    m, d = centred.shape
    if k == 0:
        return np.zeros((d, 0))
    small = centred @ centred.T if m < d else centred.T @ centred
    vectors = eigh(small, subset_by_index=[len(small) - k, len(small) - 1])[1][:, ::-1]
    return np.linalg.qr(centred.T @ vectors)[0] if m < d else vectors


def _mean_cosine_of(rows: np.ndarray, original: np.ndarray) -> float | None:
    norms = np.linalg.norm(rows, axis=1)
    scale = np.sqrt(np.square(original).sum(axis=1).mean())
    kept = norms > NOTHING_LEFT * scale
    units = rows[kept] / norms[kept, None]
    return mean_cosine(units.sum(axis=0), len(units))


def _all_pairs(units: np.ndarray) -> np.ndarray:
    m = len(units)
    cosines = np.empty(m * (m - 1) // 2)
    filled = 0
    for block in row_blocks(m, m):
        products = units[block] @ units[block.start :].T  # (rows, m − start)
        found = products[np.triu(np.ones(products.shape, dtype=bool), k=1)]
        cosines[filled : filled + len(found)] = found
        filled += len(found)
    return cosines


def _random_pairs(units: np.ndarray, count: int, seed: int) -> np.ndarray:
    m, d = units.shape
    generator = np.random.default_rng(seed)
    left = generator.integers(0, m, size=count)
    right = (left + generator.integers(1, m, size=count)) % m  # never the vector itself
    cosines = np.empty(count)
    for block in row_blocks(count, 2 * d):
        cosines[block] = np.einsum("ij,ij->i", units[left[block]], units[right[block]])
    return cosines
