"""A spectrum without a d×d matrix: sums of Σ x (xᵀΩ), for a fixed random Ω (d, k), and what follows from them.

Y = AΩ is linear in A = Σ xxᵀ, so it is a sum over vectors like any other: it merges exactly, in any order, and the mean
is taken off afterwards, (A − n·μμᵀ)Ω = Y − Σx·(Σxᵀ Ω)/n. Memory O(d·k), time O(n·d·k).

The eigenvalues come from the Nyström approximation Â = Y(ΩᵀY)⁻¹Yᵀ of the first 512 columns (Tropp, Yurtsever, Udell &
Cevher 2017). Â ≼ A, so every eigenvalue found is too small, and E = A − Â has two bounds that cost nothing:

    λ̂_i ≤ λ_i ≤ λ̂_i + ‖E‖,   ‖E‖ ≤ tr A − tr Â  (exact, since tr A = Σ‖x‖² is kept), and
    ‖E‖ ≤ 2·√(2/π)·max_j ‖Eψ_j‖ with probability 1 − 2⁻³²  (Halko, Martinsson & Tropp 2011, lemma 4.1),

where ψ_j are the last 32 columns, which Â has not seen. They also give ‖A‖_F² without bias. What is
missing from the eigenvalues is then described by two numbers, so that trace and Frobenius norm are right (`spectrum`).

Ω is made from the raw bits of a counter-based generator, so that every machine makes the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
AXES, TESTS = 512, 32
COLUMNS = AXES + TESTS


@lru_cache(maxsize=2)
def projection(d: int, seed: int) -> Array:
    """Ω (d, 544): independent standard normal numbers, by Box and Muller from the bits of Philox."""
    count = d * COLUMNS
    bits = np.random.Philox(key=seed).random_raw(2 * ((count + 1) // 2))
    uniform = (bits >> np.uint64(11)).astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(uniform[::2])), 2 * np.pi * uniform[1::2]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count].reshape(d, COLUMNS)
    normal.flags.writeable = False
    return normal


@dataclass(frozen=True)
class Sketched:
    """What a sketch says of a positive matrix A (d, d)."""

    values: Array  # (k,) eigenvalues, descending, none above that of A
    axes: Array  # (d, k)
    trace: float  # of A, exact
    error: float  # ‖A − Â‖ is at most this, so that no eigenvalue of A lies further above the one found
    square: float  # ‖A‖_F², estimated without bias

    @property
    def rest(self) -> float:
        """The trace of what lies beyond the axes, exact."""
        return max(self.trace - float(self.values.sum()), 0.0)

    def spectrum(self) -> Array:
        """(d,) eigenvalues of which trace and square are those of A: those found, lifted alike, then equal ones.

        What the sketch misses of its own axes is nearly the same for all of them, so with k axes and m = d − k beyond,
        the lift c and the level t solve k·c + m·t = tr A − Σλ̂ and Σ(λ̂ + c)² + m·t² = ‖A‖_F². The lift is at most
        `error`. The equal ones may be larger than the last that were found: sort them where the order matters.
        """
        d, k = self.axes.shape
        room, left, found = d - k, self.rest, float(self.values.sum())
        if left <= 1e-12 * self.trace or not room:
            return np.pad(self.values, (0, room))
        short = float(np.square(self.values).sum()) + left * left / room - self.square
        second, first = k + k * k / room, found - k * left / room
        root = (-first + np.sqrt(max(first * first - second * short, 0.0))) / second
        lift = float(np.clip(root, 0.0, min(self.error, left / k))) if short < 0 else 0.0
        return np.concatenate([self.values + lift, np.full(room, (left - k * lift) / room)])


def read_sketch(product: Array, omega: Array, trace: float) -> Sketched:
    """From AΩ (d, 544) and tr A to eigenvalues and axes; a shift, taken off again, keeps singular A stable."""
    y, tests = product[:, :AXES], product[:, AXES:]
    basis = omega[:, :AXES]
    shift = 2.0**-24 * float(np.linalg.norm(y)) / np.sqrt(AXES)  # of ‖A‖_F: what products in float32 may lose
    if shift == 0.0:
        return Sketched(np.zeros(AXES), np.eye(len(y), AXES), trace, max(trace, 0.0), 0.0)
    shifted = y + shift * basis
    inner = basis.T @ shifted
    values, vectors = np.linalg.eigh((inner + inner.T) / 2)
    kept = values > values[-1] * np.finfo(float).eps * AXES
    half = shifted @ (vectors[:, kept] / np.sqrt(values[kept]))  # half·halfᵀ = Â
    axes, singular, _ = np.linalg.svd(half, full_matrices=False)
    found = np.maximum(np.square(singular) - shift, 0.0)
    unseen = omega[:, AXES:]
    known = axes @ (found[:, None] * (axes.T @ unseen))  # Âψ
    error = tests - known  # Eψ
    norms = np.linalg.norm(error, axis=0)
    bound = 2 * np.sqrt(2 / np.pi) * float(norms.max())
    square = float(np.square(found).sum() + 2 * (known * error).sum(0).mean() + np.square(norms).mean())
    rest = max(trace - float(found.sum()), 0.0)
    return Sketched(found, axes, trace, min(rest, bound), max(square, float(np.square(found).sum())))
