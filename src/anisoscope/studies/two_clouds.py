"""Two clouds of vectors (`vectors A --against B`): images and texts, queries and documents, old and new.

Each cloud is measured alone; beside that come the gap between their means, the cosine between them and the axes that
they share. Where row i of one belongs to row i of the other (`--aligned`), a third pass reads both side by side, and
says how alike the clouds are up to a rotation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from anisoscope.errors import UsageError
from anisoscope.runs.story import Story, Table, interval, number, percent
from anisoscope.runs.table import Row

if TYPE_CHECKING:
    from anisoscope.inference.estimates import Estimate
    from anisoscope.inputs.vectors.source import VectorSource
    from anisoscope.runs.job import Job
    from anisoscope.runs.work.collected import Collected, Part

AGAINST, PAIR, OBSERVER = "against", "pair", "aligned"


def second_cloud(job: Job, first: VectorSource) -> VectorSource:
    """The second cloud: partners in the sequences of the first; else by its own column of groups, if it has one."""
    settings = job.settings
    if not settings.aligned and settings.group is not None:
        with suppress(UsageError):  # it has no such column
            return job.vectors(AGAINST, column=settings.column, group=settings.group)
    second = job.vectors(AGAINST, column=settings.column)
    if settings.aligned and first.grouped:
        from anisoscope.inputs.vectors.joined import Partners

        return Partners(first, second)
    return second


def sum_aligned(job: Job, first: VectorSource, second: VectorSource) -> Part:
    """The sums of the rows of two sources, read side by side."""
    from anisoscope.accumulate.aligned import Aligned
    from anisoscope.inputs.vectors.joined import Joined
    from anisoscope.runs.work.clouds import AlignedClouds, exact_rows

    def make() -> dict[str, Any]:
        sums = AlignedClouds()
        options = {"reservoir": job.settings.sample, "seed": job.settings.seed}
        sums.parts[PAIR] = Aligned(first.dim, second.dim, **options)
        return {OBSERVER: sums}

    def add(sums: dict[str, Any], block: Any) -> None:
        sums[OBSERVER].parts[PAIR].update(exact_rows(block), sequences=block.keys, start=block.start)

    return job.sum_vectors(PAIR, Joined(first, second), make, add)


def pair_estimates(collected: Collected, moments: Mapping[str, Any]) -> list[Estimate]:
    """Everything about the two clouds together; `moments` by label."""
    from anisoscope.inference import two_clouds

    sums = [moments[label].sums() for label in ("", AGAINST)]
    if PAIR not in collected:
        return [*two_clouds.apart_estimates(*sums), *two_clouds.axes_estimates(*sums)]
    aligned = collected[PAIR].get(OBSERVER, PAIR)
    joint, cosines = aligned.moments.sums(), aligned.cosines
    found = two_clouds.apart_estimates(*sums, partners=(cosines, joint.group_n))
    partners = two_clouds.partners_of_sums(joint, aligned.moments.sample(), aligned.d, cosines)
    return [*found, *two_clouds.axes_estimates(*sums), *two_clouds.partner_estimates(partners)]


def sentence(estimates: Sequence[Estimate], within: Sequence[float | None]) -> str:
    """The gap and the cosines within and between, then how alike partners are."""
    value = {one.metric: one.value for one in estimates if one.value is not None}
    said = []
    if "gap_unit" in value:
        inside = " and ".join(number(one) for one in within)
        said.append(f"The average cosine is {inside} within the clouds, {number(value['cosine_between'])} between them")
        said.append(f"their mean directions lie {number(value['gap_unit'])} apart")
    if "linear_cka" in value:
        words = f"partners have cosine {number(value['partner_cosine'])}, " if "partner_cosine" in value else ""
        kept = (
            f", and {percent(value['neighbour_overlap'])} of neighbours are shared"
            if "neighbour_overlap" in value
            else ""
        )
        said.append(f"{words}linear CKA is {number(value['linear_cka'])}{kept}")
    text = "; ".join(said) or "The clouds have different dimensions and no partners: nothing compares them"
    return f"{text[0].upper()}{text[1:]}."


def story(rows: Sequence[Row]) -> Story:
    """What the two clouds have to do with each other, then each alone."""
    from anisoscope.inference.metrics import METRICS

    pair = [row for row in rows if row.site == PAIR and row.value is not None]
    body = [
        [
            METRICS[row.metric].label + ("" if row.at is None else f", k = {row.at:.0f}"),
            number(row.value),
            interval(row),
            "" if row.null is None else number(row.null),
        ]
        for row in pair
    ]
    alone = [
        [METRICS[name].label, *(_value(rows, site, name) for site in ("vectors", AGAINST))]
        for name in ("mean_cosine", "drift_ratio", "participation_ratio_unbiased", "mean_norm", "dimension")
    ]
    return Story(
        [
            Table(("", "value", "95 % interval", "by chance"), body, title="two clouds"),
            Table(("", "first", "second"), alone, title="each alone"),
        ]
    )


def _value(rows: Sequence[Row], site: str, metric: str) -> str:
    found = [row.value for row in rows if (row.site, row.metric, row.positions) == (site, metric, "all")]
    return number(found[0] if found else None)
