"""I(W): how unevenly the partition function of a matrix of vectors looks at its own principal directions.

    Z(c) = Σ_i exp(c·w_i),    I(W) = min_c Z(c) / max_c Z(c),   c over the unit eigenvectors of WᵀW

Range (0, 1]; 1 would be perfect isotropy. What is reported must come with its conventions, for I(W) is

- **sign-dependent**: an eigenvector has no sign. `"one-sided"` takes the d vectors with the signs that LAPACK happened
  to return (all published codes do; another LAPACK gives another number: pass `directions` to reproduce one),
  `"both"` takes ±v, is well defined, and is never larger;
- **scale-dependent**: log I(W) grows with the norms, at least linearly under drift. Compare with `partition_reference`,
  random directions of the same norms, and not with 1;
- **precision-dependent**: exp overflows float32 at 88. Everything here is log-sum-exp in float64 unless
  `dtype="float32"`, which repeats the published numeric path (float32 matrix, eigh, exp and sum).

Cost: O(V·d²) time; memory is W, one block of rows and d×d, whatever V. Sources: Arora et al., TACL 2016 (Z);
Mu & Viswanath, ICLR 2018 (I and its expansions); Biś et al., NAACL 2021, and Machina & Mercer, NAACL 2024 (as coded).

>>> w = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
>>> partition(w).value
1.0
>>> partition(w + [2.0, 0.0]).value < 0.2
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from anisoscope.errors import InputError, UsageError
from anisoscope.geometry.rows import row_blocks

Convention = Literal["one-sided", "both"]
Precision = Literal["float64", "float32"]
Blocks = Callable[[], Iterator[np.ndarray]]
"""A fresh pass over the rows, block by block: the eigenvectors need one, the sums another."""


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """I(W) with all that it depends on. `value` = exp(`log_ratio`), which may be tiny: 1e−174 is on record for GPT-2.

    Both are missing where float32 overflowed.
    """

    value: float | None
    log_ratio: float | None
    convention: Convention
    centred: bool
    dtype: Precision
    rows: int
    directions: int


def partition(
    w: ArrayLike,
    *,
    convention: Convention = "one-sided",
    centred: bool = False,
    directions: ArrayLike | None = None,
    dtype: Precision = "float64",
) -> PartitionResult:
    """I(W) of the rows of w (V, d), any floating dtype; `centred` first subtracts the mean row.

    `directions` (d, k) replaces the eigenvectors of WᵀW by given unit columns, for instance those that another
    library returned.

    >>> shifted = np.random.default_rng(0).normal(size=(500, 8)) + 0.5
    >>> partition(shifted, convention="both").value <= partition(shifted).value
    True
    """
    matrix = _checked(w)
    _check_options(convention, dtype)
    blocks = _rows_of(matrix, centred=centred, dtype=dtype)
    columns = _eigenvectors(blocks, dtype) if directions is None else np.asarray(directions, dtype=dtype)
    if columns.ndim != 2 or columns.shape[0] != matrix.shape[1]:
        raise UsageError(
            "the directions do not fit the matrix", got=f"shape {columns.shape}", expected=f"({matrix.shape[1]}, k)"
        )
    return _evaluate(blocks, columns, rows=len(matrix), convention=convention, centred=centred, dtype=dtype)


def partition_reference(
    w: ArrayLike, seed: int = 0, *, convention: Convention = "one-sided", centred: bool = False
) -> PartitionResult:
    """I of random directions with the norms of w: what isotropy would give at this V, d and these norms.

    The random rows are drawn block by block, twice, from generators seeded by (seed, block), so that no second matrix
    of the size of w is ever held.

    >>> w = np.random.default_rng(0).normal(size=(2000, 8)) + 1.0
    >>> partition_reference(w, 0).value > 2 * partition(w).value
    True
    """
    matrix = _checked(w)
    _check_options(convention, "float64")
    original = _rows_of(matrix, centred=centred, dtype="float64")

    def blocks() -> Iterator[np.ndarray]:
        for index, rows in enumerate(original()):
            noise = np.random.default_rng([seed, index]).standard_normal(rows.shape)
            lengths = np.linalg.norm(rows, axis=1) / np.linalg.norm(noise, axis=1)
            yield noise * lengths[:, None]

    columns = _eigenvectors(blocks, "float64")
    return _evaluate(blocks, columns, rows=len(matrix), convention=convention, centred=centred, dtype="float64")


def _checked(w: ArrayLike) -> np.ndarray:
    matrix = np.asarray(w)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise InputError("I(W) needs a matrix of vectors", got=f"shape {matrix.shape}", expected="shape (V, d)")
    return matrix


def _check_options(convention: str, dtype: str) -> None:
    if convention not in ("one-sided", "both"):
        raise UsageError("unknown convention of I(W)", got=repr(convention), expected="'one-sided' or 'both'")
    if dtype not in ("float64", "float32"):
        raise UsageError("unknown precision of I(W)", got=repr(dtype), expected="'float64' or 'float32'")


def _rows_of(matrix: np.ndarray, *, centred: bool, dtype: Precision) -> Blocks:
    mean = matrix.mean(axis=0, dtype=np.float64).astype(dtype) if centred else None

    def blocks() -> Iterator[np.ndarray]:
        for block in row_blocks(*matrix.shape):
            rows = matrix[block].astype(dtype)
            yield rows if mean is None else rows - mean

    return blocks


def _gram(blocks: Blocks) -> np.ndarray:
    total: np.ndarray | None = None
    for rows in blocks():
        product = rows.T @ rows  # (d, d)
        total = product if total is None else total + product
    if total is None or not np.isfinite(total).all():
        raise InputError("I(W) needs finite numbers", got="inf or NaN in the matrix, or an overflow of its squares")
    return total


def _eigenvectors(blocks: Blocks, dtype: Precision) -> np.ndarray:
    return np.linalg.eigh(_gram(blocks))[1].astype(dtype)


def _evaluate(
    blocks: Blocks, columns: np.ndarray, *, rows: int, convention: Convention, centred: bool, dtype: Precision
) -> PartitionResult:
    signed = columns if convention == "one-sided" else np.concatenate([columns, -columns], axis=1)
    log_z = _log_sums(blocks, signed) if dtype == "float64" else _float32_sums(blocks, signed)
    low, high = float(log_z.min()), float(log_z.max())
    finite = math.isfinite(low) and math.isfinite(high)
    return PartitionResult(
        value=math.exp(low - high) if finite else None,
        log_ratio=low - high if finite else None,
        convention=convention,
        centred=centred,
        dtype=dtype,
        rows=rows,
        directions=columns.shape[1],
    )


def _log_sums(blocks: Blocks, columns: np.ndarray) -> np.ndarray:
    """log Z of every column, by a log-sum-exp that carries its peak from block to block."""
    peak, total = np.full(columns.shape[1], -np.inf), np.zeros(columns.shape[1])
    for rows in blocks():
        scores = rows @ columns  # (rows, k)
        higher = np.maximum(peak, scores.max(axis=0))
        scores -= higher
        total = total * np.exp(peak - higher) + np.exp(scores, out=scores).sum(axis=0)
        peak = higher
    return peak + np.log(total)


def _float32_sums(blocks: Blocks, columns: np.ndarray) -> np.ndarray:
    """log of Σ exp(c) summed in float32 without a shift: infinite where it overflows, as the published codes do."""
    total = np.zeros(columns.shape[1], dtype=np.float32)
    with np.errstate(over="ignore", divide="ignore"):
        for rows in blocks():
            total += np.exp(rows @ columns).sum(axis=0)
        return np.log(total.astype(np.float64))
