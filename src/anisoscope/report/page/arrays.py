"""The curves, histograms and clouds of runs, thinned to what a page can show.

| picture | from | holds |
|---|---|---|
| `densities` | `null` | the law of one pair's cosine, by dimension |
| `floors` | `calibrate` | histograms of the cosine of unrelated pairs, by correction, and the isotropic one |
| `scores` | `block` | densities of the attention scores at each drift norm, averaged over draws |
| `planes` | series | paths of Q̄ and K̄ in the plane of a head, and sampled points |
| `eigenvalues` | sums of `measure` and `vectors`, matrices of `vocabulary` | at ranks spaced evenly in the logarithm |

Each picture names its run. Points are dropped first, then eigenvalues, where there would be too much to mail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.runs.store import Run

Array = NDArray[Any]
RANKS = 48  # eigenvalues drawn of a spectrum
WIDEST = 1024  # dimensions: a wider covariance takes seconds to decompose
MOST_SPECTRA = 120
MOST_POINTS = 150_000  # coordinates of sampled queries and keys on the whole page


def pictures(runs: Sequence[Run]) -> dict[str, list[dict[str, Any]]]:
    """Every picture of every run, by kind."""
    found: dict[str, list[dict[str, Any]]] = {"densities": [], "floors": [], "scores": [], "planes": []}
    spectra: list[dict[str, Any]] = []
    for number, run in enumerate(runs):
        arrays = run.arrays()
        found["densities"] += [{"run": number, **one} for one in _densities(arrays)]
        found["floors"] += [{"run": number, **one} for one in _floors(arrays)]
        found["scores"] += [{"run": number, **one} for one in _scores(arrays)]
        found["planes"] += [{"run": number, **one} for one in _planes(arrays)]
        for one in (*_kept_eigenvalues(arrays), *_eigenvalues_of_sums(run, MOST_SPECTRA - len(spectra))):
            spectra.append({"run": number, **one})
    _drop_points(found["planes"])
    return found | {"eigenvalues": spectra[:MOST_SPECTRA]}


def _densities(arrays: Mapping[str, Array]) -> Iterator[dict[str, Any]]:
    for name in arrays:
        if name.startswith("density."):
            x, y = arrays["cosine"], arrays[name]
            shown = np.flatnonzero(y > y.max() / 1000)
            shown = shown[:: max(1, len(shown) // 200)]
            yield {"dimension": int(name.removeprefix("density.")), "x": _list(x[shown]), "y": _list(y[shown])}


def _floors(arrays: Mapping[str, Array]) -> Iterator[dict[str, Any]]:
    curves = {n.removeprefix("histogram."): a for n, a in arrays.items() if n.startswith("histogram.")}
    if not curves:
        return
    curves["isotropic"] = arrays["null"]
    used = np.flatnonzero(np.max([curve > curve.max() / 1000 for curve in curves.values()], axis=0))
    span = slice(max(used[0] - 1, 0), used[-1] + 2)
    middle = (arrays["edges"][1:] + arrays["edges"][:-1]) / 2
    order = [n for n in ("raw", "centred", "without_top", "whitened", "isotropic") if n in curves]
    yield {"x": _list(middle[span]), "curves": {name: _list(curves[name][span]) for name in order}}


def _scores(arrays: Mapping[str, Array]) -> Iterator[dict[str, Any]]:
    for name, counts in arrays.items():
        if not name.endswith("/scores_counts"):
            continue
        label = name.removesuffix("/scores_counts")
        edges = arrays[f"{label}/scores_edges"]  # (draws, norms, bins + 1)
        yield {
            "model": label,
            "norms": _list(arrays[f"{label}/norms"]),
            "curves": [_average_density(counts[:, k], edges[:, k]) for k in range(counts.shape[1])],
        }


def _average_density(counts: Array, edges: Array, bins: int = 80) -> dict[str, Any]:
    """Histograms (draws, bins) with their own edges as one density on a common grid."""
    common = np.linspace(edges.min(), edges.max(), bins + 1)
    cumulated = [
        np.interp(common, edge, np.concatenate([[0.0], np.cumsum(count)]) / max(count.sum(), 1))
        for count, edge in zip(counts.astype(float), edges, strict=True)
    ]
    density = np.diff(np.mean(cumulated, axis=0)) / max(common[1] - common[0], np.finfo(float).tiny)
    return {"x": _list((common[1:] + common[:-1]) / 2), "y": _list(density)}


def _planes(arrays: Mapping[str, Array]) -> Iterator[dict[str, Any]]:
    for name, steps in arrays.items():
        if not name.endswith("/steps"):
            continue
        series = name.removesuffix("/steps")
        for key in sorted(arrays):
            if not (key.startswith(f"{series}/") and key.endswith("/union/query")):
                continue
            base = key.removesuffix("/query")
            site = base.removeprefix(f"{series}/").removesuffix("/union")
            plane = {"series": series, "site": site, "steps": [int(step) for step in steps]}
            plane["share"] = _list(arrays[f"{base}/share"][:, :2])
            for side in ("query", "key"):
                plane[side] = _list(arrays[f"{base}/{side}"][:, :, 0])  # (steps, heads, 2)
                plane[f"{side}_points"] = arrays.get(f"{base}/{side}_points")  # (steps, heads, m, 2)
            yield plane


def _drop_points(planes: Sequence[dict[str, Any]]) -> None:
    """Thin the sampled clouds of all planes alike until they fit."""
    sides = ("query_points", "key_points")
    total = sum(plane[side].size for plane in planes for side in sides if plane[side] is not None)
    part = min(1.0, MOST_POINTS / total) if total else 0.0
    for plane in planes:
        for side in sides:
            points = plane[side]
            kept = 0 if points is None else round(points.shape[2] * part)
            plane[side] = _list(points[:, :, :kept], digits=3) if points is not None and kept >= 4 else None


def _kept_eigenvalues(arrays: Mapping[str, Array]) -> Iterator[dict[str, Any]]:
    """Of the study of vocabularies: `step/site/eigenvalues[.centred]`."""
    for name, values in arrays.items():
        step, _, rest = name.partition("/")
        site, _, kind = rest.rpartition("/")
        if kind in ("eigenvalues", "eigenvalues.centred"):
            centred = ".centred" if kind.endswith("centred") else ""
            yield {"model": None, "site": f"{site}{centred}", "step": int(step), **_spectrum(values)}


def _eigenvalues_of_sums(run: Run, most: int) -> Iterator[dict[str, Any]]:
    """Covariance spectra over all positions, from the sums that a run kept."""
    path = run.folder / "moments.safetensors"
    if not path.exists() or most <= 0:
        return
    from safetensors import safe_open

    from anisoscope.geometry import spectrum

    with safe_open(path, "numpy") as file:
        names = [name for name in file.keys() if name.endswith("rest.second")]  # noqa: SIM118 (no dict)
        order = {row.site: k for k, row in enumerate(reversed(run.rows(metric="mean_cosine")))}
        places = [(*_owner(name), name.removesuffix("rest.second")) for name in names]
        for model, site, prefix in sorted(places, key=lambda place: -order.get(place[1], -1))[:most]:
            parts = [part for part in ("rest", "first") if f"{prefix}{part}.second" in file.keys()]  # noqa: SIM118
            if file.get_slice(f"{prefix}rest.second").get_shape()[0] > WIDEST:
                continue
            second = sum(file.get_tensor(f"{prefix}{part}.second") for part in parts)
            total = sum(file.get_tensor(f"{prefix}{part}.x").sum(0) for part in parts)
            n = int(sum(file.get_tensor(f"{prefix}{part}.n").sum() for part in parts))
            values = spectrum.eigenvalues(spectrum.covariance(second, total, n))
            yield {"model": model, "site": site or "vectors", "step": None, **_spectrum(np.sort(values)[::-1])}


def _owner(name: str) -> tuple[str | None, str]:
    """Model (where a run has several) and site of `model|site|rest.second`."""
    *before, site, _ = ["", *name.split("|")]
    return (before[-1] if len(before) > 1 else None), site if len(name.split("|")) > 1 else ""


def _spectrum(values: Array) -> dict[str, Any]:
    """The eigenvalues, as shares of their sum, at ranks spaced evenly in the logarithm; the largest first."""
    ranks = np.unique(np.geomspace(1, len(values), RANKS).round().astype(int))
    shares = values / max(float(values.sum()), np.finfo(float).tiny)
    return {"ranks": [int(rank) for rank in ranks], "shares": _list(shares[ranks - 1]), "dimension": len(values)}


def _list(array: Array, digits: int = 4) -> Any:
    """Nested lists of rounded numbers; what is not finite is missing."""
    if array.ndim > 1:
        return [_list(part, digits) for part in array]
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in array.tolist()]
