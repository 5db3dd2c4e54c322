"""What a measurement gives back: the tidy rows, the verdict, and a way to keep them.

>>> m = Measurement((Row(site="x", metric="mean_cosine", value=0.5, n=10),), verdict="drifted")
>>> m.value("mean_cosine"), m.table().num_rows
(0.5, 1)
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anisoscope.errors import UsageError
from anisoscope.inference.cloud import Cloud
from anisoscope.runs.store import Run, write_run
from anisoscope.runs.table import Row, to_table

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import torch


@dataclass(frozen=True)
class Measurement:
    """Rows of the tidy table with their verdict; `run` is the folder it was kept in, if it was."""

    rows: tuple[Row, ...]
    verdict: str
    notes: tuple[str, ...] = ()
    run: Run | None = None
    command: str = "measurement"
    settings: Mapping[str, Any] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    state: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def of_run(cls, run: Run) -> Measurement:
        """The measurement that a run folder holds."""
        manifest = run.manifest
        return cls(
            tuple(run.rows()), manifest.get("verdict") or "", tuple(manifest.get("notes", ())), run, run.command,
            manifest["settings"], manifest["protocol"], manifest["data"],
        )  # fmt: skip

    def table(self) -> pa.Table:
        """The tidy table (pyarrow), one row a measurement."""
        return to_table(self.rows)

    def to_pandas(self) -> pd.DataFrame:
        """The tidy table as a pandas DataFrame; needs pandas."""
        return self.table().to_pandas()

    def value(self, metric: str, *, site: str | None = None, positions: str = "all") -> float | None:
        """One number; a clear error where it is not there or is ambiguous."""
        found = [
            row
            for row in self.rows
            if row.metric == metric and row.positions == positions and (site is None or row.site == site)
        ]
        if len(found) != 1:
            sites = ", ".join(dict.fromkeys(row.site for row in found)) or "none"
            raise UsageError(
                f"{metric!r} is not one number here", got=f"{len(found)} rows, sites: {sites}", do="name the site"
            )
        return found[0].value

    def save(self, folder: Path | str, *, seconds: float | None = None, model: Mapping[str, Any] | None = None) -> Run:
        """Keep it as a run folder."""
        return write_run(
            folder, command=self.command, settings=self.settings, rows=self.rows, protocol=self.protocol,
            arrays=self.arrays, state=self.state, data=self.data, verdict=self.verdict, notes=self.notes,
            seconds=seconds, model=model,
        )  # fmt: skip

    def _repr_html_(self) -> str:
        """A small table for notebooks: metrics over all positions, with interval and null."""
        shown = [row for row in self.rows if row.positions == "all" and row.value is not None][:60]
        cells = "".join(
            "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in _cells(row)) + "</tr>" for row in shown
        )
        head = "".join(f"<th>{name}</th>" for name in ("site", "metric", "value", "95 % interval", "null", "n"))
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table>"
        return f"<p><b>{html.escape(self.verdict)}</b></p>{table}"


def _cells(row: Row) -> tuple[str, ...]:
    interval = "" if row.low is None or row.high is None else f"{row.low:.4g} … {row.high:.4g}"
    null = "" if row.null is None else f"{row.null:.4g}"
    return row.site, row.metric, f"{row.value:.4g}", interval, null, str(row.n or "")


def cloud_rows(cloud: Cloud, **context: Any) -> list[Row]:
    """The rows of a measured cloud; `context` fills the columns that say what was measured (site, model, layer, …)."""
    rows = [
        Row(
            metric=e.metric, value=e.value, low=e.low, high=e.high, null=e.null, n=e.n, note=e.note, at=e.at,
            positions=positions, **context,
        )
        for positions, estimates in cloud.estimates.items()
        for e in estimates
    ]  # fmt: skip
    judged = Row(metric="verdict", note=f"{cloud.verdict}: {cloud.verdict.because}", n=rows[0].n, **context)
    return [*rows, judged]


def verdict_of(words: Iterable[str]) -> str:
    """One line for many sites: how many got which verdict, the most frequent first.

    >>> verdict_of(["drifted", "drifted", "isotropic"])
    'drifted (2 of 3 sites); isotropic (1)'
    """
    words = list(words)
    counts = sorted(((words.count(word), word) for word in set(words)), key=lambda pair: (-pair[0], pair[1]))
    if len(counts) == 1:
        return counts[0][1] if len(words) == 1 else f"{counts[0][1]} (all {len(words)} sites)"
    parts = [f"{word} ({count}{f' of {len(words)} sites' if i == 0 else ''})" for i, (count, word) in enumerate(counts)]
    return "; ".join(parts)
