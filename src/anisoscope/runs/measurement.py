"""What a study gives back: the tidy rows, the verdict, and everything that is needed to keep them.

>>> m = Measurement((Row(site="x", metric="mean_cosine", value=0.5, n=10),), verdict="drifted")
>>> m.value("mean_cosine"), m.table().num_rows
(0.5, 1)
>>> m
Measurement(1 rows, drifted)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from anisoscope.errors import UsageError
from anisoscope.runs.settings import nearest
from anisoscope.runs.store import Run, write_run
from anisoscope.runs.table import Row, row_of, to_table

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa

    from anisoscope.inference.cloud import Cloud
    from anisoscope.inference.verdict import Verdict

_MANIFEST = ("protocol", "data", "model", "inputs", "about", "shard", "remarks")


@dataclass(frozen=True, repr=False)
class Measurement:
    """Rows of the tidy table with their verdict; `run` is the folder it was kept in, if it was.

    - `verdict`: words, the numbers that decided and one sentence; `verdicts`: those of single sites, as plain values;
    - `settings`, `protocol`, `data`, `model`, `inputs`: what was asked, what counted, what was read;
    - `arrays`, `state`: curves and sums, where the study has any;
    - `remarks`: those of the notes that come from sources, not from sums: `merge` keeps them of every shard;
    - `in_memory`: the settings whose values were objects, which no file can repeat.
    """

    rows: tuple[Row, ...]
    verdict: Verdict | str
    notes: tuple[str, ...] = ()
    run: Run | None = None
    command: str = "measurement"
    settings: Mapping[str, Any] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    state: Mapping[str, np.ndarray] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    verdicts: tuple[Mapping[str, Any], ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    shard: str | None = None
    remarks: tuple[str, ...] = ()
    in_memory: tuple[str, ...] = ()

    @classmethod
    def of_run(cls, run: Run) -> Self:
        """The measurement that a run folder holds."""
        manifest = run.manifest
        return cls(
            tuple(run.rows()),
            read_verdict(manifest.get("verdict")),
            tuple(manifest.get("notes", ())),
            run,
            run.command,
            manifest["settings"],
            verdicts=tuple(manifest.get("verdicts", ())),
            in_memory=tuple(manifest.get("in_memory", ())),
            **{name: manifest[name] for name in _MANIFEST if name in manifest},
        )

    def __repr__(self) -> str:
        where = f", {self.run.folder}" if self.run else ""
        return f"{type(self).__name__}({len(self.rows)} rows, {self.verdict}{where})"

    def table(self) -> pa.Table:
        """The tidy table (pyarrow), one row per measurement."""
        return to_table(self.rows)

    def to_pandas(self) -> pd.DataFrame:
        """The tidy table as a pandas DataFrame; needs pandas."""
        return self.table().to_pandas()

    def value(
        self,
        metric: str,
        *,
        site: str | None = None,
        model: str | None = None,
        step: int | None = None,
        positions: str = "all",
        at: float | None = None,
    ) -> float | None:
        """One number; a clear error where it is missing or ambiguous. `at` is the rate of a threshold, say."""
        asked = {"site": site, "model": model, "step": step, "at": at}
        found = [
            row
            for row in self.rows
            if row.metric == metric
            and row.positions == positions
            and all(wanted is None or getattr(row, name) == wanted for name, wanted in asked.items())
        ]
        if len(found) == 1:
            return found[0].value
        known = dict.fromkeys(row.metric for row in self.rows)
        if metric not in known:
            near = nearest(metric, known)[2:]
            raise UsageError("there is no such metric here", got=metric, do=near or f"one of {', '.join(known)}")
        sites = ", ".join(dict.fromkeys(row.site for row in found)) or f"none{nearest(site or '', self.sites())}"
        places = ", ".join(f"{row.at:g}" for row in found if row.at is not None and row.site == found[0].site)
        raise UsageError(
            f"{metric!r} is not one number here",
            got=f"{len(found)} rows, sites: {sites}" + (f", at: {places}" if places else ""),
            do="name the site (and the model, the step" + (", at)" if places else ")"),
        )

    def sites(self) -> list[str]:
        """The sites in order of computation."""
        return list(dict.fromkeys(row.site for row in self.rows))

    def save(self, folder: Path | str, *, seconds: float | None = None) -> Run:
        """Keep it as a run folder, with everything it holds."""
        run = self.run
        seconds = run.manifest.get("seconds") if run is not None and seconds is None else seconds
        return write_run(
            folder,
            command=self.command,
            settings=self.settings,
            rows=self.rows,
            arrays=self.arrays or (run.arrays() if run else {}),
            state=self.state or (run.state() if run else {}),
            seconds=seconds,
            in_memory=self.in_memory,
            verdict=write_verdict(self.verdict),
            verdicts=[dict(one) for one in self.verdicts],
            notes=list(self.notes),
            **{name: getattr(self, name) for name in _MANIFEST},
        )


def sentence_of(verdict: Verdict | str) -> str:
    """A verdict in one sentence, or in its words where it has none."""
    return verdict if isinstance(verdict, str) else verdict.sentence or str(verdict)


def verdict_of(run: Run) -> str:
    """What a run says, in one sentence; empty where it says nothing."""
    return sentence_of(read_verdict(run.manifest.get("verdict")))


def write_verdict(verdict: Verdict | str) -> Any:
    """A verdict as plain values."""
    return verdict if isinstance(verdict, str) else verdict.as_dict()


def read_verdict(written: Any) -> Verdict | str:
    """A verdict from a manifest: an object, or the text of earlier versions."""
    if isinstance(written, Mapping):
        from anisoscope.inference.verdict import Verdict

        return Verdict.from_dict(written)
    return written or ""


def cloud_rows(cloud: Cloud, **context: Any) -> list[Row]:
    """The rows of a measured cloud; `context` fills the columns that say what was measured (site, model, layer, …)."""
    rows = [
        row_of(estimate, positions=positions, **context)
        for positions, estimates in cloud.estimates.items()
        for estimate in estimates
    ]
    judged = Row(metric="verdict", note=cloud.verdict.sentence, n=rows[0].n, **context)
    return [*rows, judged]
