"""Sampled vectors with their texts: where they lie, which are nearest to each, and which are near to many (hubs).

Only of runs that kept texts (`--keep-text`). Neighbours are by cosine, among the first thousand vectors of the sample
that have a text; the plane is that of their first two principal components.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.geometry import neighbours, pairs
from anisoscope.geometry.rows import unit_rows
from anisoscope.report.page.rounding import rounded_list
from anisoscope.runs.array_names import texts_by_place
from anisoscope.runs.store import Run

Array = NDArray[Any]
AMONG, SHOWN, NEAREST, HUBS = 1024, 200, 6, 10
REACH = 10  # a hub is among the 10 nearest of many
SITES = 12  # of one model
OBSERVED = {"tokens": "hidden", "embedding": "embedding"}


def pictures(run: Run, arrays: Mapping[str, Array]) -> Iterator[dict[str, Any]]:
    """One picture for each model: its texts, and each site with numbers into them."""
    with run.sums_file() as file:
        names = sorted(set() if file is None else set(file.keys()))
        for model in dict.fromkeys(name.split("|")[0] for name in names if name.endswith("|texts")):
            texts: dict[str, int] = {}
            sites = [site for kind in OBSERVED for site in _sites(run, file, model, kind, texts)]
            if sites:
                yield {"model": model or None, "texts": list(texts), "sites": sites}


def _sites(run: Run, file: Any, model: str, kind: str, texts: dict[str, int]) -> Iterator[dict[str, Any]]:
    prefix, held = f"{model}|texts|{kind}|", set(file.keys())
    if f"{prefix}texts" not in held:
        return
    told = texts_by_place(*(file.get_tensor(prefix + name) for name in ("keys", "positions", "texts")))
    order = dict.fromkeys(row.site for row in run.rows(metric="mean_cosine"))
    places = {site: f"{model}|{OBSERVED[kind]}|{site}|reservoir." for site in order}
    known = [site for site, at in places.items() if f"{at}x" in held and not site.startswith("decoder")]
    for k in np.unique(np.linspace(0, len(known) - 1, min(SITES, len(known))).round().astype(int)):
        at = places[known[k]]
        sampled = (file.get_tensor(at + name).tolist() for name in ("keys", "positions"))
        found = [told.get(place) for place in zip(*sampled, strict=True)]
        with_text = [row for row, text in enumerate(found) if text is not None][:AMONG]
        if len(with_text) > NEAREST:
            numbers = [texts.setdefault(found[row] or "", len(texts)) for row in with_text]
            yield {"site": known[k], **picture(file.get_tensor(f"{at}x")[with_text].astype(float), numbers)}


def picture(x: Array, numbers: list[int]) -> dict[str, Any]:
    """The plane, the nearest of each vector shown, and the hubs; `numbers` says which text each row of x (m, d) has."""
    m, reach = len(x), min(REACH, len(x) - 1)
    units = unit_rows(x)
    _, near = neighbours.nearest(units, max(NEAREST, reach) if m > REACH else NEAREST)
    counts = np.bincount(near[:, :reach].ravel(), minlength=m)
    hubs = np.argsort(-counts, kind="stable")[:HUBS]
    shown = min(SHOWN, m)
    centred = x - x.mean(0)
    plane = centred[:shown] @ pairs.principal_directions(centred, min(2, x.shape[1]))
    cosines = np.einsum("md,mkd->mk", units[:shown], units[near[:shown, :NEAREST]])
    text = np.array(numbers)
    return {
        "among": m,
        "points": rounded_list(plane, digits=3),
        "text": text[:shown].tolist(),
        "near": text[near[:shown, :NEAREST]].tolist(),
        "cosines": rounded_list(cosines, digits=3),
        "hubs": [[int(text[k]), int(counts[k])] for k in hubs],
    }
