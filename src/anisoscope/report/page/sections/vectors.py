"""Histograms of the cosines of sampled pairs, by cloud, and the isotropic one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from anisoscope.report.page.sections.calibrate import histograms
from anisoscope.runs.store import Run


def pictures(run: Run, arrays: Mapping[str, NDArray[Any]]) -> Iterator[dict[str, Any]]:
    if run.command == "vectors":
        yield from histograms(arrays)


def once(pictures: Sequence[dict[str, Any]], runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Without the clouds whose pairs stand among the thresholds already: those of one file, none of them related."""
    drawn = {_cloud(run) for run in runs if run.command == "calibrate"} - {None}
    return [picture for picture in pictures if _cloud(runs[picture["run"]]) not in drawn]


def _cloud(run: Run) -> str | None:
    """The contents of the file that was measured; None where pairs were told apart or two clouds compared."""
    settings, data = run.manifest["settings"], run.manifest["data"]
    apart = any(settings.get(name) for name in ("group", "groups", "against", "queries"))
    return None if apart else data.get("fingerprint")
