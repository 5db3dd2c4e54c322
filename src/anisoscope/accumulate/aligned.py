"""Two clouds whose rows are partners: an image and its caption, a text before and after a change of the model.

    aligned = Aligned(d, k)
    aligned.update(torch.cat([x, y], 1), start=0)     # row i of x (n, d) belongs to row i of y (n, k)

The joined vectors (x, y) in R^(d+k) are one cloud, so its moments hold both means, both second moments and the cross
moment Σxyᵀ, and its reservoir holds whole pairs. The one sum that they do not hold is that of the cosines of partners,
kept here by jackknife group. A pair of which one vector is zero or not finite is left out, and counted as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.keys import Keys, group_of
from anisoscope.accumulate.moments import Moments
from anisoscope.errors import UsageError


class Aligned:
    """Additive statistics of partners in R^d and R^k.

    >>> aligned = Aligned(2, 2)
    >>> aligned.update(np.array([[1.0, 0.0, 0.0, 2.0], [1.0, 0.0, 3.0, 0.0], [0.0, 0.0, 1.0, 0.0]]), start=0)
    >>> aligned.moments.sums().n, float(aligned.cosines.sum())
    (2, 1.0)
    """

    def __init__(self, d: int, k: int, *, moments: Moments | None = None, **options: Any) -> None:
        self.d, self.k = d, k
        self.moments = Moments(d + k, **options) if moments is None else moments
        self.cosines = np.zeros(self.moments.groups)

    def update(self, joined: NDArray[np.floating], *, sequences: Keys | None = None, start: int | None = None) -> None:
        """Add rows (n, d + k); `sequences` and `start` as in `Moments.update`."""
        x, y = joined[:, : self.d].astype(float), joined[:, self.d :].astype(float)
        with np.errstate(all="ignore"):
            norms = np.linalg.norm(x, axis=1), np.linalg.norm(y, axis=1)
            good = np.all([np.isfinite(norm) & (norm > 0) for norm in norms], axis=0)
            joined = np.where(good[:, None], joined, 0)
            if self.d == self.k:
                cosines = np.where(good, (x * y).sum(1) / (norms[0] * norms[1]), 0.0)
                if sequences is None and start is None:
                    raise UsageError("rows without sequences need the number of the first", do="give `start`")
                numbers = np.arange(len(x), dtype=np.uint64) + np.uint64(start or 0)
                groups = group_of(numbers if sequences is None else sequences, groups=self.moments.groups)
                self.cosines += np.bincount(groups, cosines, minlength=self.moments.groups)
        self.moments.update(joined, sequences=sequences, start=start)

    def seal(self) -> None:
        self.moments.seal()

    def merge(self, other: Aligned) -> None:
        if (self.d, self.k) != (other.d, other.k):
            raise UsageError("partners of other dimensions", got=(other.d, other.k), expected=(self.d, self.k))
        self.moments.merge(other.moments)
        self.cosines += other.cosines

    def state(self) -> dict[str, NDArray]:
        return {**self.moments.state(), "partners": np.array([self.d, self.k]), "cosines": self.cosines.copy()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Aligned:
        d, k = (int(value) for value in state["partners"])
        found = cls(d, k, moments=Moments.from_state(state))
        found.cosines = np.array(state["cosines"])
        return found
