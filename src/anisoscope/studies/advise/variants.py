"""What vectors can be stored as: a correction, a width, a code. Each is one map of rows and one of queries.

| correction | before the code | fewer dimensions |
|---|---|---|
| `raw` | x/‖x‖ | the leading ones, as Matryoshka models have them |
| `centred` | (x − μ)/‖x − μ‖ | the principal ones |
| `whitened` | (x − μ)·V·(λ + ε)^(−1/2), to unit norm | the principal ones |

Vectors are cut, then brought to unit norm, then coded. Scores are cosines of what is read back from the codes; a query
is coded only where all are signs (`binary`: both sides, which orders rows as the Hamming distance does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anisoscope.errors import UsageError
from anisoscope.geometry.codes import CODES, Grid, dimension_grid
from anisoscope.geometry.corrections import NAMES, Affine, Corrections

CORRECTIONS = ("raw", "centred", "whitened")
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Variant:
    """One way to store vectors. `grid` holds the ranges of a code of 8 or 4 bits."""

    correction: str
    dims: int
    code: str
    map: Affine | None  # None: the leading dimensions of the vector as it is
    grid: Grid | None = None

    @property
    def site(self) -> str:
        return f"{self.correction}.{self.code}"

    @property
    def bytes(self) -> float:
        """Bytes of one vector."""
        return self.dims * CODES[self.code] / 8

    def coded(self, y: Floats) -> Floats:
        """Mapped rows as they are read back from their codes, all of one norm. Signs are whole: ties are exact."""
        if self.grid is not None:
            return unit(self.grid.round(y))
        return np.where(y > 0, np.float32(1), np.float32(-1)) if self.code == "binary" else y

    def asked(self, y: Floats) -> Floats:
        """Mapped queries as they meet the rows."""
        return self.coded(y) if self.code == "binary" else y


def mapped(x: NDArray[np.floating], variant: Variant) -> Floats:
    """Rows (m, d) corrected and cut, with unit norm; in single precision once the mean is gone."""
    if variant.map is None:
        return unit(x[:, : variant.dims].astype(np.float32))
    centred = (x - variant.map.mean).astype(np.float32)
    matrix = variant.map.matrix.astype(np.float32)
    return unit(centred * matrix if matrix.ndim == 1 else centred @ matrix)


def unit(y: Floats) -> Floats:
    """Rows of norm 1; a row that the map made zero stays zero."""
    norms = np.sqrt(np.einsum("ij,ij->i", y, y))[:, None]
    return (y / np.where(norms > 0, norms, 1)).astype(np.float32, copy=False)


def variants(fitted: Corrections, sample: NDArray[np.floating], dims: Sequence[int]) -> list[list[Variant]]:
    """Every variant, those that share a map together; ranges of codes come from the sample. The first is float32."""
    return [
        _coded(correction, kept, None if correction == "raw" else fitted.affine(NAMES[correction], dims=kept), sample)
        for correction in CORRECTIONS
        for kept in dims
    ]


def _coded(correction: str, dims: int, affine: Affine | None, sample: NDArray[np.floating]) -> list[Variant]:
    plain = Variant(correction, dims, "float32", affine)
    rows = mapped(sample, plain)
    grids = {code: dimension_grid(rows, CODES[code]) for code in ("int8", "int4")}
    return [Variant(correction, dims, code, affine, grids.get(code)) for code in CODES]


def kept_dims(shares: Sequence[float], d: int) -> list[int]:
    """The numbers of dimensions that shares of d are, falling, the whole first; shares of less than two give none.

    >>> kept_dims([1, 0.75, 0.5, 0.25, 0.125], 384), kept_dims([0.5], 5), kept_dims([128, 0.5], 256)
    ([384, 288, 192, 96, 48], [5, 2], [256, 128])
    """
    for share in shares:
        if share > 1 and (share > d or share % 1):
            raise UsageError("that many dimensions cannot be kept", got=f"{share:g}", expected=f"a share, or 2 to {d}")
    found = {d, *(round(share * d) if share <= 1 else int(share) for share in shares)}
    return sorted((dims for dims in found if 2 <= dims <= d), reverse=True)
