"""What the metrics read: the sums of one cloud as numpy arrays, by jackknife group and in all.

`Sums` is the boundary between `accumulate`, which fills tensors, and `geometry`, which is pure numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.sketch import Sketched, projection, read_sketch
from anisoscope.geometry.rows import in_span
from anisoscope.geometry.spectrum import ROUNDING

Array = NDArray[np.float64]
_COUNTS = ("zero", "nonfinite")  # of vectors that n does not count
LONG = ("x", "unit", "unit2", "second", "sketch", "square")  # sums of d numbers and more
_WIDE = 4  # with so many dimensions per vector, a sample is looked at within its span
Keys = NDArray[np.uint64]
SQUARES = (1e-280, 1e280)
"""Mean squared norms between which sums of squares are right; beyond, they lose digits, vanish or overflow."""
FOURTHS = (1e-130, 1e130)
"""The same for sums of fourth powers."""


@dataclass(frozen=True)
class Sums:
    """The sums of a cloud; leading axis g = jackknife group where there is one."""

    group_n: Array  # (g,)
    group_x: Array  # (g, d)
    group_unit: Array  # (g, d)
    group_norm: Array  # (g,)
    group_norm2: Array  # (g,)
    group_fourth: Array  # (g,) d·ΣΣ_k x_k⁴; NaN in runs of earlier versions
    group_energy: Array  # (g,) Σ_s ‖Σ_{i∈s} u_i‖²
    group_pairs: Array  # (g,) Σ_s n_s²
    group_sequences: Array  # (g,) how many sequences
    sum_unit2: Array  # (d,) Σ u∘u
    second: Array | None  # (d, d) Σ xxᵀ, where it was kept
    zero: int
    nonfinite: int
    sketch: Array | None = None  # (d, k) Σ x(xᵀΩ), where d is too large for `second`
    diagonal: Array | None = None  # (d,) Σ x∘x, beside the sketch
    seed: int = 0  # of Ω
    single: bool = False  # whether products of float32 are in `second`: its rounding is theirs
    squares: bool = True  # False where float64 cannot hold the squares: `group_norm2` is NaN, `second` missing
    fourths: bool = True  # False where it cannot hold fourth powers: `group_fourth` is NaN

    @property
    def d(self) -> int:
        return self.group_x.shape[1]

    @cached_property
    def n(self) -> int:
        return int(self.group_n.sum())

    @cached_property
    def sequences(self) -> int:
        return round(float(self.group_sequences.sum()))

    @cached_property
    def sum_x(self) -> Array:
        return self.group_x.sum(0)

    @cached_property
    def sum_unit(self) -> Array:
        return self.group_unit.sum(0)

    @cached_property
    def sum_norm(self) -> float:
        return float(self.group_norm.sum())

    @cached_property
    def sum_norm2(self) -> float:
        return float(self.group_norm2.sum())

    @cached_property
    def energy(self) -> float:
        return float(self.group_energy.sum())

    @cached_property
    def pairs(self) -> float:
        return float(self.group_pairs.sum())


def sums_of(tensors: Mapping[str, NDArray], positions: str) -> Sums:
    """Read the stored sums for `rest`, `first`, or `all` = rest + first + what joins the two within a sequence."""
    parts = ("rest", "first") if positions == "all" else (positions,)
    counted = [part for part in parts if tensors[f"{part}.n"].any()] or parts[:1]  # others hold zeros, all d of them

    def total(name: str) -> NDArray:
        own = sum(tensors[f"{part}.{name}"] for part in (parts if name in _COUNTS else counted))
        joined = positions == "all" and name in ("energy", "pairs")
        return np.asarray(own + tensors[f"cross.{name}"] if joined else own)

    n, norm2 = total("n").astype(float), total("norm2")
    squares, fourths = (not n.sum() or bool(least < norm2.sum() / n.sum() < most) for least, most in (SQUARES, FOURTHS))
    return Sums(
        group_n=n,
        group_x=total("x"),
        group_unit=total("unit"),
        group_norm=total("norm"),
        group_norm2=norm2 if squares else np.full_like(norm2, np.nan),
        group_fourth=total("fourth") * len(total("unit2"))
        if fourths and "rest.fourth" in tensors
        else np.full_like(norm2, np.nan),
        group_energy=total("energy"),
        group_pairs=total("pairs"),
        group_sequences=tensors["cross.sequences"] if positions == "all" else total("sequences"),
        sum_unit2=total("unit2"),
        second=total("second") if squares and "rest.second" in tensors else None,
        sketch=total("sketch") if squares and "rest.sketch" in tensors else None,
        diagonal=total("square") if squares and "rest.square" in tensors else None,
        seed=int(tensors["meta"][3]) if "meta" in tensors else 0,
        zero=int(total("zero").sum()),
        nonfinite=int(total("nonfinite").sum()),
        single=any(tensors[name].any() if (name := f"{part}.single") in tensors else True for part in parts),
        squares=squares,
        fourths=fourths,
    )


def sketched(sums: Sums, *, centred: bool) -> Sketched:
    """What the sketch says of the covariance, or of Σxxᵀ/n (`centred=False`)."""
    assert sums.sketch is not None
    omega = projection(sums.d, sums.seed)
    product, trace, degrees = sums.sketch, sums.sum_norm2, sums.n
    if centred:
        product = product - np.outer(sums.sum_x, sums.sum_x @ omega) / sums.n
        trace, degrees = trace - float(sums.sum_x @ sums.sum_x) / sums.n, sums.n - 1
    return read_sketch(product / max(degrees, 1), omega, max(trace, 0.0) / max(degrees, 1))


def variances(sums: Sums) -> Array | None:
    """(d,) the variance of every coordinate, exact, 0 where all is rounding; None where no squares were kept."""
    if sums.n < 2 or (sums.second is None and sums.diagonal is None):
        return None
    squares = sums.diagonal if sums.second is None else np.diag(sums.second)
    assert squares is not None
    scatter = np.maximum(squares - np.square(sums.sum_x) / sums.n, 0.0)
    return scatter / (sums.n - 1) if scatter.sum() > ROUNDING * squares.sum() else np.zeros_like(scatter)


@dataclass(frozen=True)
class Sample:
    """The vectors of a reservoir, in order of priority (so a prefix is itself a uniform sample)."""

    x: NDArray[np.float32]  # (m, d)
    keys: Keys  # (m,)
    positions: NDArray[np.int64]  # (m,)
    first: NDArray[np.bool_]  # (m,)

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def span(self) -> Array:
        """Coordinates with the inner products of the vectors: theirs, or fewer where they have far more than needed."""
        m, d = self.x.shape
        return in_span(self.x) if d > _WIDE * m else self.x.astype(float)

    def where(self, kept: NDArray[np.bool_]) -> Sample:
        return Sample(self.x[kept], self.keys[kept], self.positions[kept], self.first[kept])
