"""What the page knows: every measurement of the runs as compact columns, who is who, and what each metric means.

Columns repeat themselves, so text is stored once and long repetitions as (value, count) pairs; numbers keep six
significant digits (the run folder keeps them all). Fifty runs of 48 layers, a quarter of a million rows, take about
8 MB this way, and the browser unfolds them in a fraction of a second.

A *subject* is what a line or a card stands for: one model in one run. The colour goes by the model, in order of
appearance, so that a model looks the same in every chart; a second run of the same model is dashed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from anisoscope.inference.metrics import METRICS, declared
from anisoscope.report.figures.style import PALETTE
from anisoscope.report.page import sections
from anisoscope.report.page.rounding import short
from anisoscope.runs.measurement import verdict_of
from anisoscope.runs.store import Run
from anisoscope.runs.table import COLUMNS

TEXT = ("revision", "site", "metric", "note", "positions", "protocol")
NUMBERS = tuple(name for name in COLUMNS if name not in (*TEXT, "run", "model"))
WITHOUT_LINES = ("null", "calibrate", "advise", "compare", "gate")  # runs that no line stands for take the last colours
ALONE = (*WITHOUT_LINES, "block", "intervene", "variants")  # whose values do not stand beside those of another run
SECTIONED = (*ALONE, "vocabulary")  # whose sites are not places along a model: they have sections of their own
DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class Subject:
    """One model in one run; `look` is the number of its colour, `dash` how its line is drawn."""

    run: int
    model: str
    label: str
    look: int
    dash: str

    @property
    def colour(self) -> str:
        return PALETTE[self.look % len(PALETTE)]


def run_labels(runs: Sequence[Run]) -> list[str]:
    """What each run is of, or its folder; with as much of the path as it takes where two are called the same."""
    names = [_names(run) for run in runs]
    kept = [0] * len(runs)
    while True:
        labels = [known[k] for known, k in zip(names, kept, strict=True)]
        doubled = {label for label, count in Counter(labels).items() if count > 1}
        grown = [min(k + (label in doubled), len(n) - 1) for k, label, n in zip(kept, labels, names, strict=True)]
        if grown == kept:
            return labels
        kept = grown


def _names(run: Run) -> list[str]:
    """From the shortest: a folder that a command named `COMMAND-SUBJECT-DIGEST` is called after its subject."""
    parts = run.folder.absolute().parts
    made = re.fullmatch(rf"({re.escape(run.command)}-(.+))-[0-9a-f]{{8}}", parts[-1])
    return [*([made[2], made[1]] if made else []), *("/".join(parts[-k:]) for k in range(1, len(parts) + 1))]


def find_subjects(runs: Sequence[Run], labels: Sequence[str]) -> list[Subject]:
    """Every model of every run, in order. A run without models (vectors in a file) stands for itself."""
    pairs = [(i, model) for i, run in enumerate(runs) for model in dict.fromkeys(row.model for row in run.rows())]
    names = [model or labels[i] for i, model in pairs]
    often = Counter(names)
    drawn = [bool(model) or runs[i].command not in WITHOUT_LINES for i, model in pairs]
    order = [n for wanted in (True, False) for n, d in zip(names, drawn, strict=True) if d == wanted]
    looks = {name: look for look, name in enumerate(dict.fromkeys(order))}
    seen: Counter[str] = Counter()
    subjects = []
    for (i, model), name in zip(pairs, names, strict=True):
        label = f"{name} · {labels[i]}" if often[name] > 1 and model and labels[i] != name else name
        turn = looks[name] // len(PALETTE) + seen[name]
        subjects.append(Subject(i, model, label, looks[name], DASHES[turn % len(DASHES)]))
        seen[name] += 1
    return subjects


def columns(runs: Sequence[Run], subjects: Sequence[Subject]) -> dict[str, Any]:
    """The rows of all runs, column by column; `subject` stands for run and model."""
    number = {(subject.run, subject.model): k for k, subject in enumerate(subjects)}
    rows = [row for run in runs for row in run.rows()]
    owners = [number[i, row.model] for i, run in enumerate(runs) for row in run.rows()]
    found: dict[str, Any] = {"subject": {"pairs": _pairs(owners)}}
    for name in TEXT:
        found[name] = _words([getattr(row, name) or "" for row in rows])
    for name in NUMBERS:
        values = [short(getattr(row, name)) for row in rows]
        pairs = _pairs(values)
        found[name] = {"pairs": pairs} if len(pairs) < len(values) else {"plain": values}
    return found


def _words(values: Sequence[str]) -> dict[str, Any]:
    codes = {word: code for code, word in enumerate(dict.fromkeys(values))}
    coded = [codes[value] for value in values]
    pairs = _pairs(coded)
    return {"words": list(codes), **({"pairs": pairs} if len(pairs) < len(coded) else {"plain": coded})}


def _pairs(values: Iterable[Any]) -> list[Any]:
    """Value, count, value, count, …

    >>> _pairs([7, 7, 7, 0])
    [7, 3, 0, 1]
    """
    return [part for value, same in groupby(values) for part in (value, sum(1 for _ in same))]


def about(run: Run, label: str) -> dict[str, Any]:
    """What the charts show of a run; the rest of its manifest is in the provenance."""
    manifest = run.manifest
    return {
        "label": label,
        "command": run.command,
        "alone": run.command in ALONE,
        "sectioned": run.command in SECTIONED,
        "verdict": verdict_of(run),
        "rules": [one for one in manifest.get("verdicts") or () if "rule" in one],
        "notes": list(manifest.get("notes") or ()),
    }


def meanings(metrics: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What the metrics that occur are called and mean, in the order in which a person reads them."""
    present = set(metrics) - {"verdict"}
    ordered = [name for name in METRICS if name in present]
    found = {name: declared(name) for name in (*ordered, *sorted(present - set(ordered)))}
    unknown = {"group": "other", "meaning": ""}
    return {
        name: unknown | {"label": name.replace("_", " ")} if metric is None else metric.described()
        for name, metric in found.items()
    }


def page_data(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything that the scripts of the page read."""
    labels = run_labels(runs)
    subjects = find_subjects(runs, labels)
    return {
        "runs": [about(run, label) for run, label in zip(runs, labels, strict=True)],
        "subjects": [
            {"run": s.run, "label": s.label, "model": s.model, "colour": s.colour, "look": s.look, "dash": s.dash}
            for s in subjects
        ],
        "palette": PALETTE,
        "metrics": meanings(row.metric for run in runs for row in run.rows()),
        "columns": columns(runs, subjects),
        "pictures": sections.pictures(runs),
    }
