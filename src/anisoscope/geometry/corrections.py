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
apply; O(m·d) where W is diagonal, O(m·d·k) for the k axes that `all-but-the-top` takes away.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
METHODS = ("centre", "standardise", "all-but-the-top", "whiten", "whiten-k", "soft-zca")
NAMES = {"raw": "none", "centred": "centre", "without_top": "all-but-the-top", "whitened": "whiten"}
"""What `calibrate` compares, and the method of each."""
_RIDGE, _SOFT = 1e-3, 0.1
_NOTHING = 1e-12  # of the energy: rounding errors of float32 have less


@dataclass(frozen=True)
class Affine:
    """y = (x − mean)·matrix; a matrix of one axis is a diagonal.

    >>> Affine(np.array([9.0, 0.0]), np.array([1.0, 0.5])).apply([[9.0, 2.0]]).tolist()
    [[0.0, 1.0]]
    """

    mean: Array  # (d,)
    matrix: Array  # (d, k), or (d,)
    axes: Array | None = None  # (d, r) beside a diagonal: the map is diag(matrix) + axes·diag(gains)·axesᵀ
    gains: Array | None = None  # (r,)

    @property
    def dims(self) -> tuple[int, int]:
        """Dimensions before and after."""
        return len(self.mean), self.matrix.shape[-1]

    @cached_property
    def single(self) -> Affine:
        """The same in float32."""
        made: dict[str, Any] = {name: array.astype(np.float32) for name, array in self.arrays.items()}
        return Affine(**made)

    @property
    def full(self) -> Array:
        """The matrix as (d, k)."""
        whole = np.diag(self.matrix) if self.matrix.ndim == 1 else self.matrix
        return whole if self.axes is None or self.gains is None else whole + (self.axes * self.gains) @ self.axes.T

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays that are stored."""
        kept = {"mean": self.mean, "matrix": self.matrix, "axes": self.axes, "gains": self.gains}
        return {name: array for name, array in kept.items() if array is not None}

    def apply(self, x: ArrayLike) -> Array:
        """The rows of x (m, d) as rows (m, k), in double precision."""
        centred = np.asarray(x, float) - self.mean
        turned = centred * self.matrix if self.matrix.ndim == 1 else centred @ self.matrix
        if self.axes is None or self.gains is None:
            return turned
        return turned + ((centred @ self.axes) * self.gains) @ self.axes.T

    def apply_into(self, out: np.ndarray, x: np.ndarray, held: np.ndarray) -> None:
        """`apply` for speed: in the precision of the map, in memory already allocated (`held` has the shape of x)."""
        if self.matrix.ndim == 2:
            np.matmul(np.subtract(x, self.mean, out=held), self.matrix, out=out)
            return
        np.subtract(x, self.mean, out=out)
        along = None if self.axes is None or self.gains is None else ((out @ self.axes) * self.gains) @ self.axes.T
        if (self.matrix != 1).any():
            out *= self.matrix
        if along is not None:
            out += along


@dataclass(frozen=True)
class Corrections:
    """The mean and the principal axes of the cloud that the corrections are fitted on.

    There may be fewer axes than dimensions (a sketch, d above 4,096): beyond them the variance is `level` everywhere,
    and no map holds a d×d matrix.
    """

    mean: Array  # (d,)
    values: Array  # (k,) eigenvalues, descending
    axes: Array  # (d, k) eigenvectors in columns
    top: int
    level: float = 0.0

    @property
    def length(self) -> float:
        """The root of the mean squared norm of the rows."""
        beyond = self.level * (len(self.mean) - len(self.values))
        return float(self.mean @ self.mean + self.values.sum() + beyond) ** 0.5

    def affine(self, method: str, *, dims: int | None = None) -> Affine:
        """The map of a method; with `dims` its result has that many dimensions, those in which it varies most."""
        d = len(self.mean)
        if method == "none":
            return Affine(np.zeros(d), np.ones(d))
        kept = d if dims is None else dims
        if method == "whiten-k":
            method, kept = "whiten", dims or min(256, max(2, d // 2))
        if method == "whiten" and (kept < d or not self.partial):
            return Affine(self.mean, (self.axes * self._shrunk(self.values, _RIDGE))[:, :kept])
        if self.partial or method == "all-but-the-top":  # a few axes beside a diagonal cost less than a matrix
            return self._few_axes(method, kept)
        if kept == d:
            return Affine(self.mean, self._whole(method))
        matrix = Affine(self.mean, self._whole(method)).full
        spread = matrix.T @ (self.axes * self.values) @ self.axes.T @ matrix  # the covariance after the map
        return Affine(self.mean, matrix @ np.linalg.eigh(spread)[1][:, ::-1][:, :kept])

    @property
    def partial(self) -> bool:
        """Whether there are fewer axes than dimensions."""
        return self.axes.shape[1] < len(self.mean)

    def _few_axes(self, method: str, kept: int) -> Affine:
        """The map as a diagonal and what it does along the axes; in fewer dimensions, those of the largest variance."""
        made = Affine(self.mean, self._scales(method))
        if method in ("whiten", "soft-zca"):
            ridge = _RIDGE if method == "whiten" else _SOFT
            made = Affine(self.mean, made.matrix, self.axes, self._shrunk(self.values, ridge) - made.matrix[0])
        if method == "all-but-the-top":
            made = Affine(self.mean, made.matrix, self.axes[:, : self.top], -np.ones(min(self.top, len(self.values))))
        if kept == len(self.mean):
            return made
        turned = Affine(np.zeros_like(self.mean), *list(made.arrays.values())[1:])
        spread = turned.apply((self.axes * np.sqrt(self.values)).T).T  # its left vectors: axes after the map
        return Affine(self.mean, turned.apply(np.linalg.svd(spread, full_matrices=False)[0][:, :kept].T).T)

    def _scales(self, method: str) -> Array:
        """What the map does beyond the axes, as a diagonal."""
        if method == "standardise":
            squares = np.square(self.axes)
            variances = squares @ self.values + self.level * np.maximum(1 - squares.sum(1), 0)
            return 1 / np.sqrt(variances + _RIDGE * variances.mean())
        if method in ("whiten", "soft-zca"):
            level = self._shrunk(np.array([self.level]), _RIDGE if method == "whiten" else _SOFT)
            return np.repeat(level, len(self.mean))
        return np.ones(len(self.mean))

    def _whole(self, method: str) -> Array:
        if method == "centre":
            return np.ones(len(self.mean))
        if method == "standardise":
            variances = np.square(self.axes) @ self.values
            return 1 / np.sqrt(variances + _RIDGE * variances.mean())
        if method == "soft-zca":
            return (self.axes * self._shrunk(self.values, _SOFT)) @ self.axes.T
        raise ValueError(f"unknown method {method!r}: one of {', '.join(METHODS)}")

    def _shrunk(self, values: Array, ridge: float) -> Array:
        beyond = len(self.mean) - len(self.values)
        return 1 / np.sqrt(values + ridge * (self.values.sum() + self.level * beyond) / len(self.mean))

    def leaves(self, method: str, x: Array) -> bool:
        """Whether a method leaves more than rounding errors of the rows of x: the mean, or the top, may be all of them.

        >>> fit([[9.0, 0.0], [9.0, 2.0], [9.0, -2.0]]).leaves("all-but-the-top", np.array([[9.0, 1.0]]))
        False
        """
        plain = self.affine(method if method in ("none", "all-but-the-top") else "centre")
        return bool(np.square(plain.apply(x)).sum() > _NOTHING * np.square(x).sum())

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


def fit_axes(mean: Array, values: Array, axes: Array) -> Corrections:
    """Fit on eigenvalues (d,) of which only the first k have an axis (d, k); the others are equal."""
    k, d = axes.shape[1], len(mean)
    return Corrections(mean, values[:k], axes, max(1, round(d / 100)), float(values[k]) if k < d else 0.0)
