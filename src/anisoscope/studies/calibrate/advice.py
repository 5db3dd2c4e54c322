"""What a calibration says: the floor, the threshold, what helps most and by how much, and what it costs.

A score becomes a percentile of the floor: "a cosine of 0.78 is above 99.2 % of unrelated pairs". The table is in the
rows (`floor_percentile`), and three lines of numpy compute it anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from anisoscope.runs.story import Story, Table, cosine, interval, number, percent
from anisoscope.runs.table import Row
from anisoscope.studies.hubs import told_hubs

WORDS = {
    "raw": "as they are",
    "centred": "centring",
    "without_top": "centring and removing the top components",
    "whitened": "whitening",
}
_SHORT = {**WORDS, "without_top": "top removed"}
LEVELS = np.concatenate([np.linspace(0, 0.99, 100), 1 - np.geomspace(0.009, 1e-5, 60)])
_STEP = 0.05
_EQUAL, _ROUNDING = 1e-9, 1e-6  # of cosines


def percentiles(cosines: NDArray[np.float64]) -> list[Row]:
    """The share of unrelated pairs below each cosine, in steps of 0.05 over their range; `cosines` rises."""
    first, last = np.floor(cosines[0] / _STEP), np.ceil(min(cosines[-1], 1.0) / _STEP)
    return [
        Row(
            site="raw",
            metric="floor_percentile",
            value=float(np.searchsorted(cosines, at) / len(cosines)),
            at=at,
            n=len(cosines),
        )
        for at in (round(float(k * _STEP), 2) for k in np.arange(first, last + 1))
    ]


def advice(rows: Sequence[Row]) -> str:
    """The floor, the threshold that goes with it, what helps most by its measured gain, what it costs, what hurts."""
    value = {(row.site, row.metric): row for row in rows if row.at is None}
    thresholds = {row.site: row for row in rows if row.metric == "threshold" and row.at == usual_rate(rows)}
    raw = thresholds["raw"]
    floor, spread = value["raw", "floor_mean"], value["raw", "floor_sd"]
    assert floor.value is not None
    assert raw.value is not None
    above = f"a similarity means something above {cosine(raw.value)} ({percent(raw.at)} false positives)"
    if raw.value > 1 - _EQUAL:
        above = f"more than {percent(raw.at)} of them are equal, so that no threshold has so few false positives"
    said = [f"Unrelated pairs have cosine {cosine(floor.value)} on average (sd {spread.value:.2f}); {above}."]
    searched = [row for row in rows if row.metric == "ndcg_difference"]
    return " ".join([*said, *(_by_search(searched, value) if searched else _by_threshold(thresholds, value))])


def _by_threshold(thresholds: dict[str, Row], value: dict[tuple[str, str], Row]) -> list[str]:
    raw, said = thresholds["raw"], []
    others = {site: row for site, row in thresholds.items() if site != "raw"}
    better = {site: row for site, row in others.items() if _below(row, raw)}
    if better:
        site = min(better, key=lambda name: better[name].value or 0.0)
        words, cost = f"{WORDS[site].capitalize()} lowers it {_to(site, better[site], others)}", _cost(value, site)
        said.append(f"{words}{cost}; only labelled pairs (--pairs) can tell whether search improves.")
    else:
        said.append("No correction lowers the threshold by more than its interval.")
    worse = [f"{WORDS[site]} ({cosine(row.value or 0.0)})" for site, row in others.items() if _below(raw, row)]
    rises = [f"Beware: it rises with {', '.join(worse)}."] if worse else []
    return [*said, *rises, *_nearer(value, [site for site, row in others.items() if not _below(raw, row)])]


def _nearer(value: dict[tuple[str, str], Row], sites: Sequence[str]) -> list[str]:
    """A warning of corrections after which the best match stands out less, by more than the interval."""
    lost = {site: value.get((site, "nearest_gap_difference")) for site in sites}
    worse = [site for site, row in lost.items() if row is not None and row.high is not None and row.high < 0]
    gap = {site: value[site, "nearest_gap"].value or 0.0 for site in ("raw", *worse)} if worse else {}
    told = [f"{WORDS[site]} ({gap[site]:.1f} instead of {gap['raw']:.1f} sd above unrelated pairs)" for site in worse]
    return [f"Beware: the best match stands out less with {' and '.join(told)}."] if told else []


def _to(site: str, best: Row, others: dict[str, Row]) -> str:
    """Down to what, and whether that is more than the next correction does, as far as the intervals tell."""
    to = cosine(best.value or 0.0)
    rivals = {name: row for name, row in others.items() if name != site and not _below(best, row)}
    if not rivals:
        return f"most, to {to}"
    near = min(rivals, key=lambda name: rivals[name].value or 0.0)
    return f"to {to} ({WORDS[near]}, to {cosine(rivals[near].value or 0.0)}, is not clearly different)"


def _by_search(moved: Sequence[Row], value: dict[tuple[str, str], Row]) -> list[str]:
    before = value["raw", "ndcg"].value
    better = [row for row in moved if row.low is not None and row.low > 0]
    worse = [row for row in moved if row.high is not None and row.high < 0]
    said = [f"nDCG@10 is {before:.3f} as it is."]
    if better:
        best = max(better, key=lambda row: row.value or 0.0)
        words, cost = WORDS[best.site].capitalize(), _cost(value, best.site)
        said.append(f"{words} helps most: {best.value:+.3f} ({interval(best)}){cost}.")
    elif any(row.low is not None for row in moved):
        said.append("No correction improves it by more than its interval: nothing is worth doing.")
    else:
        queries = "one query is" if moved[0].n == 1 else f"{moved[0].n} queries are"
        said.append(f"Whether a correction improves it cannot be said: {queries} too few for an interval.")
    hurts = [f"{WORDS[row.site]} costs {-(row.value or 0):.3f}" for row in worse]
    return [*said, *([f"Beware: {' and '.join(hurts)}."] if hurts else [])]


def _cost(value: dict[tuple[str, str], Row], site: str) -> str:
    kept = value.get((site, "neighbour_overlap"))
    return (
        "" if kept is None or kept.value is None else f", and keeps {percent(kept.value)} of the ten nearest neighbours"
    )


def usual_rate(rows: Sequence[Row]) -> float:
    """The rate nearest to one percent."""
    rates = {row.at for row in rows if row.metric == "threshold" and row.at is not None}
    return min(rates, key=lambda rate: abs(rate - 0.01))


def _below(one: Row, other: Row) -> bool:
    """Whether a threshold is lower than another by more than both intervals allow."""
    if one.high is None or other.low is None:
        return False
    return one.high < other.low - _ROUNDING


def story(rows: Sequence[Row]) -> Story:
    """One line for each correction, what it does to search, and how a cosine becomes a percentile."""
    cells = {(row.site, row.metric, row.at): row for row in rows}
    rates = list(dict.fromkeys(row.at for row in rows if row.metric == "threshold"))
    columns = ["", "floor", "sd", *(f"{100 * rate:g} %" for rate in rates if rate is not None)]
    keys = [("floor_mean", None), ("floor_sd", None), *(("threshold", rate) for rate in rates)]
    sites = dict.fromkeys(row.site for row in rows)
    keys += [("nearest_mean", None), ("neighbour_overlap", None)]
    body = [[_SHORT.get(site, site), *(number(_value(cells.get((site, *key)))) for key in keys)] for site in sites]
    usual = usual_rate(rows)
    sure = [row for row in rows if row.metric == "threshold" and row.at == usual and row.site in WORDS]
    intervals = Table(
        (f"threshold at {percent(usual)}", "value", "95 % interval"),
        [[WORDS[row.site], number(row.value), interval(row)] for row in sure],
    )
    exceeded = columns[3] if len(rates) == 1 else ", ".join(columns[3:])
    caption = (
        f"{exceeded}: the cosine that this share of unrelated pairs exceeds. Best match: the cosine of the nearest "
        "vector, on average. Kept: share of the ten nearest neighbours."
    )
    first, (hubs, others) = Table([*columns, "best match", "kept"], body, caption=caption), told_hubs(rows)
    searched = _search_tables(rows, cells)
    shown, more = (searched[:2], [*searched[2:], *hubs]) if searched else ([intervals, *hubs], [])
    more += [intervals] if searched else []
    return Story([first, *shown], more=[*more, _percentile_table(rows), _snippet(rows), *others])


def _search_tables(rows: Sequence[Row], cells: dict[tuple[str, str, float | None], Row]) -> list[Table]:
    if not any(row.metric == "ndcg" for row in rows):
        return []
    cuts = list(dict.fromkeys(row.at for row in rows if row.metric == "recall"))
    body, found_at = [], []
    for site in dict.fromkeys(row.site for row in rows if row.metric == "ndcg"):
        found, moved = cells[site, "ndcg", None], cells.get((site, "ndcg_difference", None))
        change = "" if moved is None or moved.value is None else f"{moved.value:+z.3f}"
        body.append([_SHORT[site], number(found.value), interval(found), change, interval(moved)])
        found_at.append([_SHORT[site], *(number(_value(cells.get((site, "recall", cut)))) for cut in cuts)])
    ranked = Table(("search", "nDCG@10", "95 % interval", "change", "95 % interval"), body)
    recalled = Table(("search", *(f"recall@{cut:.0f}" for cut in cuts)), found_at)
    return [ranked, _threshold_table(rows, cells), recalled]


def _threshold_table(rows: Sequence[Row], cells: dict[tuple[str, str, float | None], Row]) -> Table:
    names = ("threshold_conformal", "recall_at_threshold", "precision_at_threshold")
    rates = list(dict.fromkeys(row.at for row in rows if row.metric == names[0]))
    body = [[percent(rate), *(number(_value(cells.get(("raw", name, rate)))) for name in names)] for rate in rates]
    lacking = {row.at: row.note for row in rows if row.metric == names[0] and row.site == "raw" and row.value is None}
    caption = "; ".join(f"{percent(rate)} {note}" for rate, note in lacking.items() if note)
    return Table(
        ("holds for new queries at", "threshold", "recall", "precision"), body, caption=caption and f"{caption}."
    )


def _value(row: Row | None) -> float | None:
    return None if row is None else row.value


def _percentile_table(rows: Sequence[Row]) -> Table:
    found = [row for row in rows if row.metric == "floor_percentile"]
    body = [[f"{row.at:.2f}", f"{row.value:.2%}"] for row in found]
    return Table(("a cosine of", "is above … of unrelated pairs"), body)


def _snippet(rows: Sequence[Row]) -> Table:
    """Three lines of numpy that turn a cosine into its percentile."""
    found = [row for row in rows if row.metric == "floor_percentile" and row.value is not None]
    cosines, shares = (
        [f"{v:.4g}" for v in column] for column in ([row.at for row in found], [row.value for row in found])
    )
    lines = [
        f"cosines = np.array([{', '.join(cosines)}])",
        f"shares = np.array([{', '.join(shares)}])",
        "percentile = 100 * np.interp(cosine, cosines, shares)",
    ]
    return Table(("in numpy",), [[line] for line in lines])
