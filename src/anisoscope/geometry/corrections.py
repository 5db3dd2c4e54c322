"""Corrections of an anisotropic cloud. Each is one affine map, y = (x − μ)·W, fitted on sums and applied to rows.

With the mean μ, the covariance C = V·diag(λ)·Vᵀ (λ falling) and ε = 10⁻³ of the mean eigenvalue, so that directions in
which the cloud has no variance are not blown up:

| method | W | from |
|---|---|---|
| `centre` | I | |
| `standardise` | diag(C)^(−1/2) | Timkey & van Schijndel 2021 |
| `all-but-the-top` | I − V₁V₁ᵀ, V₁ the k ≈ d/100 top axes | Mu & Viswanath 2018 |
| `whiten` | V·(λ + ε)^(−1/2) | Su et al. 2021 |
| `whiten-k` | the first k columns of that | Su et al. 2021 |
| `soft-zca` | V·(λ + ε′)^(−1/2)·Vᵀ, ε′ = a tenth of the mean eigenvalue | Diera et al. 2024 |

Cosines are taken after the map, so a unit norm belongs to it. Cost: one d×d eigendecomposition to fit, O(m·d·k) to
apply; O(m·d) where W is diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
METHODS = ("centre", "standardise", "all-but-the-top", "whiten", "whiten-k", "soft-zca")
NAMES = {"raw": "none", "centred": "centre", "without_top": "all-but-the-top", "whitened": "whiten"}
"""What `calibrate` compares, and the method of each."""
_RIDGE, _SOFT = 1e-3, 0.1


@dataclass(frozen=True)
class Affine:
    """y = (x − mean)·matrix; a matrix of one axis is a diagonal.

    >>> Affine(np.array([9.0, 0.0]), np.array([1.0, 0.5])).apply([[9.0, 2.0]]).tolist()
    [[0.0, 1.0]]
    """

    mean: Array  # (d,)
    matrix: Array  # (d, k), or (d,)

    @property
    def dims(self) -> tuple[int, int]:
        """Dimensions before and after."""
        return len(self.mean), self.matrix.shape[-1]

    @property
    def full(self) -> Array:
        """The matrix as (d, k)."""
        return np.diag(self.matrix) if self.matrix.ndim == 1 else self.matrix

    def apply(self, x: ArrayLike) -> Array:
        """The rows of x (m, d) as rows (m, k), in double precision."""
        centred = np.asarray(x, float) - self.mean
        return centred * self.matrix if self.matrix.ndim == 1 else centred @ self.matrix


@dataclass(frozen=True)
class Corrections:
    """The mean and the principal axes of the cloud that the corrections are fitted on."""

    mean: Array  # (d,)
    values: Array  # (d,) eigenvalues, descending
    axes: Array  # (d, d) eigenvectors in columns
    top: int

    def affine(self, method: str, *, dims: int | None = None) -> Affine:
        """The map of a method; with `dims` it ends in so many dimensions, those in which the result varies most."""
        d = len(self.mean)
        if method == "none":
            return Affine(np.zeros(d), np.ones(d))
        kept = d if dims is None else dims
        if method == "whiten-k":
            method, kept = "whiten", dims or min(256, max(2, d // 2))
        if method == "whiten":
            return Affine(self.mean, (self.axes * self._shrunk(_RIDGE))[:, :kept])
        if kept == d:
            return Affine(self.mean, self._whole(method))
        matrix = Affine(self.mean, self._whole(method)).full
        spread = matrix.T @ (self.axes * self.values) @ self.axes.T @ matrix  # the covariance after the map
        return Affine(self.mean, matrix @ np.linalg.eigh(spread)[1][:, ::-1][:, :kept])

    def _whole(self, method: str) -> Array:
        if method == "centre":
            return np.ones(len(self.mean))
        if method == "standardise":
            variances = np.square(self.axes) @ self.values
            return 1 / np.sqrt(variances + _RIDGE * variances.mean())
        if method == "all-but-the-top":
            top = self.axes[:, : self.top]
            return np.eye(len(self.mean)) - top @ top.T
        if method == "soft-zca":
            return (self.axes * self._shrunk(_SOFT)) @ self.axes.T
        raise ValueError(f"unknown method {method!r}: one of {', '.join(METHODS)}")

    def _shrunk(self, ridge: float) -> Array:
        return 1 / np.sqrt(self.values + ridge * self.values.mean())

    def apply(self, name: str, x: ArrayLike) -> Array:
        """The rows of x (m, d) after the correction of that name (see `NAMES`).

        >>> fitted = fit([[9.0, 0.0], [9.0, 2.0], [9.0, -2.0]])
        >>> fitted.apply("centred", [[9.0, 1.0]]).round(6).tolist()
        [[0.0, 1.0]]
        """
        if name not in NAMES:
            raise ValueError(f"unknown correction {name!r}: one of {', '.join(NAMES)}")
        return np.asarray(x, float) if name == "raw" else self.affine(NAMES[name]).apply(x)


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
