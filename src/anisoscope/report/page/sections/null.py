"""The law of the cosine of two isotropic vectors, by dimension: the part of the curve that can be seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.report.page.rounding import rounded_list
from anisoscope.runs.array_names import find
from anisoscope.runs.store import Run

POINTS = 200


def pictures(run: Run, arrays: Mapping[str, NDArray[Any]]) -> Iterator[dict[str, Any]]:
    for parts, y in find(arrays, "density"):
        shown = np.flatnonzero(y > y.max() / 1000)
        shown = shown[:: max(1, len(shown) // POINTS)]
        x = arrays["cosine"][shown]
        yield {"dimension": int(parts["dimension"]), "x": rounded_list(x), "y": rounded_list(y[shown])}
