"""A study is declared once, beside its code, and found by name without importing it.

    studies/null.py                      one file, or a package whose __init__ declares it
        \"\"\"What isotropy would look like in this many dimensions.\"\"\"       the one-line help
        class NullSettings(Settings): …                                  its options, TOML fields and Python keywords
        STUDY = Study(NullSettings, measure=measure, …)

Its command is the name of its module. A study that reads data in passes gives `collect` (the passes: additive sums) and
`conclude` (a pure function from sums to rows), so that shards merge and processes share the work; any other study gives
`measure`. `perform` does everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anisoscope.errors import UsageError
from anisoscope.runs.finding import entries
from anisoscope.runs.settings import Settings, nearest
from anisoscope.runs.table import Row, bounded

if TYPE_CHECKING:
    import numpy as np

    from anisoscope.inference.verdict import Verdict
    from anisoscope.runs.job import Job
    from anisoscope.runs.measurement import Measurement
    from anisoscope.runs.store import Run
    from anisoscope.runs.story import Story
    from anisoscope.runs.work.collected import Collected

RUNS_MODEL = ("device", "device_map", "batch_tokens", "models_dir", "trust_remote_code", "threads")
OPENS_MODEL = ("models_dir", "trust_remote_code")
SHARED = ("engine", "address", "workers", "gpus_per_worker", "shard")


@dataclass
class Findings:
    """What a study found: rows of the tidy table, arrays beside it, a verdict, and what has to be said.

    - `verdicts`: of single sites or rules, where there are any: plain values with model, site and what was decided;
    - `notes_of`: what has to be said of one model or file, by its label;
    - `changes`: the metrics whose rows are differences of two values, which reach beyond the range of the metric;
    - `gathered`: the notes of all parts are among these notes already;
    - `protocol`, `data`, `model`: by label of the model, or plain values of the one thing that was measured.
    """

    rows: Sequence[Row]
    verdict: Verdict | str = ""
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    notes: Sequence[str] = ()
    notes_of: Mapping[str, Sequence[str]] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    verdicts: Sequence[Mapping[str, Any]] = ()
    gathered: bool = False
    changes: Collection[str] = ()

    def __post_init__(self) -> None:
        self.rows = [bounded(row, change=row.metric in self.changes) for row in self.rows]


def first_names(settings: Any) -> str:
    """What a default folder is named after: the models that are asked about, or the first file."""
    names = getattr(settings, "models", None) or getattr(settings, "files", [])[:1] or [getattr(settings, "model", "")]
    return "+".join(Path(name).name for name in names[:3])


def shared_kinds() -> dict[str, Callable[[], Any]]:
    """An empty collection for each observer of a model, by the name that all studies have for it."""
    from anisoscope.runs.work.observers import AttentionSums, HiddenSums
    from anisoscope.runs.work.observers.embeddings import EmbeddingSums
    from anisoscope.runs.work.observers.outputs import OutputSums
    from anisoscope.runs.work.observers.texts import TextSums

    states = {"hidden": HiddenSums, "embedding": EmbeddingSums, "attention": AttentionSums}
    return {**states, "output": OutputSums, "texts": TextSums}


@dataclass(frozen=True)
class Study:
    """One study.

    - `measure`, or `collect` and `conclude`; `kinds` gives an empty collection for each observer's name, where they are
      not those that studies share;
    - `labels`: the checkpoints of a series, which workers take one by one (`job.only`) instead of shares of the data;
    - `story`: what the terminal tells of its rows; without one, a table of them; `judged`: of its verdicts instead;
    - `machine`: which options of `Machine` its command has (all); `keeps_sums`: whether a finished run holds its sums;
    - `export`: writes a file that the settings name, of a new run or of one that is used again;
    - `exit_code`: what its command ends with, by its verdicts;
    - `subject`: what its default folder is named after (its models, or its first file);
    - `help`: more than the one line, with examples.
    """

    settings: type[Settings]
    measure: Callable[[Job], Findings] | None = None
    collect: Callable[[Job], Collected] | None = None
    conclude: Callable[[Any, Collected], Findings] | None = None
    kinds: Callable[[], Mapping[str, Callable[[], Any]]] = shared_kinds
    labels: Callable[[Any], Sequence[str]] | None = None
    story: Callable[[Sequence[Row]], Story] | None = None
    judged: Callable[[Sequence[Mapping[str, Any]]], Story] | None = None
    subject: Callable[[Any], str] = first_names
    exit_code: Callable[[Sequence[Mapping[str, Any]]], int] = lambda verdicts: 0
    machine: tuple[str, ...] = RUNS_MODEL + SHARED
    keeps_sums: bool = True
    export: Callable[[Any, Measurement], None] | None = None
    help: str = ""
    name: str = ""
    summary: str = ""

    def __post_init__(self) -> None:
        if (self.measure is None) == (self.collect is None):
            raise TypeError("a study has either `measure`, or `collect` and `conclude`")


def find_study(name: str) -> Study:
    """The study of this name; an unknown one is refused, with the nearest."""
    entry = entries().get(name.replace("_", "-"))
    if entry is None:
        raise UsageError(
            "there is no such study", got=name, expected=", ".join(entries()), do=nearest(name, entries())[2:] or None
        )
    declared: Study = import_module(entry.module).STUDY
    return replace(declared, name=entry.name, summary=entry.summary)


def study_of(run: Run) -> Study | None:
    """The study that made a run; None where this version has none of that name."""
    return find_study(run.command) if run.command in entries() else None


def words_of(protocol: Mapping[str, Any]) -> str:
    """A protocol as it stands in every row."""
    return "; ".join(f"{name}: {value}" for name, value in protocol.items())


def gathered(notes: Iterable[tuple[str, str]], *, of: str = "sites") -> list[str]:
    """Notes on sites (or files), one line for what many share.

    >>> gathered([("block.0", "few"), ("block.1", "few"), ("norm", "odd")])
    ['few (2 sites, block.0 first)', 'norm: odd']
    """
    by_text: dict[str, list[str]] = {}
    for site, text in notes:
        by_text.setdefault(text, []).append(site)
    return [
        f"{sites[0]}: {text}" if len(sites) == 1 else f"{text} ({len(sites)} {of}, {sites[0]} first)"
        for text, sites in by_text.items()
    ]


_LOSSES = {
    "empty": "documents without a single token were passed over",
    "too_short": "windows shorter than the model can read were passed over",
    "truncated": "transcripts were cut to the decoder's length",
}


def lost(report: Mapping[str, int]) -> list[str]:
    """What a pass passed over, in words."""
    return [f"{report[kind]} {words}" for kind, words in _LOSSES.items() if report.get(kind)]
