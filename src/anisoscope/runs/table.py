"""One tidy table for everything that is measured.

A row is one measurement: a metric at a site, with its interval, its isotropic null, its n and its protocol. A missing
number is missing (`None`, null in Parquet), never 0 and never NaN.

>>> row = Row(site="block.3", metric="mean_cosine", value=0.41, low=0.39, high=0.43, null=0.0, n=20_000, layer=3)
>>> to_table([row]).select(["site", "metric", "value"]).to_pylist()
[{'site': 'block.3', 'metric': 'mean_cosine', 'value': 0.41}]
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from anisoscope.inference.estimates import Estimate


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. The order of the fields is the order of the columns.

    - `null`: what an isotropic cloud of the same n and d would give; `null_sd`: how far it strays by chance.
    - `positions`: `all`, `rest` (without the first position of each sequence) or `first`.
    - `at`: the quantity that a study sweeps (drift norm N, factor of an intervention); missing elsewhere.
    - `protocol`: what counted, in words that do not depend on the machine.
    """

    run: str = ""
    model: str = ""
    revision: str | None = None
    step: int | None = None
    site: str = ""
    layer: int | None = None
    head: int | None = None
    metric: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    null: float | None = None
    n: int | None = None
    note: str = ""
    positions: str = "all"
    at: float | None = None
    seed: int | None = None
    protocol: str = ""
    null_sd: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return {name: _missing_if_not_finite(getattr(self, name)) for name in COLUMNS}


def is_embedding(site: str) -> bool:
    """Whether a site (or a pattern of sites) is the vector of a whole text or image.

    >>> is_embedding("embedding.text"), is_embedding("embeddings")
    (True, False)
    """
    return site == "embedding" or site.startswith("embedding.")


def is_part(site: str) -> bool:
    """Whether a site is what a part of a block adds, not a state of the residual stream.

    >>> is_part("decoder.block.3.mlp"), is_part("block.3")
    (True, False)
    """
    return site.endswith((".attention", ".mlp"))


def listed_by_library(layers: Sequence[Row]) -> list[Row]:
    """Of the layers of a model, those that its library lists: what a norm made stands in for the raw state before it.

    >>> [row.site for row in listed_by_library([Row(site="block.0"), Row(site="block.1"), Row(site="final_norm")])]
    ['block.0', 'final_norm']
    """
    norms = [row.site.endswith("norm") for row in layers]
    after = [*norms[1:], False]
    return [row for row, norm, next_norm in zip(layers, norms, after, strict=True) if norm or not next_norm]


COLUMNS = tuple(field.name for field in dataclasses.fields(Row))
_ESTIMATED = ("metric", "value", "low", "high", "null", "n", "note", "at")
_NOTHING = Row()
_LATER = ("null_sd",)  # columns that the first tables of format 2 lack


def row_of(estimate: Estimate, like: Row = _NOTHING, **where: Any) -> Row:
    """The row of an estimate; `like` and `where` fill the columns that say what was measured (site, model, …)."""
    return dataclasses.replace(like, **{name: getattr(estimate, name) for name in _ESTIMATED}, **where)


def bounded(row: Row, *, change: bool = False) -> Row:
    """The row with its interval cut to the range of its metric: symmetric intervals reach below a probability of 0.

    `change`: the row is a difference of two values of its metric.

    >>> row = Row(metric="min_probability", value=0.01, low=-0.02, high=0.04)
    >>> bounded(row).low, bounded(row, change=True).low
    (0.0, -0.02)
    """
    from anisoscope.inference.metrics import declared

    metric = declared(f"{row.metric}_difference" if change else row.metric)
    if metric is None or row.value is None or row.low is None or row.high is None:
        return row
    low = row.low if metric.low is None else max(row.low, min(metric.low, row.value))
    high = row.high if metric.high is None else min(row.high, max(metric.high, row.value))
    return row if (low, high) == (row.low, row.high) else dataclasses.replace(row, low=low, high=high)


def _missing_if_not_finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def schema() -> pa.Schema:
    """The Arrow schema of `measurements.parquet`."""
    import pyarrow as pa

    kinds = {int: pa.int64(), float: pa.float64(), str: pa.string()}
    columns = {"step": int, "layer": int, "head": int, "n": int, "seed": int}
    columns |= {"value": float, "low": float, "high": float, "null": float, "at": float, "null_sd": float}
    return pa.schema([(name, kinds[columns.get(name, str)]) for name in COLUMNS])


def is_table(found: pa.Schema) -> bool:
    """Whether a table has these columns; what earlier versions wrote lacks those that came later."""
    columns = [field for field in schema() if field.name in found.names or field.name not in _LATER]
    return list(found) == columns


def to_table(rows: Iterable[Row]) -> pa.Table:
    """The rows as a pyarrow table, one row each."""
    import pyarrow as pa

    return pa.Table.from_pylist([row.as_dict() for row in rows], schema=schema())


def from_table(table: pa.Table) -> list[Row]:
    """The inverse of `to_table`."""
    return [Row(**{name: record.get(name) for name in COLUMNS if name in record}) for record in table.to_pylist()]
