"""The passes of the study, one after the other: means, shifts, outcomes. Each is saved on its way and can be continued.

On several processes each of them sums its share of every pass, and all of them continue with the means of all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from anisoscope.capture.attention.fallbacks import uses_interface
from anisoscope.capture.output import batch_positions
from anisoscope.capture.sites import Site, choose_sites, find_sites
from anisoscope.errors import UsageError
from anisoscope.studies.intervene import FACTORS
from anisoscope.studies.intervene.edits import Intervention, Means, final_bias
from anisoscope.studies.intervene.measuring import MeanSums, ShiftSums, add_means, add_shifts
from anisoscope.studies.intervene.outcomes import UNTOUCHED, add_outcomes
from anisoscope.studies.intervene.sums import Sums
from anisoscope.studies.intervene.task import Task, make_task

if TYPE_CHECKING:
    from anisoscope.models.open import OpenModel
    from anisoscope.runs.job import Job
    from anisoscope.runs.work.collected import Part


def intervene(job: Job, label: str, model: OpenModel) -> Part:
    """Run every intervention and its control; the part holds their outcomes."""
    settings = job.settings
    blocks = chosen_blocks(model.module, settings.layers)
    positions = job.machine.batch_tokens or batch_positions(model.module)

    def passed(what: str, make: Callable[[], Sums], add: Callable[[Any, Task], None]) -> Part:
        return job.run(
            f"{label} {what}",
            model,
            lambda: {what: make()},
            each=lambda sums, batch: add(sums[what], make_task(model, batch)),
            batch_tokens=positions,
        )

    # queries and keys can be changed where attention goes through the interface, not where projections are watched
    attention = any(uses_interface(part) for part in model.module.modules())
    options = {"attention": attention, "before_rotary": settings.before_rotary}
    found = passed("means", MeanSums, lambda sums, task: add_means(sums, model, task, blocks, **options))
    mine = cast("MeanSums", found.sums["means"]).means(blocks, before_rotary=settings.before_rotary)
    means = job.engine.agreed(mine)
    names = [name for name in dict.fromkeys(settings.what) if _possible(name, model.module, means)]
    left_out = [name for name in settings.what if name not in names]
    job.notes += [f"left out, since this model has nothing to change there: {', '.join(left_out)}"] if left_out else []

    sources = sources_of(names, means, seed=settings.seed)
    wanted = {name: (FACTORS[_kind(name)], one.hidden) for name, one in sources.items() if _kind(name) in FACTORS}
    shifts: dict[str, Any] = {}
    if wanted:
        found = passed("shifts", ShiftSums, lambda sums, task: add_shifts(sums, model, task, blocks, wanted))
        moved = cast("ShiftSums", found.sums["shifts"])
        shifts = job.engine.agreed({name: moved.shifts(name) for name in wanted})

    changes = [Intervention(UNTOUCHED, means)]
    changes += [Intervention(name, one, shifts.get(name, {}), means.hidden) for name, one in sources.items()]
    about = {"protocol": protocol(settings), "sites": attention_sites(model.module)}
    return passed("outcomes", lambda: Sums(about), lambda sums, task: add_outcomes(sums, model, task, changes, blocks))


def chosen_blocks(module: nn.Module, pattern: str) -> list[Site]:
    """The blocks to change."""
    blocks = [site for site in choose_sites(find_sites(module), [pattern]) if site.kind == "block"]
    if not blocks:
        raise UsageError("no block has such a name", got=repr(pattern), expected="a pattern such as 'block.[0-3]'")
    return blocks


def sources_of(names: list[str], means: Means, *, seed: int) -> dict[str, Means]:
    """The means of every intervention, and of its control those in random directions."""
    turned = means.turned(seed)
    return {name: source for one in names for name, source in ((one, means), (f"{one}.control", turned))}


def _kind(name: str) -> str:
    return name.removesuffix(".control")


def _possible(name: str, module: nn.Module, means: Means) -> bool:
    if name in ("mean_query", "mean_key"):
        return bool(means.queries)
    if name == "final_norm_bias":
        return final_bias(module) is not None
    return name != "top_components" or bool(means.axes)


def attention_sites(module: nn.Module) -> list[list[Any]]:
    """Every site whose attention may be seen, in order of computation, with its layer."""
    blocks = [site for site in find_sites(module) if site.kind == "block"]
    return [[f"{site.name}{end}", site.layer] for site in blocks for end in ("", ".cross")]


def protocol(settings: Any) -> dict[str, str]:
    """What counted, in words."""
    rotary = "before" if settings.before_rotary else "after"
    return {
        "blocks": settings.layers,
        "means": "of the same windows, in passes before",
        "queries and keys": f"{rotary} rotation",
        "states": "all positions of a window but the first; their shifts are found batch by batch and averaged",
    }
