"""Eigenvalues, as shares of their sum, at ranks spaced evenly in the logarithm, the largest first.

They come from the matrices of `vocabulary`, which keeps them, and from the sums of `measure` and `vectors`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.report.page.rounding import rounded_list
from anisoscope.runs.array_names import find
from anisoscope.runs.store import Run

Array = NDArray[Any]
RANKS = 48  # eigenvalues drawn of a spectrum
WIDEST = 1024  # dimensions: a wider covariance takes seconds to decompose
MOST = 120  # spectra on the whole page


def pictures(run: Run, arrays: Mapping[str, Array]) -> Iterator[dict[str, Any]]:
    for kind, suffix in (("eigenvalues", ""), ("eigenvalues_centred", ".centred")):
        for parts, values in find(arrays, kind):
            yield {"model": None, "site": parts["site"] + suffix, "step": int(parts["step"]), **shares(values)}
    yield from _of_sums(run)


def thin(spectra: list[dict[str, Any]]) -> None:
    del spectra[MOST:]


def shares(values: Array) -> dict[str, Any]:
    ranks = np.unique(np.geomspace(1, len(values), RANKS).round().astype(int))
    part = values / max(float(values.sum()), np.finfo(float).tiny)
    return {"ranks": [int(rank) for rank in ranks], "shares": rounded_list(part[ranks - 1]), "dimension": len(values)}


def _of_sums(run: Run) -> Iterator[dict[str, Any]]:
    """Covariance spectra over all positions, from the sums that a run kept, in the order of the sites."""
    order = {row.site: k for k, row in enumerate(reversed(run.rows(metric="mean_cosine")))}
    with run.sums_file() as file:
        if file is None:
            return
        names = set(file.keys())
        places = [(*_owner(name), name.removesuffix("rest.second")) for name in names if name.endswith("rest.second")]
        for model, site, prefix in sorted(places, key=lambda place: (-order.get(place[1], -1), place[2]))[:MOST]:
            if file.get_slice(f"{prefix}rest.second").get_shape()[0] <= WIDEST:
                values = _eigenvalues(file, [p for p in ("rest", "first") if f"{prefix}{p}.second" in names], prefix)
                yield {"model": model, "site": site or "vectors", "step": None, **shares(values)}


def _eigenvalues(file: Any, parts: list[str], prefix: str) -> Array:
    from anisoscope.geometry import spectrum

    second = sum(file.get_tensor(f"{prefix}{part}.second") for part in parts)
    total = sum(file.get_tensor(f"{prefix}{part}.x").sum(0) for part in parts)
    n = int(sum(file.get_tensor(f"{prefix}{part}.n").sum() for part in parts))
    values = np.sort(spectrum.eigenvalues(spectrum.covariance(second, total, n)))[::-1]
    return np.where(np.arange(1, len(values) + 1) < n, values, 0.0)  # n vectors span n - 1 directions about their mean


def _owner(name: str) -> tuple[str | None, str]:
    """Model and site of `model|observer|site|rest.second`; before format 2 of `model|site|rest.second` or less."""
    *before, site, _ = ["", "", *name.split("|")]
    observed = len(before) > 3
    return before[-2 if observed else -1] or None, site
