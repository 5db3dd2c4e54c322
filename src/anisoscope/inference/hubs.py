"""Hubs of a sample as estimates: how skewed occurrence is, beside an isotropic cloud, which rows they are, what would
help."""

from __future__ import annotations

from collections.abc import Sequence

from anisoscope.geometry.hubs import Hubs, isotropic_hubs
from anisoscope.inference.estimates import Estimate, left_out

SHOWN = 5
NEIGHBOURS = 10


def hub_estimates(hubs: Hubs, names: Sequence[str], d: int, repeated: int = 0) -> list[Estimate]:
    """Skewness and anti-hubs beside isotropy, what CSLS and mutual proximity leave, and the top hubs by name (m,)."""
    m = len(hubs.occurrence)
    skewed, anti = isotropic_hubs(m, d, NEIGHBOURS)
    note = left_out(repeated, "duplicated vectors") if repeated else ""
    return [
        Estimate("hubness_cosine", hubs.skewness, null=skewed, n=m, note=note),
        Estimate("anti_hub_share", hubs.anti, null=anti, n=m),
        Estimate("hubness_csls", hubs.after_csls, null=skewed, n=m),
        Estimate("hubness_mutual_proximity", hubs.after_mutual_proximity, null=skewed, n=m),
        *_top("hub_occurrence", hubs, names, m),
    ]


def answer_estimates(hubs: Hubs, names: Sequence[str], queries: int) -> list[Estimate]:
    """The same of documents that queries find."""
    return [
        Estimate("query_hubness", hubs.skewness, n=queries),
        Estimate("query_anti_hub_share", hubs.anti, n=queries),
        *_top("query_hub_occurrence", hubs, names, queries),
    ]


def _top(metric: str, hubs: Hubs, names: Sequence[str], asked: int) -> list[Estimate]:
    """The rows that occur most often, the note naming each; the null is the mean."""
    mean = float(hubs.occurrence.mean())
    return [
        Estimate(metric, float(hubs.occurrence[k]), null=mean, n=asked, note=names[int(k)], at=float(place))
        for place, k in enumerate(hubs.top(SHOWN), 1)
    ]
