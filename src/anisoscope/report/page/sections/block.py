"""Densities of the attention scores of an untrained block at each drift norm, averaged over draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.report.page.rounding import rounded_list
from anisoscope.runs.array_names import find, name_of
from anisoscope.runs.store import Run

Array = NDArray[Any]
BINS = 80


def pictures(run: Run, arrays: Mapping[str, Array]) -> Iterator[dict[str, Any]]:
    for parts, counts in find(arrays, "scores_counts"):
        edges = arrays[name_of("scores_edges", **parts)]  # (draws, norms, bins + 1)
        yield {
            "model": parts["block"],
            "norms": rounded_list(arrays[name_of("norms", **parts)]),
            "curves": [average_density(counts[:, k], edges[:, k]) for k in range(counts.shape[1])],
        }


def average_density(counts: Array, edges: Array) -> dict[str, Any]:
    """Histograms (draws, bins) with their own edges as one density on a common grid."""
    common = np.linspace(edges.min(), edges.max(), BINS + 1)
    cumulated = [
        np.interp(common, edge, np.concatenate([[0.0], np.cumsum(count)]) / max(count.sum(), 1))
        for count, edge in zip(counts.astype(float), edges, strict=True)
    ]
    density = np.diff(np.mean(cumulated, axis=0)) / max(common[1] - common[0], np.finfo(float).tiny)
    return {"x": rounded_list((common[1:] + common[:-1]) / 2), "y": rounded_list(density)}
