"""The few numbers that a card shows, by kind of run: what a reader would ask first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from anisoscope.inference.metrics import lookup
from anisoscope.report.terminal import number
from anisoscope.runs.store import Run
from anisoscope.runs.table import Row


@dataclass(frozen=True)
class Fact:
    """`name`: what it is, `value` with its `interval`, `where` it was seen (empty where there is one place)."""

    name: str
    value: str
    interval: str = ""
    where: str = ""


def of_row(name: str, row: Row, *, where: bool = True) -> Fact:
    ends = "" if row.low is None or row.high is None else f"{_three(row.low)} … {_three(row.high)}"
    return Fact(name, _three(row.value), ends, row.site if where else "")


def _three(value: float | None) -> str:
    """Three significant digits: a card is read at a glance."""
    return number(None if value is None else float(f"{value:.3g}"))


def key_facts(run: Run) -> tuple[Fact, ...]:
    """At most four."""
    return tuple(_FACTS[run.command](run)[:4]) if run.command in _FACTS else ()


def _calibrate(run: Run) -> list[Fact]:
    floors = [of_row("floor: unrelated pairs", row, where=False) for row in run.rows(metric="floor_mean", site="raw")]
    thresholds = [
        of_row("threshold, 1 % false positives", row, where=False)
        for row in run.rows(metric="threshold", site="raw")
        if row.at == 0.01
    ]
    return floors + thresholds


def _advise(run: Run) -> list[Fact]:
    rows = run.rows(metric="neighbour_overlap")
    whole = max((row.at or 0.0 for row in rows), default=0.0)
    named = {"raw.int8": "kept by 8 bits", "raw.int4": "kept by 4 bits", "raw.binary": "kept by signs"}
    return [of_row(named[row.site], row, where=False) for row in rows if row.at == whole and row.site in named]


def _null(run: Run) -> list[Fact]:
    rows = run.rows(metric="cosine_q95")
    picked = [rows[0], rows[len(rows) // 2], rows[-1]] if len(rows) > 3 else rows
    return [Fact(f"95 % below, {row.site.replace('=', ' = ')}", number(row.value)) for row in picked]


def _block(run: Run) -> list[Fact]:
    rows = [row for row in run.rows(metric="fixed_point") if row.seed is None and row.value is not None]
    return [
        Fact("fixed point N*", one.value, one.interval, one.where and row.model)
        for row in rows[:4]
        for one in [of_row("", row)]
    ]


def _compare(run: Run) -> list[Fact]:
    rows = [row for row in run.rows(metric="mean_cosine", positions="all") if row.value is not None]
    largest = sorted(rows, key=lambda row: -abs(row.value or 0.0))[:2]
    return [of_row("change of the cosine", row) for row in largest]


def _gate(run: Run) -> list[Fact]:
    judged = [one for one in run.manifest.get("verdicts") or () if one["value"] is not None]
    seen = ("site", "value", "low", "high")
    return [of_row(lookup(one["metric"]).label, Row(**{name: one[name] for name in seen})) for one in judged]


def _intervene(run: Run) -> list[Fact]:
    metric = "loss_change" if run.rows(metric="loss_change") else "last_cosine_change"
    rows = [row for row in run.rows(metric=metric) if row.value is not None and row.site != "untouched"]
    tried = sorted((row for row in rows if not row.site.endswith(".control")), key=lambda row: -abs(row.value or 0.0))
    name = "change of the loss" if metric == "loss_change" else "change of the cosine"
    return [of_row(name, row) for row in tried[:2]]


def _variants(run: Run) -> list[Fact]:
    rows = [row for row in run.rows(metric="mean_cosine", site="blocks") if row.seed is None and row.value is not None]
    ranked = sorted(rows, key=lambda row: -(row.value or 0.0))
    return [replace(of_row("cosine of blocks", row), where=row.model) for row in ranked]


def _attention(run: Run) -> list[Fact]:
    rows = [row for row in run.rows(metric="query_key_cosine") if row.head is not None and row.value is not None]
    return [of_row("largest |cos(Q̄, K̄)|", max(rows, key=lambda row: abs(row.value or 0.0)))] if rows else []


_FACTS: dict[str, Callable[[Run], list[Fact]]] = {
    "calibrate": _calibrate,
    "advise": _advise,
    "null": _null,
    "block": _block,
    "compare": _compare,
    "gate": _gate,
    "intervene": _intervene,
    "variants": _variants,
    "attention": _attention,
}
