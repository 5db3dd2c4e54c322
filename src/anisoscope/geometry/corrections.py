"""The usual corrections of an anisotropic cloud: centring, all-but-the-top, whitening. Fitted on sums, applied to rows.

- centred: x − μ;
- without_top: centred, then its k ≈ d/100 top principal components removed (Mu & Viswanath, ICLR 2018);
- whitened: (x − μ)·V·(λ + ε)^(−1/2) (Su et al. 2021), ε = 10⁻³ of the mean eigenvalue, so that directions in which the
  cloud has no variance are not blown up.

Cost: one d×d eigendecomposition to fit, O(m·d²) to apply.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
NAMES = ("raw", "centred", "without_top", "whitened")
_RIDGE = 1e-3


@dataclass(frozen=True)
class Corrections:
    """The mean and the principal axes of the cloud that the corrections were fitted on."""

    mean: Array  # (d,)
    values: Array  # (d,) eigenvalues, descending
    axes: Array  # (d, d) eigenvectors in columns
    top: int

    def apply(self, name: str, x: ArrayLike) -> Array:
        """The rows of x (m, d) after the correction of that name.

        >>> fitted = fit([[9.0, 0.0], [9.0, 2.0], [9.0, -2.0]])
        >>> fitted.apply("centred", [[9.0, 1.0]]).round(6).tolist()
        [[0.0, 1.0]]
        """
        rows = np.asarray(x, float)
        if name == "raw":
            return rows
        centred = rows - self.mean
        if name == "centred":
            return centred
        if name == "without_top":
            top = self.axes[:, : self.top]
            return centred - (centred @ top) @ top.T
        if name == "whitened":
            return centred @ self.axes / np.sqrt(self.values + _RIDGE * self.values.mean())
        raise ValueError(f"unknown correction {name!r}: one of {', '.join(NAMES)}")


def fit(x: ArrayLike) -> Corrections:
    """Fit on the rows of x (n, d)."""
    rows = np.asarray(x, float)
    return fit_sums(rows.sum(0), rows.T @ rows, len(rows))


def fit_sums(sum_x: Array, second: Array, n: int) -> Corrections:
    """Fit on the sums of n vectors: Σx and Σxxᵀ."""
    from anisoscope.geometry.spectrum import covariance

    values, axes = np.linalg.eigh(covariance(second, sum_x, n))
    d = len(sum_x)
    return Corrections(sum_x / n, np.clip(values[::-1], 0, None), axes[:, ::-1], max(1, round(d / 100)))
