"""What the papers say of their figures, computed: each check reads runs and says whether the statement holds, and why.

A check is a function of the runs of a figure and of the options that `paper.toml` gives it. Where a row has an interval
the statement must hold for its near end, not only for the estimate. `holds` is missing where the runs do not hold what
the statement is about: nothing was seen, which is not the same as not being so.

>>> CHECKS["narrows"]([]).holds is None
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anisoscope.geometry.nulls.isotropic import cosine_quantile

if TYPE_CHECKING:
    from anisoscope.runs.store import Run
    from anisoscope.runs.table import Row

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Seen:
    """Whether a statement holds (missing: nothing to tell it by), and the numbers behind that."""

    holds: bool | None
    words: str


NOTHING = Seen(None, "the runs do not hold what this is about")


def check(name: str, runs: Sequence[Run], options: dict[str, Any]) -> Seen:
    """Carry out a check by its name."""
    return CHECKS[name](runs, **options)


def short_name(model: str) -> str:
    """A model without its owner.

    >>> short_name("stand-in/gpt2")
    'gpt2'
    """
    return model.rpartition("/")[2]


# -- which rows --------------------------------------------------------------------------------------------------------


def _rows(
    runs: Sequence[Run],
    metric: str,
    *,
    model: str | None = None,
    site: str | Sequence[str] | None = None,
    heads: bool = False,
    seeds: bool = True,
) -> list[Row]:
    """The measured rows of a metric, of one model (its name without the owner) and of sites that match a pattern."""
    patterns = [site] if isinstance(site, str) else list(site or ["*"])
    return [
        row
        for run in runs
        for row in run.rows(metric=metric, positions="all")
        if row.value is not None
        and (model is None or short_name(row.model) == model)
        and any(fnmatchcase(row.site, pattern) for pattern in patterns)
        and (row.head is not None) == heads
        and (seeds or row.seed is None)
    ]


def _at_last_step(rows: Sequence[Row]) -> list[Row]:
    last = {row.model: max((other.step or 0) for other in rows if other.model == row.model) for row in rows}
    return [row for row in rows if (row.step or 0) == last[row.model]]


def _near_end(row: Row, side: Literal["low", "high"]) -> float:
    end = getattr(row, side)
    return float(row.value if end is None else end)  # pyright: ignore[reportArgumentType]  # rows here have values


def _place(row: Row) -> str:
    return f"{row.site} of {short_name(row.model)}" if row.model else row.site


# -- levels ------------------------------------------------------------------------------------------------------------


def every(
    runs: Sequence[Run],
    *,
    metric: str,
    above: float | None = None,
    below: float | None = None,
    last_step: bool = False,
    model: str | None = None,
    site: str | None = None,
    **left_out: Sequence[str],
) -> Seen:
    """Every row lies above (below) a level with its whole interval; `except` leaves models out."""
    rows = [row for row in _rows(runs, metric, model=model, site=site) if short_name(row.model) not in _out(left_out)]
    rows = _at_last_step(rows) if last_step else rows
    if not rows:
        return NOTHING
    if above is not None:
        good, level, side = [row for row in rows if _near_end(row, "low") > above], above, "above"
    else:
        assert below is not None
        good, level, side = [row for row in rows if _near_end(row, "high") < below], below, "below"
    least, most = min(rows, key=_value), max(rows, key=_value)
    words = f"{len(good)} of {len(rows)} {side} {level:g} with their intervals"
    if len(rows) == 1:
        words = f"{_value(least):.3g} at {_place(least)}"
    else:
        words += f"; least {_value(least):.3g} at {_place(least)}, most {_value(most):.3g} at {_place(most)}"
    return Seen(len(good) == len(rows), words)


def _out(options: dict[str, Sequence[str]]) -> Sequence[str]:
    """`except` is a word of the language, so it comes among the other options."""
    return options.get("except", ())


def _value(row: Row) -> float:
    assert row.value is not None
    return row.value


def last_site(runs: Sequence[Run], *, model: str, above: float) -> Seen:
    """The cosine at the end of the model's stack, before any final norm."""
    blocks = [row for row in _rows(runs, "mean_cosine", model=model) if row.layer is not None]
    if not blocks:
        return NOTHING
    last = blocks[-1]
    return Seen(_near_end(last, "low") > above, f"{_value(last):.3g} at {_place(last)}")


def ordered(runs: Sequence[Run], *, metric: str, higher: Sequence[str], lower: Sequence[str]) -> Seen:
    """The average over sites of every model of one kind is above that of every model of the other."""
    averages = {
        name: float(np.mean([_value(row) for row in rows]))
        for name in (*higher, *lower)
        if (rows := _rows(runs, metric, model=name))
    }
    if not (averages.keys() & set(higher) and averages.keys() & set(lower)):
        return NOTHING
    high = min(value for name, value in averages.items() if name in higher)
    low = max(value for name, value in averages.items() if name in lower)
    words = ", ".join(f"{name} {value:.2f}" for name, value in sorted(averages.items(), key=lambda item: -item[1]))
    return Seen(high > low, f"average over sites: {words}")


def at_start(runs: Sequence[Run], *, metric: str, site: Sequence[str], above: float) -> Seen:
    """The level where nothing has been added yet, in the first run of the figure."""
    rows = [row for row in _rows(runs[:1], metric, site=site, seeds=False) if row.at == 0]
    if not rows:
        return NOTHING
    words = ", ".join(f"{row.site} {_value(row):.3g}" for row in rows)
    return Seen(all(_near_end(row, "low") > above for row in rows), f"at 0, {rows[0].model}: {words}")


def above_isotropic(runs: Sequence[Run]) -> Seen:
    """Average cosines against the 95 % quantile of a single isotropic pair of their dimension."""
    d = {(row.model, row.site): _value(row) for row in _rows(runs, "dimension")}
    rows = [row for row in _rows(runs, "mean_cosine") if d.get((row.model, row.site), 0) >= 2]
    if not rows:
        return NOTHING
    beyond = [row for row in rows if _near_end(row, "low") > cosine_quantile(0.95, int(d[row.model, row.site]))]
    return Seen(len(beyond) == len(rows), f"{len(beyond)} of {len(rows)} sites are above it")


def most_significant(runs: Sequence[Run], *, metric: str) -> Seen:
    """More than half of the models have p below 0.05."""
    found = {short_name(row.model): _value(row) for row in _rows(runs, metric)}
    if not found:
        return NOTHING
    above = sorted(name for name, p in found.items() if p >= SIGNIFICANT)
    words = f"{len(found) - len(above)} of {len(found)} models below 0.05"
    return Seen(2 * len(above) < len(found), words + (f"; above: {', '.join(above)}" if above else ""))


# -- shapes ------------------------------------------------------------------------------------------------------------


def falls_with_depth(runs: Sequence[Run], *, model: str) -> Seen:
    """The last site's interval lies below the first's."""
    rows = _rows(runs, "mean_cosine", model=model)
    if len(rows) < 2:
        return NOTHING
    first, last = rows[0], rows[-1]
    words = f"{_value(first):.3g} at {first.site}, {_value(last):.3g} at {last.site}"
    return Seen(_near_end(last, "high") < _near_end(first, "low"), words)


def falls_at_norm(runs: Sequence[Run], *, model: str) -> Seen:
    """The cosine after the final norm against the one before it, at the last step."""
    after = _at_last_step(_rows(runs, "mean_cosine", model=model, site="final_norm"))
    before = _at_last_step(_rows(runs, "mean_cosine_before", model=model, site="final_norm"))
    if not (after and before):
        return NOTHING
    words = f"{_value(before[0]):.3g} before the final norm, {_value(after[0]):.3g} after it"
    return Seen(_near_end(after[0], "high") < _near_end(before[0], "low"), words)


def output_above_input(runs: Sequence[Run]) -> Seen:
    """The cosine of a block's output against that of its input, at each drift, as an average over draws."""
    cosines = {(row.site, row.at): _value(row) for row in _rows(runs[:1], "mean_cosine", seeds=False)}
    gaps = [value - cosines["input", at] for (site, at), value in cosines.items() if site == "output"]
    if not gaps:
        return NOTHING
    words = f"at {sum(gap > 0 for gap in gaps)} of {len(gaps)} drift norms, by {min(gaps):.2g} to {max(gaps):.2g}"
    return Seen(all(gap > 0 for gap in gaps), words)


def crosses(runs: Sequence[Run]) -> Seen:
    """The fixed point, and where a fresh LayerNorm puts it."""
    rows = [row for run in runs for row in run.rows(metric="fixed_point", seed=None)]
    if not rows:
        return NOTHING
    found, predicted = rows[0], _rows(runs, "fixed_point_of_layernorm", seeds=False)
    if found.value is None:
        return Seen(False, found.note)
    interval = f" ({found.low:.4g} … {found.high:.4g})" if found.low is not None and found.high is not None else ""
    scale = f"; √(d − E‖x‖²) = {_value(predicted[0]):.4g}" if predicted else ""
    return Seen(True, f"N* = {found.value:.4g}{interval}{scale}")


def narrows(runs: Sequence[Run]) -> Seen:
    """The 95 % quantile of isotropic cosines falls from each dimension to the next."""
    rows = [row for run in runs for row in run.rows(metric="cosine_q95") if row.value is not None]
    if len(rows) < 2:
        return NOTHING
    values = [_value(row) for row in rows]
    words = "95 % quantile " + ", ".join(f"{_value(row):.3g} ({row.site})" for row in rows)
    return Seen(all(later < earlier for earlier, later in pairwise(values)), words)


def along(
    runs: Sequence[Run],
    *,
    metric: str,
    by: Literal["at", "step"],
    site: Sequence[str] | None = None,
    down: bool = False,
    absolute: bool = False,
    heads: bool = False,
    seeds: bool = False,
) -> Seen:
    """From the first to the last drift norm or step: the average of all lines moves the way that is said.

    A line is a site, a head, and a seed of a training. For the block study (`by` = at) a line is the average over its
    draws, or with `seeds` each draw. A line with intervals counts as moved where those of its ends are apart.
    """
    rows = _rows(runs[:1], metric, site=site, heads=heads, seeds=seeds or by == "step")
    rows = [row for row in rows if not (seeds and row.seed is None)]
    lines: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if getattr(row, by) is not None:
            lines.setdefault((row.model, row.site, row.head, row.seed), []).append(row)
    ends = [
        (min(line, key=lambda r: getattr(r, by)), max(line, key=lambda r: getattr(r, by))) for line in lines.values()
    ]
    ends = [(first, last) for first, last in ends if first is not last]
    if not ends:
        return NOTHING
    size = abs if absolute else float
    start, end = (float(np.mean([size(_value(pair[k])) for pair in ends])) for k in (0, 1))
    moved = sum(_apart(first, last, down=down, absolute=absolute) for first, last in ends)
    mean = "" if len(ends) == 1 else f" on average; {moved} of {len(ends)} lines {'fall' if down else 'grow'}"
    return Seen(end < start if down else end > start, f"{start:.4g} → {end:.4g}{mean}")


def _apart(first: Row, last: Row, *, down: bool, absolute: bool) -> bool:
    if absolute:
        return abs(_value(last)) > abs(_value(first))
    if down:
        return _near_end(last, "high") < _near_end(first, "low")
    return _near_end(last, "low") > _near_end(first, "high")


def first_half_lower(runs: Sequence[Run], *, metric: str) -> Seen:
    """At the last step, the first half of the layers against the second."""
    rows = [row for row in _at_last_step(_rows(runs, metric)) if row.layer is not None]
    if len({row.layer for row in rows}) < 2:
        return NOTHING
    middle = (max(row.layer or 0 for row in rows) + 1) / 2
    halves = [[_value(row) for row in rows if ((row.layer or 0) < middle) == first] for first in (True, False)]
    early, late = (float(np.mean(half)) for half in halves)
    return Seen(early < late, f"{early:.3g} in the first half of the layers, {late:.3g} in the second")


# -- queries and keys --------------------------------------------------------------------------------------------------


def _alignment(runs: Sequence[Run]) -> list[tuple[Row, float]]:
    """cos(Q̄, K̄) of every head at every step, with the reach of its null, 1.96/√d_head."""
    found = []
    for run in runs:
        widths = {name: array.shape[-1] for name, array in run.arrays().items() if name.endswith("/query_mean")}
        for row in _rows([run], "query_key_cosine", heads=True):
            d = widths.get(f"seed-{row.seed}/{row.site.rpartition('.head.')[0]}/query_mean")
            if d:
                found.append((row, 1.96 * d**-0.5))
    return found


def leaves_null(runs: Sequence[Run], *, every_seed: bool = False) -> Seen:
    """More heads are beyond ±1.96/√d at the last step than at the first, in all seeds together or in each."""
    found = _alignment(runs)
    if not found:
        return NOTHING
    steps = [row.step or 0 for row, _ in found]
    first_and_last = (min(steps), max(steps))
    parts: list[tuple[str, int, int, int]] = []
    for seed in dict.fromkeys(row.seed for row, _ in found) if every_seed else [None]:
        mine = [(row, reach) for row, reach in found if not every_seed or row.seed == seed]
        ends = [[abs(_value(row)) > reach for row, reach in mine if (row.step or 0) == at] for at in first_and_last]
        parts.append((f"seed {seed}: " if every_seed else "", sum(ends[0]), sum(ends[1]), len(ends[1])))
    words = "; ".join(f"{name}{first} → {last} of {heads} heads beyond ±1.96/√d" for name, first, last, heads in parts)
    return Seen(all(last > first for _, first, last, _ in parts), words)


def both_directions(runs: Sequence[Run]) -> Seen:
    """At the last step some head is beyond its null on either side."""
    found = _alignment(runs)
    if not found:
        return NOTHING
    last = max(row.step or 0 for row, _ in found)
    ends = [(_value(row), reach) for row, reach in found if (row.step or 0) == last]
    common, opposite = sum(v > reach for v, reach in ends), sum(v < -reach for v, reach in ends)
    return Seen(
        common > 0 and opposite > 0,
        f"{common} heads of common and {opposite} of opposite direction beyond the null, of {len(ends)}",
    )


def plane_agrees(runs: Sequence[Run], *, plane: str) -> Seen:
    """Of the heads beyond their null at the last step: is ⟨Q̄, K̄⟩ of the same sign in the plane as in the full space?"""
    arrays = {id(run): run.arrays() for run in runs}
    agreed = total = 0
    for run in runs:
        found = _alignment([run])
        last = max((row.step or 0 for row, _ in found), default=0)
        for row, reach in found:
            base = f"seed-{row.seed}/{row.site.rpartition('.head.')[0]}/{plane}"
            if (row.step or 0) != last or abs(_value(row)) <= reach or f"{base}/query" not in arrays[id(run)]:
                continue
            query, key = (arrays[id(run)][f"{base}/{side}"][-1, row.head, 0] for side in ("query", "key"))
            agreed += bool(np.sign(query @ key) == np.sign(_value(row)))
            total += 1
    if not total:
        return NOTHING
    return Seen(agreed > 0.9 * total, f"{agreed} of {total} heads beyond the null keep their sign in the plane")


CHECKS: dict[str, Callable[..., Seen]] = {
    function.__name__: function
    for function in (
        every, last_site, ordered, at_start, above_isotropic, most_significant, falls_with_depth, falls_at_norm,
        output_above_input, crosses, narrows, along, first_half_lower, leaves_null, both_directions, plane_agrees,
    )
}  # fmt: skip
