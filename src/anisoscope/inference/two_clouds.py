"""Estimates of two clouds: apart or together, and how alike where their rows are partners.

Gap and cosines are exact, from sums; their intervals leave out jackknife groups of both clouds, together where the
groups are of the same sequences, else of each cloud in turn. Linear CKA and Procrustes distance are of exact
covariances where sums hold the cross moment, else of a sample; their intervals are to first order from the sample, as
those of a spectrum are (`spectra`): with C the cross covariance and UΣVᵀ its decomposition, d‖C‖² = 2⟨C, dC⟩ and
d‖C‖₁ = ⟨UVᵀ, dC⟩, both averages over rows. Neighbours are of a sample of at most 2,048 rows, by cosine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.accumulate.keys import Keys, group_of
from anisoscope.accumulate.sums import Sample, Sums
from anisoscope.geometry import two_clouds
from anisoscope.geometry.rows import unit_rows
from anisoscope.geometry.spectrum import covariance
from anisoscope.inference.estimates import Estimate
from anisoscope.inference.jackknife import jackknife_mean, jackknife_of, standard_error, t_quantile, without_each
from anisoscope.inference.metrics import METRICS
from anisoscope.inference.spectra import changes_without_each, reservoir_shrink, shrunk_jackknife

Array = NDArray[np.float64]
NEIGHBOURS = 10
AXES = (1, 10, 100)
_ROWS = 2048  # of which neighbours are looked for
_NAMES = {"gap": "x", "gap_unit": "unit", "cosine_between": "unit"}  # and the sums that each reads


@dataclass(frozen=True)
class Partners:
    """Two clouds whose rows are partners.

    - `first`, `second`: a sample of rows (m, d) and (m, k), their sequences in `keys`;
    - `blocks`: the covariances of the first, of the second, and the cross covariance; `n`: of so many rows;
    - `cosines`: sums of the cosines of partners by jackknife group, and counts, where they were kept.
    """

    first: Array
    second: Array
    keys: Keys
    means: tuple[Array, Array]
    blocks: tuple[Array, Array, Array]
    n: int
    shrink: float = 1.0
    cosines: tuple[Array, Array] | None = None
    note: str = ""


def partners_of_rows(first: Any, second: Any, keys: Keys) -> Partners:
    """Partners of which there is nothing but a sample."""
    x, y = np.asarray(first, float), np.asarray(second, float)
    means = x.mean(0), y.mean(0)
    a, b = x - means[0], y - means[1]
    blocks = tuple(left.T @ right / max(len(x) - 1, 1) for left, right in ((a, a), (b, b), (a, b)))
    return Partners(x, y, keys, means, blocks, len(x), note=f"of a sample of {len(x)} rows")


def partners_of_sums(sums: Sums, sample: Sample, d: int, cosines: Array) -> Partners:
    """Partners from the moments of the joined vectors (x, y), x in R^d; see `accumulate.aligned`."""
    found = partners_of_rows(sample.x[:, :d], sample.x[:, d:], sample.keys)
    known = (cosines, sums.group_n)
    if sums.second is None:
        return Partners(**{**vars(found), "cosines": known})
    joint, mean = covariance(sums.second, sums.sum_x, sums.n), sums.sum_x / sums.n
    blocks = joint[:d, :d], joint[d:, d:], joint[:d, d:]
    shrink = reservoir_shrink(sums, len(sample))
    return Partners(found.first, found.second, found.keys, (mean[:d], mean[d:]), blocks, sums.n, shrink, known)


def apart_estimates(first: Sums, second: Sums, *, partners: tuple[Array, Array] | None = None) -> list[Estimate]:
    """Gap and cosine between two clouds of one dimension.

    `partners` holds sums of the cosines of partners by group, and how many there are: then both clouds have the same
    sequences in the same groups.
    """
    if first.d != second.d:
        return []
    of: dict[str, Callable[..., Any]] = {"gap": two_clouds.gap, "gap_unit": two_clouds.gap}
    of["cosine_between"] = two_clouds.cosine_between
    found = []
    for name, reads in _NAMES.items():
        groups = [getattr(first, f"group_{reads}"), first.group_n, getattr(second, f"group_{reads}"), second.group_n]
        if partners is None:
            ends = _two_samples(of[name], groups)
        else:
            more = partners if name == "cosine_between" else ()
            ends = jackknife_of(of[name], *groups, *more, sizes=first.group_n)
        expected = _same_cloud(first, second) if name == "gap" and partners is None else None
        found.append(Estimate(name, *ends, null=0.0 if name == "cosine_between" else expected, n=first.n + second.n))
    return found


def _two_samples(of: Callable[..., Any], groups: list[Array]) -> tuple[float | None, float | None, float | None]:
    """Value and interval of two independent clouds: the squares of their standard errors add."""
    totals = [one.sum(0) for one in groups]
    value = of(*totals)
    if value is None:
        return None, None, None
    left = [
        of(*map(without_each, groups[:2]), *(np.broadcast_to(t, (len(groups[0]), *np.shape(t))) for t in totals[2:])),
        of(*(np.broadcast_to(t, (len(groups[2]), *np.shape(t))) for t in totals[:2]), *map(without_each, groups[2:])),
    ]
    sizes = groups[1], groups[3]
    errors = [standard_error(np.where(n > 0, one, value), value, n) for one, n in zip(left, sizes, strict=True)]
    variances = [float(error) ** 2 for error in errors if error is not None]
    if len(variances) < 2 or not np.isfinite(variances).all():
        return value, None, None
    reach = t_quantile(min(int(np.count_nonzero(n)) for n in sizes) - 1) * sum(variances) ** 0.5
    return value, value - reach, value + reach


def _same_cloud(first: Sums, second: Sums) -> float | None:
    """The gap that two samples of one cloud would have: √(tr A/n + tr B/m)."""
    spread = 0.0
    for sums in (first, second):
        if not sums.squares or sums.n < 2:
            return None
        spread += max(sums.sum_norm2 / sums.n - float(np.square(sums.sum_x / sums.n).sum()), 0.0) / (sums.n - 1)
    return spread**0.5


def axes_estimates(first: Sums, second: Sums) -> list[Estimate]:
    """How many of their top principal axes two clouds share; `at` is k."""
    if first.d != second.d or first.second is None or second.second is None or min(first.n, second.n) < 2:
        return []
    a, b = (np.linalg.eigh(covariance(s.second, s.sum_x, s.n))[1][:, ::-1] for s in (first, second))  # pyright: ignore
    n = min(first.n, second.n)
    return [
        Estimate("axes_overlap", two_clouds.axes_overlap(a, b, k), null=k / first.d, n=n, at=float(k))
        for k in AXES
        if k <= first.d // 2
    ]


def partner_estimates(found: Partners) -> list[Estimate]:
    """Cosine of partners, linear CKA, Procrustes distance, and the share of neighbours that both clouds have."""
    return [*_cosine(found), *_shapes(found), *_neighbours(found)]


def _cosine(found: Partners) -> list[Estimate]:
    if found.first.shape[1] != found.second.shape[1]:
        return []
    if found.cosines is not None:
        total, n = found.cosines
        ends = jackknife_of(lambda s, m: s / m, total, n, sizes=n)
        return [Estimate("partner_cosine", *ends, n=int(n.sum()))]
    cosines = (unit_rows(found.first) * unit_rows(found.second)).sum(1)
    return [Estimate("partner_cosine", *jackknife_mean(cosines, group_of(found.keys)), n=found.n, note=found.note)]


def _shapes(found: Partners) -> list[Estimate]:
    """CKA and Procrustes distance; every leave-one-out value is the full one and its first-order change."""
    x, y = found.first - found.means[0], found.second - found.means[1]
    a, b, cross = found.blocks
    u, values, vt = np.linalg.svd(cross, full_matrices=False)
    squares = np.array([np.square(one).sum() for one in (cross, a, b)])
    sizes = np.array([values.sum(), np.trace(a), np.trace(b)])
    of_squares = [np.einsum("ij,ij->i", x @ cross, y), np.einsum("ij,ij->i", x @ a, x), np.einsum("ij,ij->i", y @ b, y)]
    of_sizes = [np.einsum("ij,ij->i", x @ u, y @ vt.T), np.square(x).sum(1), np.square(y).sum(1)]
    changes, counts = changes_without_each(np.stack([*of_squares, *of_sizes], 1), found.keys)  # (g, 6)
    left_squares, left_sizes = (squares + 2 * changes[:, :3]).T, (sizes + changes[:, 3:]).T
    expected = two_clouds.unrelated_cka(a, b, found.n)
    parts = (
        ("linear_cka", two_clouds.linear_cka, squares, left_squares, expected),
        ("procrustes_distance", two_clouds.procrustes_distance, sizes, left_sizes, None),
    )
    estimates = []
    for name, of, full, left, null in parts:
        value = of(*full)
        value = None if value is None else float(np.clip(value, 0.0, METRICS[name].high))  # beyond, it is rounding
        ends = (None, None) if value is None else shrunk_jackknife(of(*left), value, counts, found.shrink)
        estimates.append(Estimate(name, value, *ends, null=null, n=found.n, note=found.note))
    return estimates


def _neighbours(found: Partners) -> list[Estimate]:
    m = min(len(found.first), _ROWS)
    if m <= NEIGHBOURS:
        return []
    near = [two_clouds.nearest_by_cosine(unit_rows(rows[:m]), NEIGHBOURS) for rows in (found.first, found.second)]
    ends = jackknife_mean(two_clouds.shared_neighbours(*near), group_of(found.keys[:m]))
    return [
        Estimate("neighbour_overlap", *ends, null=NEIGHBOURS / (m - 1), n=m, note=f"of the ten nearest of {m} rows")
    ]
