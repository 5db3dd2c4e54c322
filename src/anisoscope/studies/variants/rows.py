"""From single trainings to the answer: means over blocks, over seeds, and paired differences from a control.

Trainings of one seed share their data, and variants of attention their initial weights too, so the seeds are pairs: the
difference of an arm to the control is taken within each seed, and its interval is Student's t over those differences.
With few seeds this is what can be seen and what cannot: t has 2 degrees of freedom for 3 seeds, and the half-width is
2.5 standard deviations of a difference.

Intervals are not corrected for the number of arms; of 20 comparisons without effect, one leaves zero out. The note of
each difference has its p-value, for the columns of the summary also Holm's over all arms and columns, and the smallest
bound within which equivalence can be claimed (`inference.contrasts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from anisoscope.geometry.nulls.isotropic import cosine_mean_absolute
from anisoscope.inference.contrasts import equivalence_bound, holm, interval_over_draws, paired_p
from anisoscope.runs.table import Row
from anisoscope.studies.variants.story import BLOCKS, COLUMNS, DIFFERENCE, summary
from anisoscope.training.recipe import Recipe

AVERAGED = (
    *("mean_cosine", "entropy_normalised", "max_probability", "query_drift_ratio", "key_drift_ratio"),
    *("query_key_alignment", "salience_share", "sink_share", "isoscore"),
)


def alignment_rows(rows: Sequence[Row], *, width: int) -> list[Row]:
    """|cos(Q̄, K̄)| averaged over the heads of each layer: heads that align and heads that oppose both count.

    The null is the mean of |cos| between independent isotropic directions, Γ(d/2) / (√π Γ((d+1)/2)).

    >>> heads = [Row(site=f"block.0.head.{h}", layer=0, head=h, metric="query_key_cosine", value=(-1) ** h * 0.5)
    ...          for h in range(4)]
    >>> [(row.site, row.value, round(row.null, 4)) for row in alignment_rows(heads, width=24)]
    [('block.0', 0.5, 0.1646)]
    """
    null = cosine_mean_absolute(width) if width > 1 else 1.0
    by_layer: dict[str, list[Row]] = {}
    for row in rows:
        if row.metric == "query_key_cosine" and row.head is not None and row.value is not None:
            by_layer.setdefault(row.site.rsplit(".head.", 1)[0], []).append(row)
    return [
        replace(
            heads[0],
            site=site,
            head=None,
            metric="query_key_alignment",
            value=sum(abs(row.value or 0.0) for row in heads) / len(heads),
            low=None,
            high=None,
            null=null,
            note="mean of |cos| over heads",
        )
        for site, heads in by_layer.items()
    ]


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
            blocks[0],
            site=BLOCKS,
            layer=None,
            value=_mean(blocks),
            low=None,
            high=None,
            n=None,
            note=f"mean over {len(blocks)} blocks",
        )
        for blocks in groups.values()
    ]


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
    """Each arm minus the control, seed by seed: the mean of the differences, its interval, and its tests as a note."""
    found = _paired(rows, control)
    p, corrected = _tests(found)
    changes = []
    for place, (row, values) in enumerate(found):
        tests = [f"p {p[place]:.2g}"] if place in p else []
        tests += [f"{corrected[place]:.2g} by Holm over {len(corrected)}"] if place in corrected else []
        bound = equivalence_bound(values)
        tests += [] if bound is None else [f"equivalent within ±{bound:.3g}"]
        changes.append(replace(row, note="; ".join([row.note, *tests])))
    return changes


def _paired(rows: Sequence[Row], control: str) -> list[tuple[Row, list[float]]]:
    """The mean difference of every arm, site and metric to the control, and the differences of its seeds."""
    groups = _by_seed(rows)
    found: list[tuple[Row, list[float]]] = []
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
        found.append((replace(like, metric=f"{like.metric}{DIFFERENCE}", value=mean, low=low, high=high), values))
    return found


def _tests(found: Sequence[tuple[Row, list[float]]]) -> tuple[dict[int, float], dict[int, float]]:
    """The p-values of differences by their place; those of the summary, one family, by Holm too."""
    family = {(site, metric + DIFFERENCE) for site, metric, _ in COLUMNS}
    p = {place: value for place, (_, values) in enumerate(found) if (value := paired_p(values)) is not None}
    told = [place for place in p if (found[place][0].site, found[place][0].metric) in family]
    return p, dict(zip(told, holm([p[place] for place in told]), strict=True))


def _by_seed(rows: Sequence[Row]) -> dict[tuple[str, ...], dict[int, Row]]:
    """The row of each seed, by arm, site, metric and positions; rows of single heads are left out."""
    groups: dict[tuple[str, ...], dict[int, Row]] = {}
    for row in rows:
        if row.head is None and row.value is not None and row.seed is not None:
            groups.setdefault((row.model, row.site, row.metric, row.positions), {})[row.seed] = row
    return groups


def _mean(rows: Sequence[Row]) -> float:
    return sum(row.value for row in rows if row.value is not None) / len(rows)


def comparable(changes: Sequence[Row], recipes: Mapping[str, Recipe], *, control: str) -> list[Row]:
    """Differences without those of losses of different tasks, which cannot be subtracted."""
    task = {arm: (r.objective, r.causal, r.tokens, r.vocabulary, r.mask) for arm, r in recipes.items()}
    return [row for row in changes if not row.metric.startswith("validation") or task[row.model] == task[control]]


def verdict(rows: Sequence[Row], *, control: str) -> str:
    """Each arm against the control: is the mean cosine lower, is the attention as sharp, what does it cost?

    "Lower" and "higher" need a Holm p below 0.05 over all arms and columns. Many arms are listed metric by metric.
    """
    lines = summary(rows)
    seeds = len({row.seed for row in rows if row.seed is not None})
    over = "one seed, so no intervals" if seeds == 1 else f"{seeds} seeds"
    first = f"Control {control}: {', '.join(_level(lines[control], name) for name in _levels(lines[control]))} ({over})"
    found = _paired(rows, control)
    corrected = _tests(found)[1]
    sure = {(found[place][0].model, found[place][0].metric) for place, p in corrected.items() if p < SIGNIFICANT}
    arms = {arm: line for arm, line in lines.items() if arm != control}
    if len(arms) > FEW and corrected:
        return f"{first}. By Holm's test over {len(corrected)} differences, {_by_metric(arms, sure)}."
    return "; ".join([first, *(f"{arm}: {_changes(arm, line, sure)}" for arm, line in arms.items())]) + "."


def _by_metric(arms: Mapping[str, Mapping[str, Row]], sure: Set[tuple[str, str]]) -> str:
    """`mean cosine differs in muon_clip (-0.076) and coupled_adam (+0.122), loss in none`."""
    words = []
    for metric, name in _NAMED.items():
        there = {arm: row for arm, line in arms.items() if (row := line.get(metric + DIFFERENCE)) is not None}
        if not there:
            continue
        told = sorted((row.value or 0.0, arm) for arm, row in there.items() if (arm, row.metric) in sure)
        listed = _and([f"{arm} ({value:+.3f})" for value, arm in told]) or "none"
        words.append(f"{name}{'' if words else ' differs'} in {listed}")
    return ", ".join(words)


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


_NAMED = {"validation_loss": "loss", "mean_cosine": "mean cosine", "entropy_normalised": "entropy"}
FEW, SIGNIFICANT = 3, 0.05


def _levels(line: Mapping[str, Row]) -> list[str]:
    return [metric for metric in _NAMED if metric in line]


def _level(line: Mapping[str, Row], metric: str) -> str:
    return f"{_NAMED[metric]} {line[metric].value:.3f}"


def _changes(arm: str, line: Mapping[str, Row], sure: Set[tuple[str, str]]) -> str:
    """`mean cosine lower by 0.197 ± 0.05, loss and entropy not seen to differ`."""
    seen, unseen, apart = [], [], []
    for metric in _levels(line):
        row = line.get(f"{metric}{DIFFERENCE}")
        if row is None or row.value is None:
            apart.append(_level(line, metric))
        elif row.low is None or row.high is None:
            seen.append(f"{_NAMED[metric]} {row.value:+.3f}")
        elif (arm, row.metric) in sure:
            side = "higher" if row.value > 0 else "lower"
            seen.append(f"{_NAMED[metric]} {side} by {abs(row.value):.3f} ± {row.high - row.value:.3f}")
        else:
            unseen.append(_NAMED[metric])
    same = _and(unseen)
    return ", ".join([*seen, *([f"{same} not seen to differ"] if same else []), *apart])
