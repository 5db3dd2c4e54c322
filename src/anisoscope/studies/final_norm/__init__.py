"""What the last norm of a model does to its geometry, with ablations.

The place where the two papers look differently. *Anisotropy is Not Inherent to Transformers* calls a model isotropic by
what comes out of its final LayerNorm, y = g·x̂ + b, and explains it by a small ‖b‖/‖g‖; the other paper looks at every
layer. Here, for one model or a series of checkpoints,

- ‖g‖, ‖b‖, ‖b‖/‖g‖ of every norm, and the mean cosine r²/(1 + r²) that it alone would imply (`norms`);
- every site measured, so that the cosine (all pairs, between and within sequences), the drift, the spectrum and the
  outlier dimensions can be read before and after the norm. The norm that counts is the final one; where a model has
  none (post-norm: BERT) it is the one that each block ends in, with the vectors before it at `block.K.before_norm`;
- ablations in place (`rows`): the norm with b = 0, with g = 1, and on vectors whose common mean was removed before it.

Cost: one pass of the model over the data; the ablations are a few products of the sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from anisoscope.runs.job import Job
from anisoscope.runs.settings import Data, Models, Sample
from anisoscope.runs.story import Story, Table, digits
from anisoscope.runs.study import Findings, Study, shared_kinds
from anisoscope.runs.table import Row
from anisoscope.runs.work.collected import Collected

ABLATIONS = {"without_bias": "with b = 0", "unit_gain": "with g = 1", "mean_removed": "with the mean removed before it"}


class FinalNormSettings(Models, Data, Sample):
    """What `anisoscope final-norm` is asked."""


def collect(job: Job) -> Collected:
    """One pass for each model; its norms are kept beside the sums."""
    from anisoscope.capture.hidden import HiddenCapture
    from anisoscope.models.checkpoints import steps_of
    from anisoscope.models.devices import sums_device
    from anisoscope.runs.work.observers import HiddenSums
    from anisoscope.studies.final_norm.norms import find_norms
    from anisoscope.studies.final_norm.rows import keep_norms

    settings, parts = job.settings, {}
    made = {"sample": settings.sample, "seed": settings.seed, "device": sums_device(job.machine.device)}
    for (label, model), step in zip(job.models(), steps_of(settings.models), strict=True):
        norms, sites = find_norms(model.module)

        def observers(module: Any = model.module, sites: Any = sites) -> dict[str, Any]:
            capture = HiddenCapture(module)
            capture.sites = sites
            return {"hidden": HiddenSums(capture, **made)}

        part = parts[label] = job.run(label, model, observers)
        part.about["step"] = step
        keep_norms(part, norms)
    return parts


def conclude(settings: FinalNormSettings, collected: Collected) -> Findings:
    """Every site of every model, its norms, and the ablations of the norms that close."""
    from anisoscope.studies.final_norm.rows import norms_rows
    from anisoscope.studies.measure.hidden import site_rows

    rows: list[Row] = []
    notes: dict[str, list[str]] = {}
    for label, part in collected.items():
        shared = {"model": label, "revision": part.about["model"]["revision"], "step": part.about["step"]}
        sites = site_rows(part, label, neighbours=False, step=part.about["step"])
        found, apart = norms_rows(part, sites.rows)
        rows += [*sites.rows, *(replace(row, **shared) for row in found)]
        notes[label] = [*sites.notes, *apart]
    return Findings(rows, verdict(rows), notes_of=notes)


def kinds() -> Mapping[str, Any]:
    from anisoscope.studies.final_norm.rows import NormParameters

    return {**shared_kinds(), "norms": NormParameters}


def verdict(rows: Sequence[Row]) -> str:
    """The last closing norm (at the last step): what is measured around it, what it implies, what ablations leave."""
    last = max((row.step for row in rows if row.step is not None), default=None)
    models = list(dict.fromkeys(row.model for row in rows if row.step == last))
    sentences = [_sentence([row for row in rows if row.model == model and row.step == last]) for model in models]
    if len(models) > 1:
        return " ".join(f"{model}: {sentence}" for model, sentence in zip(models, sentences, strict=True))
    return sentences[0] if last is None else f"At step {last:,}, {sentences[0]}"


def _sentence(rows: Sequence[Row]) -> str:
    value = {(row.site, row.metric): row.value for row in rows if row.positions == "all"}
    closed = [site for site, metric in value if metric == "cosine_above_implied"]
    if not closed:
        return "No norm closes the stack or its blocks."
    site = closed[-1]
    tried = {
        "as_it_is": "as it is",
        **{name: words for name, words in ABLATIONS.items() if _changes(name, value, site)},
    }
    sampled = ", ".join(f"{_words(value[f'{site}.{name}', 'mean_cosine'])} {words}" for name, words in tried.items())
    return (
        f"{site}: mean cosine {_words(value[site, 'mean_cosine_before'])} before the norm and "
        f"{_words(value[site, 'mean_cosine'])} after it, where gain and bias alone imply "
        f"{_words(value[site, 'implied_cosine'])}; in a sample {sampled}."
    )


def _changes(ablation: str, value: Mapping[Any, float | None], site: str) -> bool:
    """Whether an ablation changes anything: a norm without bias is what it is with b = 0."""
    return ablation != "without_bias" or value[site, "bias_over_gain"] is not None


def _words(value: float | None) -> str:
    return "missing" if value is None else f"{value:.3g}"


_COLUMNS = {"bias_over_gain": "‖b‖/‖g‖", "implied_cosine": "implied", "mean_cosine_before": "before"}
_COLUMNS |= {"mean_cosine": "after"}
_ABLATED = {"as_it_is": "sample", "without_bias": "b = 0", "unit_gain": "g = 1", "mean_removed": "no mean"}


def story(rows: Sequence[Row]) -> Story:
    """One line for each norm that closes: its bias, implied and measured cosine, ablations; all norms on request.

    The ablations stand beside the norm as it is on the same sample.
    A series is one table, by step; other models have one each.
    """
    kept = [row for row in rows if row.positions == "all" and row.at is None]
    if any(row.step is not None for row in kept):
        return _tables(kept)
    models = dict.fromkeys(row.model for row in kept)
    told = [_tables([row for row in kept if row.model == model], of=model) for model in models]
    return Story([table for one in told for table in one.tables], more=[table for one in told for table in one.more])


def _tables(rows: Sequence[Row], of: str = "") -> Story:
    cells = {(row.step, row.site, row.metric): row.value for row in rows}
    first = ("site",) if of else ("step", "site")

    def table(marks: str, columns: Sequence[str], values: Any, title: str) -> Table:
        places = [(step, site) for step, site, metric in cells if metric == marks]
        found = {place: [digits(value, "z.4f") for value in values(*place)] for place in places}
        body = [[*([] if of else [f"{step:,}"]), site, *shown] for (step, site), shown in found.items()]
        return Table((*first, *columns), body, title=f"{title} of {of}" if of else title, text=len(first))

    def around(step: int | None, site: str) -> list[float | None]:
        value = {(at, metric): found for (s, at, metric), found in cells.items() if s == step}
        after = [
            value.get((f"{site}.{name}", "mean_cosine")) if _changes(name, value, site) else None for name in _ABLATED
        ]
        return [*(cells.get((step, site, metric)) for metric in _COLUMNS), *after]

    def parameters(step: int | None, site: str) -> list[float | None]:
        return [cells.get((step, site, metric)) for metric in ("gain_norm", "bias_norm", *list(_COLUMNS)[:2])]

    closing = table(
        "cosine_above_implied", (*_COLUMNS.values(), *_ABLATED.values()), around, "mean cosine around norms"
    )
    names = ("‖g‖", "‖b‖", "‖b‖/‖g‖", "implied")
    return Story([closing], more=[table("gain_norm", names, parameters, "parameters of all norms")])


STUDY = Study(
    FinalNormSettings,
    collect=collect,
    conclude=conclude,
    kinds=kinds,
    story=story,
    keeps_sums=False,
    help="""
What the norms do: gains and biases, the cosine that they alone imply, cosine before and after, ablations.

The final norm, or where there is none (BERT) the norm that every block ends in: measured before and after it, with its
bias at zero, with its gain at one, and with the common mean removed before it. Checkpoints of one training (names that
differ only in their step) are distinguished by step.

Examples:
  anisoscope final-norm EleutherAI/pythia-70m
  anisoscope final-norm gpt2 --data texts/ --limit 200
  anisoscope final-norm series/seed-0/checkpoint-* --length 128
""",
)
