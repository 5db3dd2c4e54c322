"""The sentence that opens the page: what somebody who had read the runs would say.

The most telling run speaks: a training before a single model, a model before a file of vectors, and so on in the order
of `lead`. The chart under the sentence is of the same kind (the scripts follow the same order).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from anisoscope.inference.sentences import apart
from anisoscope.report.figures.final_norm import ABLATED
from anisoscope.report.page.data import Subject
from anisoscope.runs.measurement import verdict_of
from anisoscope.runs.store import Run
from anisoscope.runs.table import Row, is_part

EMBEDDED = "embedded series"
NOT_MODELS = (
    *("vectors", "calibrate", "advise", "null", "block", "compare", "gate", "intervene", "variants", "vocabulary"),
)


def lead(runs: Sequence[Run], labels: Sequence[str], subjects: Sequence[Subject]) -> str:
    """One or two sentences, empty where no run says anything."""
    said = (
        _training(runs, labels),
        _models(runs, subjects),
        *(_verdict(runs, command) for command in ("calibrate", "advise")),
        _vectors(runs, labels),
        *(_verdict(runs, command) for command in ("compare", "gate", "intervene", "variants", "vocabulary", "block")),
        *(_verdict(runs, run.command) for run in runs),
    )
    return next(filter(None, said), "")


def cosines(run: Run) -> list[Row]:
    """The average cosines of a run over all positions, by site; not those of norms with a part taken away."""
    rows = run.rows(metric="mean_cosine", positions="all")
    plain = [row for row in rows if row.value is not None and row.head is None and row.at is None]
    return [row for row in plain if row.site.rpartition(".")[2] not in ("as_it_is", *ABLATED)]


def brief(value: float | None) -> str:
    """Two significant digits, as one would say it.

    >>> brief(0.9791), brief(0.0635), brief(None)
    ('0.98', '0.064', '–')
    """
    return "–" if value is None else f"{value:.2g}"


def highest(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: row.value or 0.0)


def states(rows: Sequence[Row]) -> list[Row]:
    """The states of a model, without what the parts of its blocks add to them."""
    return [row for row in rows if not is_part(row.site)]


def _training(runs: Sequence[Run], labels: Sequence[str]) -> str:
    for run in runs:
        rows = [row for row in states(cosines(run)) if row.step is not None] if run.command not in NOT_MODELS else []
        models = {row.model for row in rows}
        if len({row.step for row in rows}) < 2 or not any(_steps(rows, model) > 1 for model in models):
            continue
        model = next(model for model in dict.fromkeys(row.model for row in rows) if _steps(rows, model) > 1)
        mine = [row for row in rows if row.model == model]
        top, last = highest(mine), max(row.step or 0 for row in mine)
        end = highest([row for row in mine if row.step == last])
        name = model or labels[runs.index(run)]
        name = f"the {name}" if name == EMBEDDED else name
        seed = f", seed {top.seed}" if len({row.seed for row in mine}) > 1 and top.seed is not None else ""
        if top.step == last:
            said = f"The average cosine of {name} is highest at the end of its training"
            return f"{said}: {brief(top.value)} at step {last:,} ({top.site}{seed})."
        where = f"{brief(top.value)} at step {top.step:,} ({top.site}{seed})"
        said = f"During training, the average cosine of {name} reaches {where}"
        if top.step == min(row.step or 0 for row in mine):
            said = f"The average cosine of {name} is highest at the beginning: {where}"
        return f"{said}; at the end, step {last:,}, no site is above {brief(end.value)}."
    return ""


def _steps(rows: Sequence[Row], model: str) -> int:
    return len({row.step for row in rows if row.model == model})


def _models(runs: Sequence[Run], subjects: Sequence[Subject]) -> str:
    tops: list[tuple[str, Row]] = []
    named: set[str] = set()
    for subject in subjects:
        run = runs[subject.run]
        mine = [row for row in cosines(run) if row.model == subject.model] if run.command not in NOT_MODELS else []
        if mine:
            tops.append((subject.label, highest(mine)))
            named.add(subject.model)
    if not tops:
        return ""
    name, top = max(tops, key=lambda pair: pair[1].value or 0.0)
    said = f"{_with_interval(top)} at {top.site}"
    if len(tops) == 1:
        return f"In {name} the average cosine reaches {said}; isotropic vectors would have 0."
    least, low = min(tops, key=lambda pair: pair[1].value or 0.0)
    what = "models" if len(named) == len(tops) else "measurements"
    if brief(low.value) == brief(top.value):
        return f"In {'both' if len(tops) == 2 else f'all {len(tops)}'} {what} the average cosine reaches {said}."
    return (
        f"Of {len(tops)} {what}, {name} has the highest average cosine: {said}. "
        f"In {least} it stays at or below {brief(low.value)}."
    )


def _with_interval(row: Row) -> str:
    if row.low is None or row.high is None:
        return brief(row.value)
    value, low, high = apart(row.value, row.low, row.high)
    return f"{value} ({low} to {high})"


def _verdict(runs: Sequence[Run], command: str) -> str:
    """The first two sentences of the verdict of the first run of a command that has one; the card has them all."""
    whole = next((verdict_of(run) for run in runs if run.command == command and verdict_of(run)), "")
    said = " ".join(re.split(r"(?<=\.) (?=[A-Z])", whole)[:2])
    return said and said[0].upper() + said[1:] + ("" if said.endswith(".") else ".")


def _vectors(runs: Sequence[Run], labels: Sequence[str]) -> str:
    for run, label in zip(runs, labels, strict=True):
        if run.command == "vectors" and (found := cosines(run)):
            top = highest(found)
            name = label if top.site == "vectors" else top.site
            which = "vectors" if top.n is None else f"of the {top.n:,} vectors"
            said = f"have cosine {_with_interval(top)} on average; isotropic vectors would have 0"
            return f"Any two {which} in {name} {said}."
    return ""
