"""Cards as HTML. Names come from models, files and people: every text is escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from anisoscope.report.figures.style import PALETTE
from anisoscope.report.page.data import Subject
from anisoscope.report.page.facts import Fact
from anisoscope.report.page.summary import KINDS, Card
from anisoscope.report.terminal import number
from anisoscope.runs.table import Row

WIDTH, HEIGHT, PAD = 240, 44, 4
LONG = 400  # letters of a verdict


def cards_html(found: Sequence[Card], subjects: Sequence[Subject]) -> str:
    """The items of the list of cards."""
    return "".join(_card(card, subjects[card.subject]) for card in found)


def colour_rules() -> str:
    """One class for each colour of the palette: a style attribute would not pass the content security policy."""
    return "".join(f".own-{k} {{ --own: {colour}; }}\n" for k, colour in enumerate(PALETTE))


def _card(card: Card, subject: Subject) -> str:
    swatch = '<i class="swatch"></i>' if card.cosines or subject.model else ""
    kind = "verdict" if card.cosines else "verdict sentence"
    badges = "".join(_badge(word, count, card.judged) for word, count in card.kinds)
    notes = "".join(f"<li>{escape(note)}</li>" for note in card.notes)
    plural = "note" if len(card.notes) == 1 else "notes"
    parts = (
        f"<h2>{swatch}{_breakable(card.title)}</h2>",
        f'<p class="origin">{_breakable(card.origin)}</p>' if card.origin else "",
        _verdict(card.verdict, kind),
        f'<ul class="badges">{badges}</ul>' if badges else "",
        _spark(card.course) if len(card.course) > 2 else "",
        f"<dl>{''.join(map(_fact, card.facts))}</dl>" if card.facts else "",
        f"<details><summary>{len(card.notes)} {plural}</summary><ul>{notes}</ul></details>" if notes else "",
    )
    return f'<li class="card own-{subject.look % len(PALETTE)}">{"".join(parts)}</li>'


def _verdict(text: str, kind: str) -> str:
    """A verdict about many models shows its first sentence, and the others when they are asked for."""
    first, rest = text, ""
    if len(text) > LONG and ". " in text:
        first, rest = text.split(". ", 1)
    more = f"<details><summary>the others</summary><p>{escape(rest)}</p></details>" if rest else ""
    return f'<p class="{kind}">{escape(first)}{"." if rest else ""}</p>{more}' if text else ""


def _badge(word: str, count: int, judged: int) -> str:
    name, meaning = KINDS[word]
    share = f" <span>{count}/{judged}</span>" if judged > 1 else ""
    return f'<li class="badge kind-{name.split()[0]}" title="{escape(meaning, quote=True)}">{escape(name)}{share}</li>'


def _fact(fact: Fact) -> str:
    spread = f" <small>[{escape(fact.interval)}]</small>" if fact.interval else ""
    where = f"<code>{_breakable(fact.where)}</code>" if fact.where else ""
    return f"<div><dt>{_breakable(fact.name)}</dt><dd><b>{escape(fact.value)}</b>{spread}{where}</dd></div>"


def _breakable(text: str) -> str:
    """Escaped, with places to break long names at."""
    return escape(text).replace("/", "/<wbr>").replace("_", "_<wbr>")


def _spark(rows: Sequence[Row]) -> str:
    """The average cosine along the sites, or along the steps, from 0 (dotted, isotropic) to 1."""
    values = [row.value or 0.0 for row in rows]
    low, high = min(0.0, *values), max(1.0, *values)

    def y(value: float) -> float:
        return round(PAD + (HEIGHT - 2 * PAD) * (high - value) / (high - low), 1)

    step = (WIDTH - 2 * PAD) / (len(values) - 1)
    points = " ".join(f"{PAD + k * step:.1f},{y(value)}" for k, value in enumerate(values))
    first, last = (f"step {row.step:,}" if rows[0].step != rows[-1].step else row.site for row in (rows[0], rows[-1]))
    words = f"average cosine from {first}, {number(values[0])}, to {last}, {number(values[-1])}"
    return (
        f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(words, quote=True)}">'
        f'<line class="null" x1="{PAD}" x2="{WIDTH - PAD}" y1="{y(0)}" y2="{y(0)}"/>'
        f'<polyline points="{points}"/></svg>'
    )
