"""The greatest logit of each head as rows, split at the mean query and the mean key.

At the pair with the greatest score, its four parts add up to it (docs/metrics.md, Heads).
A maximum grows with the number of pairs and has no interval; compare it at equal data. Null: the expected maximum of as
many scores of unrelated isotropic queries and keys of the same mean squared norms. The row of a layer is that of its
head with the greatest logit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from anisoscope.accumulate.attention.peaks import Peaks
from anisoscope.geometry.missing import settle
from anisoscope.geometry.nulls.extremes import expected_maximum
from anisoscope.geometry.queries_keys import split_logit
from anisoscope.runs.table import Row

PARTS = ("means", "query", "salience", "content")


def peak_rows(peaks: Peaks, like: Row) -> Iterator[Row]:
    """The rows of one layer and of its heads; none where no pair was scored."""
    found = peaks.arrays
    greatest, where = found["greatest"], found["where"]
    if not np.isfinite(greatest).any():
        return
    queries, keys, pairs = (max(int(count), 1) for count in found["counts"])
    group = len(greatest) // len(found["sum_key"])
    mean_key = np.repeat(found["sum_key"], group, axis=0) / keys
    parts = split_logit(found["query"], found["key"], found["sum_query"] / queries, mean_key)
    square_key = np.repeat(found["square_key"], group) / keys
    sd = np.sqrt(found["square_query"] / queries * square_key / found["query"].shape[1])
    times = expected_maximum(pairs)
    for head in (None, *range(len(greatest))):
        of = int(np.nanargmax(np.where(np.isfinite(greatest), greatest, np.nan))) if head is None else head
        place = f"query at position {where[of, 1]} of its sequence, key at {where[of, 2]}"
        site = like.site if head is None else f"{like.site}.head.{head}"
        own = replace(like, site=site, head=head, n=pairs, note=f"of head {of}; {place}" if head is None else place)
        null = None if times is None else settle(times * sd[of])
        yield replace(own, metric="max_logit", value=settle(greatest[of]), null=null)
        for name, values in zip(PARTS, parts, strict=True):
            yield replace(own, metric=f"max_logit_{name}", value=settle(values[of]), null=None)
