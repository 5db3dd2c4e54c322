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
import torch

from anisoscope.accumulate.keys import Keys, group_of
from anisoscope.accumulate.moments import Moments
from anisoscope.errors import UsageError


class Aligned:
    """Additive statistics of partners in R^d and R^k.

    >>> aligned = Aligned(2, 2)
    >>> aligned.update(torch.tensor([[1.0, 0.0, 0.0, 2.0], [1.0, 0.0, 3.0, 0.0], [0.0, 0.0, 1.0, 0.0]]), start=0)
    >>> aligned.moments.sums().n, float(aligned.cosines.sum())
    (2, 1.0)
    """

    def __init__(self, d: int, k: int, *, moments: Moments | None = None, **options: Any) -> None:
        self.d, self.k = d, k
        self.moments = Moments(d + k, **options) if moments is None else moments
        self.cosines = torch.zeros(self.moments.groups, dtype=torch.float64)

    @torch.no_grad()
    def update(self, joined: torch.Tensor, *, sequences: Keys | None = None, start: int | None = None) -> None:
        """Add rows (n, d + k); `sequences` and `start` as in `Moments.update`."""
        x, y = joined[:, : self.d].double(), joined[:, self.d :].double()
        norms = torch.linalg.vector_norm(x, dim=1), torch.linalg.vector_norm(y, dim=1)
        good = torch.stack([norm.isfinite() & (norm > 0) for norm in norms]).all(0)
        joined = joined.where(good[:, None], torch.zeros((), dtype=joined.dtype))
        if self.d == self.k:
            cosines = ((x * y).sum(1) / (norms[0] * norms[1])).where(good, 0.0)
            if sequences is None and start is None:
                raise UsageError("rows without sequences need the number of the first", do="give `start`")
            keys = np.arange(start or 0, (start or 0) + len(x)).astype(np.uint64) if sequences is None else sequences
            groups = torch.from_numpy(group_of(keys, groups=self.moments.groups))
            self.cosines.index_add_(0, groups, cosines)
        self.moments.update(joined, sequences=sequences, start=start)

    def seal(self) -> None:
        self.moments.seal()

    def merge(self, other: Aligned) -> None:
        if (self.d, self.k) != (other.d, other.k):
            raise UsageError("partners of other dimensions", got=(other.d, other.k), expected=(self.d, self.k))
        self.moments.merge(other.moments)
        self.cosines += other.cosines

    def state(self) -> dict[str, torch.Tensor]:
        about = {"partners": torch.tensor([self.d, self.k]), "cosines": self.cosines.clone()}
        return {**self.moments.state(), **about}

    @classmethod
    def from_state(cls, state: Mapping[str, torch.Tensor]) -> Aligned:
        d, k = (int(value) for value in state["partners"])
        found = cls(d, k, moments=Moments.from_state(state))
        found.cosines = state["cosines"].clone()
        return found
