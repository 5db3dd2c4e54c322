"""The cards that follow the opening sentence: one for each model of a run, as HTML that needs no script.

A card says the verdict, where the average cosine is highest and lowest, what kind of anisotropy it is (drift is what
the mean does; few dimensions and outlier dimensions are what the covariance does), and draws the cosine along the
sites. A study without clouds (untrained blocks, thresholds, nulls, differences) speaks through its verdict and key
numbers. Cards stand in the order of `IMPORTANCE`, the most anisotropic first within a kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anisoscope.report.page.data import Subject
from anisoscope.report.page.facts import Fact, key_facts, of_row
from anisoscope.report.page.lead import highest, states
from anisoscope.runs.measurement import verdict_of
from anisoscope.runs.store import Run
from anisoscope.runs.table import Row

KINDS = {
    "drifted": ("drift", "the vectors share a direction"),
    "dominated by outlier dimensions": ("outlier dimensions", "a few coordinates dominate"),
    "few-dimensional": ("few dimensions", "some directions hold far more variance than others"),
    "weakly anisotropic": ("weak", "neither isotropic nor past a threshold"),
    "isotropic": ("isotropic", "directions and variance are spread evenly"),
    "no drift seen; spectrum not measured": ("no drift", "the average cosine is small; the spectrum was not measured"),
    "looks drifted": ("drift unsure", "the average cosine is large, but its interval is missing or holds 0"),
    "looks isotropic": ("isotropic unsure", "nothing stands out, but the interval of the cosine is missing or wide"),
    "cannot say": ("undecided", "the spectrum was not measured, and the cosine alone does not decide"),
    "too few samples to say": ("undecided", "too few samples to say"),
}
IMPORTANCE = (
    *("sweep", "measure", "attention", "final-norm", "vectors", "calibrate", "advise"),
    *("compare", "gate", "intervene", "variants", "vocabulary", "block", "null"),
)
TITLES = {
    "calibrate": "Similarity thresholds",
    "advise": "Dimensions and bits",
    "null": "Isotropic reference",
    "compare": "Comparison",
    "gate": "Gate",
    "vectors": "Vectors",
}


@dataclass(frozen=True)
class Card:
    """What is said about one subject; `kinds` is how many sites got which verdict, of `judged` sites."""

    subject: int
    title: str
    origin: str
    verdict: str
    kinds: tuple[tuple[str, int], ...] = ()
    judged: int = 0
    cosines: tuple[Row, ...] = ()
    course: tuple[Row, ...] = ()  # what the small curve draws: the sites, or the highest site at each step
    facts: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def rank(self) -> float:
        return -(highest(self.cosines).value or 0.0) if self.cosines else 0.0


def cards(runs: Sequence[Run], labels: Sequence[str], subjects: Sequence[Subject]) -> list[Card]:
    """The cards of all subjects that were judged, and one for each run that judges no cloud; the weightiest first."""
    found: list[tuple[int, Card]] = []
    for number, run in enumerate(runs):
        place = IMPORTANCE.index(run.command) if run.command in IMPORTANCE else len(IMPORTANCE) - 1
        mine = [(k, subject) for k, subject in enumerate(subjects) if subject.run == number]
        judged = [card for k, one in mine if (card := _judged(k, one, run, labels[number], alone=len(mine) == 1))]
        told = judged or ([_told(mine, run, labels[number])] if mine else [])
        found += [(place, card) for card in told]
    return [card for _, card in sorted(found, key=lambda pair: (pair[0], pair[1].rank))]


def _told(mine: Sequence[tuple[int, Subject]], run: Run, label: str) -> Card:
    """A run that judges no cloud."""
    names = list(dict.fromkeys(subject.model for _, subject in mine if subject.model))
    title = " · ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or _named(run, label)
    notes = tuple(run.manifest.get("notes") or ())
    facts = key_facts(run)
    return Card(mine[0][0], title, _origin(run, label, title), verdict_of(run), facts=facts, notes=notes)


def _judged(number: int, subject: Subject, run: Run, label: str, *, alone: bool) -> Card | None:
    """The card of one model at its last step; None where no cloud of it was judged."""
    rows = [row for row in run.rows() if row.model == subject.model and row.positions == "all"]
    last = max((row.step for row in rows if row.step is not None), default=None)
    course = _course(rows)
    rows = [row for row in rows if row.step == last]
    verdicts = _verdicts(run, subject, last)
    if not verdicts:
        return None
    first = min((row.seed for row in rows if row.seed is not None), default=None)
    cosines = tuple(
        row
        for row in rows
        if row.metric == "mean_cosine" and row.value is not None and row.site in verdicts and row.seed == first
    )
    words = Counter(word for found in verdicts.values() for word in found)
    kinds = tuple((word, words[word]) for word in KINDS if words[word])
    name = subject.label if subject.model else _named(run, label)
    title = name if last is None else f"{name}, step {last:,}"
    of_model = (run.manifest.get("about") or {}).get(subject.model, {})
    notes = (run.manifest if alone else of_model).get("notes") or ()
    return Card(
        number,
        title,
        _origin(run, label, name),
        _training(run) if course else _of_sites(run, kinds, verdicts),
        kinds,
        len(verdicts),
        cosines,
        course or cosines,
        _extremes(cosines, "" if len({row.seed for row in rows}) < 2 else f", seed {first}"),
        tuple(notes),
    )


def _course(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The highest average cosine at each step of a training; empty for a single step."""
    cosines = [row for row in rows if row.metric == "mean_cosine" and row.value is not None and row.step is not None]
    cosines = states(cosines)
    steps = sorted({row.step for row in cosines if row.step is not None})
    return tuple(highest([row for row in cosines if row.step == step]) for step in steps) if len(steps) > 1 else ()


def _extremes(cosines: Sequence[Row], of_seed: str) -> tuple[Fact, ...]:
    if len(cosines) < 2:
        return tuple(of_row("average cosine", row, where=False) for row in cosines)
    nearest = min(cosines, key=lambda row: abs(row.value or 0.0))
    return of_row(f"highest cosine{of_seed}", highest(cosines)), of_row(f"nearest to 0{of_seed}", nearest)


def _named(run: Run, label: str) -> str:
    """The folder, or what the run is where the folder is called like the command."""
    return TITLES.get(run.command, label) if label == run.command else label


def _origin(run: Run, label: str, title: str) -> str:
    """Command and folder, without repetition."""
    return " · ".join(dict.fromkeys(part for part in (run.command, label) if part != title and part not in title))


def _verdicts(run: Run, subject: Subject, step: int | None) -> dict[str, tuple[str, ...]]:
    """The words on each site of a model at its last step."""
    return {
        str(one["site"]): tuple(one["words"])
        for one in run.manifest.get("verdicts") or ()
        if "words" in one and (one.get("model"), one.get("step")) == (subject.model, step)
    }


def _training(run: Run) -> str:
    """Where the average cosine went along a training: the first clause of the run's verdict."""
    return verdict_of(run).partition(";")[0].rstrip(".")


def _of_sites(run: Run, kinds: Sequence[tuple[str, int]], verdicts: Mapping[str, tuple[str, ...]]) -> str:
    """The gravest word and at how many sites it holds, as the badges count; two clouds have a sentence of their own."""
    if len(verdicts) == 1 or not kinds:
        return ", ".join(next(iter(verdicts.values())))
    if run.command == "vectors":
        return verdict_of(run)
    word, count = kinds[0]
    return f"{word} at {'all' if count == len(verdicts) else f'{count} of'} {len(verdicts)} sites"
