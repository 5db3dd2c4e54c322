"""Histograms of the cosine of unrelated pairs, by correction or cloud, and the isotropic one, on one axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.report.page.rounding import rounded_list
from anisoscope.runs.array_names import ARRAYS, find
from anisoscope.runs.store import Run

ORDER = ("raw", "centred", "without_top", "whitened")


def pictures(run: Run, arrays: Mapping[str, NDArray[Any]]) -> Iterator[dict[str, Any]]:
    if run.command != "vectors":
        yield from histograms(arrays)


def histograms(arrays: Mapping[str, NDArray[Any]]) -> Iterator[dict[str, Any]]:
    """The histograms of a run, cut to where any of them is above zero."""
    curves = {parts["correction"]: array for parts, array in find(arrays, "histogram")}
    if not curves:
        return
    order = [*(n for n in ORDER if n in curves), *(n for n in curves if n not in ORDER), "isotropic"]
    curves["isotropic"] = arrays[ARRAYS["isotropic"]]
    used = np.flatnonzero(np.max([curve > curve.max() / 1000 for curve in curves.values()], axis=0))
    span = slice(max(used[0] - 1, 0), used[-1] + 2)
    edges = arrays[ARRAYS["edges"]]
    middle = (edges[1:] + edges[:-1]) / 2
    yield {"x": rounded_list(middle[span]), "curves": {name: rounded_list(curves[name][span]) for name in order}}
