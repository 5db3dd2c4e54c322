"""What the terminal says about attention: which heads agree beyond chance, how sharp rows are, one line per layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anisoscope.runs.story import Story, Table, digits
from anisoscope.runs.table import Row, is_part

BEYOND = 1.96  # standard deviations of the null
_COLUMNS = {
    "mean_cosine": "cosine",
    "query_key_cosine": "cos(Q̄, K̄)",
    "query_drift_ratio": "Q drift",
    "key_drift_ratio": "K drift",
    "entropy_normalised": "entropy",
    "sink_share": "sink",
    "salience_share": "salience",
}
"""Metrics of the table: of hidden states, of heads, of rows (entropy over log n)."""


def agreeing(rows: Iterable[Row]) -> tuple[int, int, int] | None:
    """Heads whose cos(Q̄, K̄) is above, below ±1.96 standard deviations of its null, and all; None without heads."""
    cosines = [
        (row.value, BEYOND * row.null_sd)
        for row in rows
        if row.metric == "query_key_cosine"
        and row.head is not None
        and row.value is not None
        and row.null_sd is not None
    ]
    if not cosines:
        return None
    return sum(v > bound for v, bound in cosines), sum(v < -bound for v, bound in cosines), len(cosines)


def attention_verdict(rows: Sequence[Row]) -> str:
    """How many heads agree or oppose beyond chance, how sharp attention is, its salience, its greatest logit."""
    words = []
    found = agreeing(rows)
    if found is not None:
        above, below, heads = found
        words.append(
            f"In {above + below} of {heads} heads the mean query and the mean key point the same or opposite ways "
            f"({above} the same, {below} opposite; about {0.05 * heads:.1f} expected by chance)"
        )
    for metric, name in (("entropy_normalised", "attention entropy over log n"), ("salience_share", "salience share")):
        values = sorted(r.value for r in rows if r.metric == metric and r.head is not None and r.value is not None)
        if values:
            middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
            words.append(f"median {name} {middle:.3g}")
    logits = [(r.value, r.site) for r in rows if r.metric == "max_logit" and r.head is not None and r.value is not None]
    if logits:
        words.append("greatest logit {:.3g} ({})".format(*max(logits)))
    return "; ".join(words) + "." if words else ""


def story(rows: Sequence[Row]) -> Story:
    """One line per layer; of a series, at its last step, one table per seed."""
    steps = [row.step for row in rows if row.step is not None]
    last = [row for row in rows if not steps or row.step == max(steps)]
    tables = []
    for seed in dict.fromkeys(row.seed for row in last):
        title = "" if not steps else f"step {max(steps):,}" + ("" if seed is None else f", seed {seed}")
        tables.append(_table([row for row in last if row.seed == seed], title))
    return Story(tables)


def _table(rows: Sequence[Row], title: str) -> Table:
    """One line per site; the cosines of its heads as their range."""
    value = {(row.site, row.metric): row.value for row in rows if row.head is None and row.positions == "all"}
    heads: dict[str, list[float]] = {}
    for row in rows:
        if row.metric == "query_key_cosine" and row.head is not None and row.value is not None:
            heads.setdefault(row.site.rpartition(".head.")[0], []).append(row.value)
    shown = {metric: name for metric, name in _COLUMNS.items() if any(key[1] == metric for key in value)}
    body = []
    for site in dict.fromkeys(site for site, metric in value if metric in shown and not is_part(site)):
        cells = {metric: digits(value.get((site, metric)), ".3f") for metric in shown}
        if heads.get(site):
            cells["query_key_cosine"] = f"{min(heads[site]):+.2f}…{max(heads[site]):+.2f}"
        body.append([site, *cells.values()])
    caption = "a layer is the average of its heads; cos(Q̄, K̄): from its lowest head to its highest" if heads else ""
    return Table(("site", *shown.values()), body, title=title, caption=caption)


def _short(value: float | None) -> str:
    """Three digits after the point: the table fits into eighty columns."""
    return "–" if value is None else f"{value:.3f}"
