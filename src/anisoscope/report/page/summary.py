"""The verdicts that open the page: one card for each model of a run, as HTML that needs no script.

A card says the verdict, where the average cosine is highest and lowest, what kind of anisotropy it is (drift is what
the mean does, few dimensions and outlier dimensions what the covariance does), and draws the cosine along the sites.
A study without clouds (untrained blocks, thresholds, nulls, differences) speaks through the verdict of its run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from anisoscope.report.page.data import Subject
from anisoscope.report.terminal import interval, number
from anisoscope.runs.store import Run
from anisoscope.runs.table import Row

KINDS = {
    "drifted": ("drift", "the vectors share a direction"),
    "dominated by outlier dimensions": ("outlier dimensions", "a few coordinates dominate"),
    "few-dimensional": ("few dimensions", "the variance lies in few directions"),
    "weakly anisotropic": ("weak", "neither isotropic nor past a threshold"),
    "isotropic": ("isotropic", "directions and variance are spread evenly"),
    "no drift seen; spectrum not measured": ("no drift", "the average cosine is small; the spectrum was not measured"),
    "looks drifted": ("drift unsure", "the average cosine is large, but its interval is missing or holds 0"),
    "looks isotropic": ("isotropic unsure", "nothing stands out, but the interval of the cosine is missing or wide"),
    "cannot say": ("undecided", "the spectrum was not measured, and the cosine alone does not decide"),
    "too few samples to say": ("undecided", "too few samples to say"),
}
SPARK_WIDTH, SPARK_HEIGHT = 240, 44


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
    notes: tuple[str, ...] = ()

    @property
    def highest(self) -> Row:
        return max(self.cosines, key=lambda row: row.value or 0.0)

    @property
    def lowest(self) -> Row:
        return min(self.cosines, key=lambda row: abs(row.value or 0.0))


def cards(runs: Sequence[Run], labels: Sequence[str], subjects: Sequence[Subject]) -> list[Card]:
    """The cards of all subjects that were judged, and one for each run that judges no cloud."""
    found = []
    for number_of_run, run in enumerate(runs):
        mine = [(k, subject) for k, subject in enumerate(subjects) if subject.run == number_of_run]
        origin = f"{run.command} · {labels[number_of_run]}"
        notes = tuple(run.manifest.get("notes") or ())
        judged = [
            card for k, subject in mine if (card := _judged(k, subject, run, origin, notes, alone=len(mine) == 1))
        ]
        if judged:
            found += judged
        elif mine:
            names = list(dict.fromkeys(subject.model for _, subject in mine if subject.model))
            title = " · ".join(names[:3]) + (" …" if len(names) > 3 else "") or labels[number_of_run]
            found.append(Card(mine[0][0], title, origin, run.manifest.get("verdict") or "", notes=notes))
    return found


def _judged(
    number_of_subject: int, subject: Subject, run: Run, origin: str, notes: tuple[str, ...], *, alone: bool
) -> Card | None:
    """The card of a subject with verdicts; of a series, that of the last step."""
    rows = [row for row in run.rows(model=subject.model, positions="all") if row.metric in ("verdict", "mean_cosine")]
    last = max((row.step for row in rows if row.step is not None), default=None)
    rows = [row for row in rows if row.step == last]
    verdicts = {row.site: row.note.split(":")[0] for row in rows if row.metric == "verdict"}
    if not verdicts:
        return None
    cosines = tuple(r for r in rows if r.metric == "mean_cosine" and r.value is not None and r.site in verdicts)
    words = Counter(word.strip() for verdict in verdicts.values() for word in verdict.split(","))
    title = subject.label if last is None else f"{subject.label}, step {last:,}"
    mine = notes if alone else tuple(note for note in notes if note.startswith(f"{subject.model}: "))
    kinds = tuple((word, words[word]) for word in KINDS if words[word])
    return Card(number_of_subject, title, origin, _verdict(verdicts.values()), kinds, len(verdicts), cosines, mine)


def _verdict(words: Iterable[str]) -> str:
    """The most frequent verdict and how many sites share it."""
    counts = Counter(words)
    (word, count), total = counts.most_common(1)[0], counts.total()
    return (
        word
        if total == 1
        else f"{word} at {'all' if count == total else count} {f'of {total} ' * (count < total)}sites"
    )


def summary_html(found: Sequence[Card], subjects: Sequence[Subject]) -> str:
    """The cards in a list."""
    return "".join(_card(card, subjects[card.subject]) for card in found)


def lead(found: Sequence[Card]) -> str:
    """One sentence over all cards: what is at stake, and where to look first."""
    told = [card for card in found if card.cosines]
    if len(told) < 2:
        return ""
    worst = max(told, key=lambda card: card.highest.value or 0.0)
    best = min(told, key=lambda card: card.highest.value or 0.0)
    drifted = sum(any(word == "drifted" for word, _ in card.kinds) for card in told)
    return (
        f"{drifted} of {len(told)} show drift. The average cosine reaches "
        f"{number(worst.highest.value)} at {worst.highest.site} of {worst.title}, "
        f"and stays at or below {number(best.highest.value)} in {best.title}."
    )


def _card(card: Card, subject: Subject) -> str:
    badges = "".join(
        f'<li class="badge kind-{KINDS[word][0].split()[0]}" title="{escape(KINDS[word][1], quote=True)}">'
        f"{escape(KINDS[word][0])}{f' <span>{count}/{card.judged}</span>' if card.judged > 1 else ''}</li>"
        for word, count in card.kinds
    )
    facts = ""
    if len(card.cosines) > 1:
        facts = f"{_spark(card.cosines)}<dl>{_fact('highest', card.highest)}{_fact('lowest', card.lowest)}</dl>"
    elif card.cosines:
        facts = f"<dl>{_fact('average cosine', card.cosines[0])}</dl>"
    notes = "".join(f"<li>{escape(note)}</li>" for note in card.notes)
    kind = "verdict" if card.cosines else "verdict sentence"
    swatch = '<i class="swatch"></i>' if card.cosines or subject.model else ""
    plural = "note" if len(card.notes) == 1 else "notes"
    said = f"<details><summary>{len(card.notes)} {plural}</summary><ul>{notes}</ul></details>" if notes else ""
    return (
        f'<li class="card" style="--own:{subject.colour}"><h2>{swatch}{_breakable(card.title)}</h2>'
        f'<p class="origin">{_breakable(card.origin)}</p><p class="{kind}">{escape(card.verdict)}</p>'
        + (f'<ul class="badges">{badges}</ul>' if badges else "")
        + f"{facts}{said}</li>"
    )


def _fact(name: str, row: Row) -> str:
    spread = f" <small>[{interval(row)}]</small>" if row.low is not None else ""
    return (
        f"<div><dt>{name}</dt><dd><b>{number(row.value)}</b>{spread}<br><code>{_breakable(row.site)}</code></dd></div>"
    )


def _breakable(text: str) -> str:
    """Escaped, with places to break long names at."""
    return escape(text).replace("/", "/<wbr>").replace("_", "_<wbr>")


def _spark(rows: Sequence[Row]) -> str:
    """The average cosine along the sites, from 0 (dotted, isotropic) to 1."""
    values = [row.value or 0.0 for row in rows]
    low, high = min(0.0, *values), max(1.0, *values)
    pad = 4

    def y(value: float) -> float:
        return round(pad + (SPARK_HEIGHT - 2 * pad) * (high - value) / (high - low), 1)

    step = (SPARK_WIDTH - 2 * pad) / (len(values) - 1)
    points = " ".join(f"{pad + k * step:.1f},{y(value)}" for k, value in enumerate(values))
    words = f"average cosine from {rows[0].site}, {number(values[0])}, to {rows[-1].site}, {number(values[-1])}"
    return (
        f'<svg class="spark" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(words, quote=True)}">'
        f'<line class="null" x1="{pad}" x2="{SPARK_WIDTH - pad}" y1="{y(0)}" y2="{y(0)}"/>'
        f'<polyline points="{points}"/></svg>'
    )
