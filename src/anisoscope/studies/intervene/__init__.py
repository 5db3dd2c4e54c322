"""Remove part of the drift while the model runs, and see what that changes.

Causes, not correlations. Passes over the same windows: the first ones measure what will be taken away (`measuring`),
the last runs each window untouched and then once for each intervention (`outcomes`):

| intervention | what it does |
|---|---|
| `mean_query`, `mean_key` | q − Q̄, k − K̄, of the vectors that are scored (with `before_rotary`: before rotation) |
| `mean_hidden` | the mean of the states after each block becomes 0 |
| `drift@0.5`, `drift@2` | it becomes half, twice what it is in the untouched model |
| `top_components` | x without its top d/100 principal components about the mean |
| `final_norm_bias` | the bias of the final norm set to 0 |

States are changed after the first position of each window, which is apart in many models (attention sinks); queries and
keys everywhere. Each intervention has a control, `….control`: as much in random directions. Queries and keys: a random
direction of the norm of each mean. States: the same displacements and axes, all turned by one random rotation.

Softmax cannot see a constant taken from the keys that are scored (q·K̄ is the same for every key), with rotary positions
or without, so `mean_key` must change nothing: that is the built-in check. Before rotation a mean key is not a constant:
it turns with the position.

Cost, in forward passes per window: one for the means; one, and one for each kind of shifted state (`mean_hidden`,
`drift@…`), for the shifts; one untouched, and one for each intervention and each control.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from anisoscope.errors import UsageError
from anisoscope.runs.job import Job
from anisoscope.runs.settings import LARGEST_SEED, Data, Model, option
from anisoscope.runs.study import RUNS_MODEL, Findings, Study, words_of
from anisoscope.runs.table import Row
from anisoscope.runs.work.collected import Collected
from anisoscope.studies.intervene.story import story

Name = Literal["mean_query", "mean_key", "mean_hidden", "drift@0.5", "drift@2", "top_components", "final_norm_bias"]
NAMES = list(get_args(Name))
FACTORS = {"mean_hidden": 0.0, "drift@0.5": 0.5, "drift@2": 2.0}
INVISIBLE = 1e-6  # nats: what rounding in single precision leaves of a KL divergence that is 0
TOLD = 2  # interventions in the sentence; all are in the table


class InterveneSettings(Model, Data):
    """What `anisoscope intervene` is asked."""

    what: list[Name] = option("Interventions; those that the model does not allow are left out.", NAMES, min_length=1)
    layers: str = option("Pattern of the blocks to change, all at once.", "*block.*")
    before_rotary: bool = option("Means of queries and keys before rotation.", False)
    head: bool = option("Open the model with its language-model head, to see the loss.", True)
    seed: int = option("Seed of the controls' directions.", 0, ge=0, le=LARGEST_SEED)


def collect(job: Job) -> Collected:
    """The passes: means, shifts, outcomes. Each needs all of the one before it, so there are no shards."""
    from anisoscope.studies.intervene.passes import intervene

    if job.machine.shard is not None or job.unit is not None:
        raise UsageError(
            "interventions remove means over all data, so they have no shards", do="share the work with torchrun"
        )
    return {label: intervene(job, label, model) for label, model in job.models(head=job.settings.head)}


def conclude(settings: InterveneSettings, collected: Collected) -> Findings:
    """The rows of every intervention and its control; `site` is the intervention."""
    from anisoscope.studies.intervene.outcomes import UNTOUCHED, outcome_rows
    from anisoscope.studies.intervene.sums import Sums

    rows: list[Row] = []
    for label, part in collected.items():
        sums = part.sums["outcomes"]
        assert isinstance(sums, Sums)
        like = Row(model=label, revision=part.about["model"]["revision"], protocol=words_of(part.about["protocol"]))
        planned = [UNTOUCHED, *(f"{one}{end}" for one in dict.fromkeys(settings.what) for end in ("", ".control"))]
        layers = [name for name, _ in part.about["sites"]]
        present = sums.of("state")
        rows += [row for name in planned if name in present for row in outcome_rows(sums, name, layers, like)]
    return Findings(rows, verdict(rows))


def verdict(rows: Sequence[Row]) -> str:
    """What does most beyond its control, and whether the mean key was invisible."""
    value = {(row.site, row.metric): row.value for row in rows}
    asked = ("untouched", "loss") in value
    metric = "loss_change" if asked else "last_cosine_change"
    base = value["untouched", metric.removesuffix("_change")]
    shown = "missing" if base is None else f"{base:.3f}{' nats' if asked else ''}"
    what = "loss" if asked else "average cosine at the last block"
    names = [row.site for row in rows if row.metric == metric and not row.site.endswith((".control", "untouched"))]
    known: dict[str, tuple[float, float]] = {}
    for name in names:
        own, control = value[name, metric], value[f"{name}.control", metric]
        if own is not None and control is not None:
            known[name] = own, control
    furthest = sorted(known.items(), key=lambda one: -abs(one[1][0] - one[1][1]))[:TOLD]
    told = [f"{name} {own:+z.3f} (control {control:+z.3f})" for name, (own, control) in furthest]
    said = [f"the {what} of the untouched model is {shown}"]
    said += [f"furthest from the control: {', '.join(told)}"] if told else []
    divergence = value.get(("mean_key", "kl"))
    if divergence is not None:
        visible = "invisible" if abs(divergence) < INVISIBLE else "visible"
        said.append(f"the mean key is {visible} to softmax (KL {divergence:.2g} nats)")
    return f"T{'; '.join(said)[1:]}."


STUDY = Study(
    InterveneSettings,
    collect=collect,
    conclude=conclude,
    story=story,
    machine=RUNS_MODEL,
    keeps_sums=False,
    help="""
Remove part of the drift while the model runs, and see what that changes: loss, KL, entropy, cosine.

Each intervention has a control: as large a change in random directions. To continue a killed run, give the same
command again.

Examples:
  anisoscope intervene gpt2 --data texts/ --limit 20
  anisoscope intervene bert-base-uncased --what mean_query,mean_key --layers 'block.[0-3]'
  anisoscope intervene EleutherAI/pythia-70m --before-rotary --what mean_query
""",
)
