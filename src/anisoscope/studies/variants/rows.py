"""From the rows of single trainings to the answer: means over blocks, over seeds, and paired differences to a control.

Trainings of one seed share their data, and variants of attention their initial weights too, so the seeds are pairs: the
difference of an arm to the control is taken within each seed, and its interval is Student's t over those differences.
With few seeds this is what can be seen and what cannot: t has 2 degrees of freedom for 3 seeds, and the half-width is
2.5 standard deviations of a difference.

Intervals are not corrected for the number of arms; of 20 comparisons without effect, one leaves zero out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from anisoscope.runs.table import Row
from anisoscope.studies.block.rows import interval_over_draws

BLOCKS = "blocks"
"""The site of what is averaged over all blocks of a model."""

AVERAGED = (
    "mean_cosine", "entropy_normalised", "max_probability", "query_drift_ratio", "key_drift_ratio",
    "query_key_alignment", "salience_share", "sink_share",
)  # fmt: skip

COLUMNS = (
    ("", "validation_loss", "loss"),
    (BLOCKS, "mean_cosine", "mean cosine"),
    (BLOCKS, "entropy_normalised", "entropy / log T"),
    (BLOCKS, "max_probability", "max p"),
    (BLOCKS, "query_drift_ratio", "query drift"),
    (BLOCKS, "query_key_alignment", "|cos(Q̄, K̄)|"),
)
"""The columns of the summary: site, metric, heading."""

DIFFERENCE = "_difference"
"""What the name of a metric ends with where the value is an arm minus the control."""


def alignment_rows(rows: Sequence[Row], *, width: int) -> list[Row]:
    """|cos(Q̄, K̄)| averaged over the heads of each layer: heads that align and heads that oppose both count.

    The null is the mean of |cos| between independent isotropic directions, Γ(d/2) / (√π Γ((d+1)/2)).

    >>> heads = [Row(site=f"block.0.head.{h}", layer=0, head=h, metric="query_key_cosine", value=(-1) ** h * 0.5)
    ...          for h in range(4)]
    >>> [(row.site, row.value, round(row.null, 4)) for row in alignment_rows(heads, width=24)]
    [('block.0', 0.5, 0.1646)]
    """
    null = math.exp(math.lgamma(width / 2) - math.lgamma((width + 1) / 2)) / math.sqrt(math.pi)
    by_layer: dict[str, list[Row]] = {}
    for row in rows:
        if row.metric == "query_key_cosine" and row.head is not None and row.value is not None:
            by_layer.setdefault(row.site.rsplit(".head.", 1)[0], []).append(row)
    return [
        replace(
            heads[0], site=site, head=None, metric="query_key_alignment", low=None, high=None, null=null,
            value=sum(abs(row.value or 0.0) for row in heads) / len(heads), note="mean of |cos| over heads",
        )
        for site, heads in by_layer.items()
    ]  # fmt: skip


def block_rows(rows: Sequence[Row]) -> list[Row]:
    """For each arm and seed, the metrics of the summary averaged over the blocks.

    >>> rows = [Row(model="gated", seed=0, site=f"block.{k}", layer=k, metric="mean_cosine", value=v)
    ...         for k, v in enumerate((0.1, 0.3))]
    >>> [(row.site, row.layer, row.value) for row in block_rows(rows)]
    [('blocks', None, 0.2)]
    """
    groups: dict[tuple[str, int | None, str], list[Row]] = {}
    for row in rows:
        if row.metric in AVERAGED and row.layer is not None and row.head is None and row.value is not None:
            groups.setdefault((row.model, row.seed, row.metric), []).append(row)
    return [
        replace(
            blocks[0], site=BLOCKS, layer=None, value=_mean(blocks), low=None, high=None, n=None,
            note=f"mean over {len(blocks)} blocks",
        )
        for blocks in groups.values()
    ]  # fmt: skip


def averages(rows: Sequence[Row]) -> list[Row]:
    """The mean over seeds of every measurement of an arm (not of single heads), with its interval over seeds."""
    found = []
    for group in _by_seed(rows).values():
        seeds = list(group.values())
        low, high = interval_over_draws([row.value for row in seeds if row.value is not None])
        note = f"mean of {len(seeds)} seeds"
        found.append(replace(seeds[0], seed=None, value=_mean(seeds), low=low, high=high, note=note))
    return found


def differences(rows: Sequence[Row], *, control: str) -> list[Row]:
    """Each arm minus the control, seed by seed: the mean of the differences and its interval."""
    groups = _by_seed(rows)
    found = []
    for (arm, *place), group in groups.items():
        reference = groups.get((control, *place), {})
        pairs = [(group[seed].value, reference[seed].value) for seed in group if seed in reference]
        values = [mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None]
        if arm == control or not values:
            continue
        low, high = interval_over_draws(values)
        note = f"minus {control}, paired by {len(values)} seeds"
        like = replace(next(iter(group.values())), seed=None, null=0.0, n=None, note=note)
        mean = sum(values) / len(values)
        found.append(replace(like, metric=f"{like.metric}{DIFFERENCE}", value=mean, low=low, high=high))
    return found


def _by_seed(rows: Sequence[Row]) -> dict[tuple[str, ...], dict[int, Row]]:
    """The row of each seed, by arm, site, metric and positions; rows of single heads are left out."""
    groups: dict[tuple[str, ...], dict[int, Row]] = {}
    for row in rows:
        if row.head is None and row.value is not None and row.seed is not None:
            groups.setdefault((row.model, row.site, row.metric, row.positions), {})[row.seed] = row
    return groups


def _mean(rows: Sequence[Row]) -> float:
    return sum(row.value for row in rows if row.value is not None) / len(rows)


def summary(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """For each arm the averages of the columns of the summary, and their differences to the control, by metric."""
    places = {(site, metric + end) for site, metric, _ in COLUMNS for end in ("", DIFFERENCE)}
    lines: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row.seed is None and row.positions == "all" and (row.site, row.metric) in places:
            lines.setdefault(row.model, {})[row.metric] = row
    return lines


def verdict(rows: Sequence[Row], *, control: str) -> str:
    """Each arm against the control: is the mean cosine lower, is the attention as sharp, what does it cost?"""
    named = (("validation_loss", "loss"), ("mean_cosine", "mean cosine"), ("entropy_normalised", "entropy"))
    words = []
    for arm, line in summary(rows).items():
        parts = [
            _phrase(name, line[metric], line.get(f"{metric}{DIFFERENCE}")) for metric, name in named if metric in line
        ]
        words.append(f"{arm}{' (control)' if arm == control else ''}: {', '.join(parts)}")
    return "; ".join(words)


def _phrase(name: str, row: Row, difference: Row | None) -> str:
    """`loss 2.104`, with `(higher)` or `(lower)` where the interval of the difference leaves zero out."""
    side = ""
    if difference is not None and difference.low is not None and difference.high is not None:
        side = " (higher)" if difference.low > 0 else " (lower)" if difference.high < 0 else ""
    return f"{name} {row.value:.3f}{side}"
