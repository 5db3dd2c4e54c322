"""What the terminal says about interventions: one line each, with the control of what matters most beside it."""

from __future__ import annotations

from collections.abc import Sequence

from anisoscope.runs.story import Story, Table
from anisoscope.runs.table import Row

_COLUMNS = {
    "loss_change": "loss",
    "kl": "KL",
    "entropy_normalised_change": "entropy",
    "sink_share_change": "sink",
    "last_cosine_change": "cosine",
}
"""What the table shows: changes against the untouched model."""


def story(rows: Sequence[Row]) -> Story:
    """One line per intervention; all columns of the controls on request."""
    cells = {(row.site, row.metric): row for row in rows}
    shown = [metric for metric in _COLUMNS if any(row.metric == metric for row in rows)]
    main = "loss_change" if "loss_change" in shown else "last_cosine_change"
    sites = [site for site in dict.fromkeys(row.site for row in rows) if site != "untouched"]
    acts, controls = ([site for site in sites if site.endswith(".control") is wanted] for wanted in (False, True))

    def line(site: str) -> list[str]:
        return [site, *(_cell(cells.get((site, metric))) for metric in shown)]

    columns = ["intervention", *(_COLUMNS[metric] for metric in shown)]
    place = 2 + shown.index(main)
    body = []
    for site in acts:
        found = line(site)
        body.append([*found[:place], _cell(cells.get((f"{site}.control", main))), *found[place:]])
    headed = [*columns[:place], "control", *columns[place:]]
    caption = "change against the untouched model; * the 95 % interval excludes 0"
    more = Table(columns, [line(site) for site in controls], title="controls: as much in random directions")
    return Story([Table(headed, body, caption=caption)], more=[more] if controls else ())


def _cell(row: Row | None) -> str:
    """A change with its sign; a star where the interval excludes 0.

    >>> _cell(Row(metric="loss_change", value=0.25, low=0.1, high=0.4)), _cell(Row(metric="kl", value=0.5)), _cell(None)
    ('+0.2500*', '0.5000', '–')
    """
    if row is None or row.value is None:
        return "–"
    if row.metric == "kl":  # never below 0, so an interval without 0 says nothing
        return f"{abs(row.value):.4f}"
    sure = row.low is not None and row.high is not None and not row.low <= 0 <= row.high
    shown = round(row.value, 4) + 0.0  # no minus before a zero
    return f"{shown:+.4f}{'*' if sure and shown else ' '}"
