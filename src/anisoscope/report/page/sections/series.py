"""Paths of the mean query and the mean key in the plane of a head over the steps, and sampled points with their texts.

The plane is the one of all steps together (`union`). Points are thinned first where the page would grow too large; the
paths stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from anisoscope.report.page.rounding import rounded_list
from anisoscope.runs.array_names import find, name_of, texts_of
from anisoscope.runs.store import Run

MOST_POINTS = 150_000  # coordinates of sampled queries and keys on the whole page
FEWEST = 4
SIDES = ("query", "key")


def pictures(run: Run, arrays: Mapping[str, NDArray[Any]]) -> Iterator[dict[str, Any]]:
    steps = {parts["series"]: array for parts, array in find(arrays, "steps")}
    for parts, _ in find(arrays, "plane_query"):
        if parts["basis"] != "union" or parts["series"] not in steps:
            continue
        known = [int(step) for step in steps[parts["series"]]]
        plane: dict[str, Any] = {"series": parts["series"], "site": parts["site"], "steps": known}
        plane["share"] = rounded_list(arrays[name_of("plane_share", **parts)][:, :2])
        for side in SIDES:
            name = name_of(f"plane_{side}_points", **parts)
            plane[side] = rounded_list(arrays[name_of(f"plane_{side}", **parts)][:, :, 0])  # (steps, heads, 2)
            plane[f"{side}_points"] = arrays.get(name)  # (steps, heads, m, 2)
            plane[f"{side}_texts"] = texts_of(arrays, name)  # all texts, and (steps, heads, m)
        yield plane


def thin(planes: Sequence[dict[str, Any]]) -> None:
    """Keep the same part of every sampled cloud, so that all of them fit; none where fewer than 4 points would stay."""
    total = sum(plane[f"{s}_points"].size for plane in planes for s in SIDES if plane[f"{s}_points"] is not None)
    part = min(1.0, MOST_POINTS / total) if total else 0.0
    for plane in planes:
        for side in SIDES:
            points, texts = plane[f"{side}_points"], plane[f"{side}_texts"]
            kept = 0 if points is None else round(points.shape[2] * part)
            if points is None or kept < FEWEST:
                plane[f"{side}_points"] = plane[f"{side}_texts"] = None
                continue
            plane[f"{side}_points"] = rounded_list(points[:, :, :kept], digits=3)
            plane[f"{side}_texts"] = _told(texts[0], texts[1][:, :, :kept]) if texts else None


def _told(texts: Sequence[str], numbers: NDArray[Any]) -> list[Any]:
    """The text of each point, None where it has none; (steps, heads, m)."""
    if numbers.ndim > 1:
        return [_told(texts, part) for part in numbers]
    return [texts[number] if 0 <= number < len(texts) else None for number in numbers.tolist()]
