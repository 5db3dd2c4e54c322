"""Histograms of the cosines of sampled pairs, by cloud, and the isotropic one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from anisoscope.report.page.sections.calibrate import histograms
from anisoscope.runs.store import Run


def pictures(run: Run, arrays: Mapping[str, NDArray[Any]]) -> Iterator[dict[str, Any]]:
    if run.command == "vectors":
        yield from histograms(arrays)
