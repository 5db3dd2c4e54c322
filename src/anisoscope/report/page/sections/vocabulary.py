"""Rows of the vocabulary matrices on their first two singular directions, thinned evenly, with their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from anisoscope.report.page.rounding import rounded_list
from anisoscope.runs.array_names import find, name_of, texts_of
from anisoscope.runs.store import Run

MOST = 20_000  # points on the whole page
EACH = 1500


def pictures(run: Run, arrays: Mapping[str, NDArray[Any]]) -> Iterator[dict[str, Any]]:
    rows = run.rows(metric="partition_one_sided")
    models = list(dict.fromkeys(row.model for row in rows if row.step is None))
    for parts, points in find(arrays, "points"):
        told = texts_of(arrays, name_of("points", **parts))
        texts = None if told is None else [told[0][k] if k >= 0 else None for k in told[1].tolist()]
        at = int(parts["step"])
        of = f" of {models[at]}" if models else f", step {at:,}"
        yield {"site": parts["site"], "of": of, "points": points, "texts": texts}


def thin(clouds: Sequence[dict[str, Any]]) -> None:
    """The first and every so many-th row of each matrix."""
    most = min(EACH, MOST // max(len(clouds), 1))
    for cloud in clouds:
        every = -(-len(cloud["points"]) // max(most, 1))
        cloud["rows"] = len(cloud["points"])
        cloud["points"] = rounded_list(cloud["points"][::every], digits=3)
        cloud["texts"] = cloud["texts"] and cloud["texts"][::every]
