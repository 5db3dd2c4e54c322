"""What the last norm of a model does to its geometry: the place where the two papers look differently.

*Anisotropy is Not Inherent to Transformers* calls a model isotropic by what comes out of its final LayerNorm,
y = g·x̂ + b, and explains it by a small ‖b‖/‖g‖; the other paper looks at every layer. Here, for one model or a
series of checkpoints,

- ‖g‖, ‖b‖, ‖b‖/‖g‖ of every norm, and the mean cosine r²/(1 + r²) that it alone would imply (`norms`);
- every site measured, so that the cosine (all pairs, between and within sequences), the drift, the spectrum and the
  outlier dimensions can be read before and after the norm. The norm that counts is the final one; where a model has
  none (post-norm: BERT) it is the one that each block ends in, with the vectors before it at `block.K.before_norm`;
- ablations in place: the norm with b = 0, with g = 1, and on vectors whose common mean was removed before it.

The ablations run on the seeded sample of vectors (`n` says how many), all pairs of it, beside the same sample
`as_it_is`.

Cost: one pass of the model over the data; the ablations are a few products of the sample.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field

from anisoscope.accumulate.moments import Moments
from anisoscope.accumulate.reservoir import Sample
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.capture.sites import Site
from anisoscope.errors import ModelError
from anisoscope.inference.directions import direction_estimates
from anisoscope.models.batches.plan import make_batches
from anisoscope.runs.engine import SumSettings, run_pass
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.plan import Settings, default_folder, reuse_or_begin
from anisoscope.runs.store import Existing
from anisoscope.runs.table import Row, to_table
from anisoscope.studies.checkpoints import open_checkpoints
from anisoscope.studies.final_norm.norms import Norm, find_norms
from anisoscope.studies.measure.study import Machine, MeasureSettings, open_data, site_rows
from anisoscope.studies.vocabulary import Series

if TYPE_CHECKING:
    import pyarrow as pa

    from anisoscope.models.open import OpenModel

ABLATIONS = ("as_it_is", "without_bias", "unit_gain", "mean_removed")
_IN_WORDS = {"without_bias": "with b = 0", "unit_gain": "with g = 1", "mean_removed": "with the mean removed before"}
_AFTER_ABLATION = ("mean_cosine", "mean_cosine_inter", "mean_cosine_intra", "drift_ratio")
_AGREEMENT = 1e-2  # relative distance up to which a norm is what it was taken for


class FinalNormSettings(Settings):
    """What `anisoscope final-norm` does; `models` are checkpoints in order."""

    command = "final-norm"

    models: list[str]
    data: list[str] = Field(default_factory=list)
    documents: str = "auto"
    length: float | None = None
    limit: int | None = None
    sample: int = 4096
    seed: int = 0


@dataclass(frozen=True)
class FinalNormResult:
    """The rows of all steps, and what has to be said."""

    rows: list[Row]
    notes: tuple[str, ...]
    data: dict[str, Any]

    def table(self) -> pa.Table:
        return to_table(self.rows)


def measure_final_norms(
    settings: FinalNormSettings,
    *,
    machine: Machine | None = None,
    out: Path | None = None,
    existing: Existing = "resume",
) -> Measurement:
    """Open the models one after the other, study their norms and keep the run."""
    folder = out or default_folder(settings, name="+".join(Path(name).name for name in settings.models[:3]))
    finished = reuse_or_begin(folder, settings, existing=existing)
    if finished is not None:
        return Measurement.of_run(finished)
    started, machine = time.monotonic(), machine or Machine()
    options = {"device": machine.device, "models_dir": machine.models_dir}
    series = open_checkpoints(settings.models, trust_remote_code=machine.trust_remote_code, **options)
    result = final_norm_study(series, settings, machine=machine)
    run = Measurement(
        tuple(result.rows), verdict_on(result.rows), result.notes, None, settings.command, settings.as_dict(),
        {"pairs": "all pairs of different vectors", "ablations": f"sample of {settings.sample} vectors"}, result.data,
    ).save(folder, seconds=time.monotonic() - started)  # fmt: skip
    return Measurement.of_run(run)


def final_norm_study(
    series: Series, settings: FinalNormSettings | None = None, *, machine: Machine | None = None
) -> FinalNormResult:
    """Study the norms of each (step, model); the data is that of the settings, or what is embedded."""
    settings = settings or FinalNormSettings(models=[])
    rows: list[Row] = []
    notes: list[str] = []
    data: dict[str, Any] = {}
    for step, model in series:
        found, remarks, data = study_norms(model, settings, machine or Machine())
        rows += [replace(row, model=model.name, revision=model.revision, step=step) for row in found]
        notes += remarks
    return FinalNormResult(rows, tuple(dict.fromkeys(notes)), data)


def study_norms(
    model: OpenModel, settings: FinalNormSettings, machine: Machine
) -> tuple[list[Row], list[str], dict[str, Any]]:
    """One model: its norms, its sites, and the ablations of the norms that close."""
    norms = find_norms(model.module)
    plan = MeasureSettings(
        models=[], data=settings.data, documents=settings.documents, length=settings.length, limit=settings.limit,
        sample=settings.sample, seed=settings.seed, neighbours=False,
    )  # fmt: skip
    source = open_data(plan, model.modality)
    batches = make_batches(
        model, source, length=settings.length, batch_tokens=machine.batch_tokens, limit=settings.limit
    )
    capture = HiddenCapture(model.module)
    before = _watch_inputs(capture, norms)
    sums = SumSettings(sample=settings.sample, seed=settings.seed, device=machine.device)
    moments = run_pass(capture, batches, sums, what=f"running {model.name}")
    protocol = {**batches.protocol, **capture.protocol, "pairs": "all pairs of different vectors", "data": source.name}
    rows, notes = site_rows(model, capture.sites, moments, plan, protocol)
    words = "; ".join(f"{name}: {value}" for name, value in protocol.items())
    rows = [row for norm in norms for row in norm_rows(norm)] + rows
    for norm in norms:
        if norm.closes is not None and norm.closes.name in moments:
            site, entering = norm.closes.name, moments[before[norm.path]]
            check_norm(norm, entering.reservoir.sample(), moments[site].reservoir.sample())
            rows += ablation_rows(norm, entering, words)
            rows += _around(norm, before[norm.path], rows)
    data = {"name": source.name, "fingerprint": source.fingerprint(), **vars(batches.report)}
    return rows, [*model.notes, *capture.notes, *notes], data


def _watch_inputs(capture: HiddenCapture, norms: Sequence[Norm]) -> dict[str, str]:
    """Path of each closing norm → the site of the vectors before it, which post-norm blocks get in addition."""
    order = list(capture.sites)
    before: dict[str, str] = {}
    for norm in norms:
        if norm.closes is None:
            continue
        place = order.index(norm.closes)
        if norm.closes.kind == "norm":
            before[norm.path] = order[place - 1].name
            continue
        closed = norm.closes
        added = Site(
            f"{closed.name}.before_norm", norm.path, "block", take="input", layer=closed.layer,
            positions=closed.positions, prefix_tokens=closed.prefix_tokens,
        )  # fmt: skip
        order.insert(place, added)
        before[norm.path] = added.name
    capture.sites = order
    return before


def norm_rows(norm: Norm) -> list[Row]:
    """‖g‖, ‖b‖, their ratio and the implied cosine of one norm."""
    layer = None if norm.closes is None else norm.closes.layer
    shared = Row(site=norm.site, layer=layer, protocol=f"parameters of {norm.path}, {norm.kind}")
    note = "" if norm.has_bias else f"this {norm.kind} has no bias"
    return [
        replace(shared, metric="gain_norm", value=norm.gain.norm().item()),
        replace(shared, metric="bias_norm", value=norm.bias.norm().item() if norm.has_bias else None, note=note),
        replace(shared, metric="bias_over_gain", value=norm.ratio if norm.has_bias else None, note=note),
        replace(
            shared, metric="implied_cosine", value=norm.implied_cosine if norm.has_bias else 0.0, null=0.0, note=note
        ),
    ]


def check_norm(norm: Norm, entering: Sample, leaving: Sample) -> None:
    """Refuse a norm whose output is not what the site holds: then something stands between, and ablations would lie."""
    computed = norm.apply(torch.from_numpy(entering.x))
    measured = torch.from_numpy(leaving.x).double()
    if computed.shape != measured.shape or (computed - measured).norm() > _AGREEMENT * measured.norm():
        raise ModelError(
            "this norm does not make the vectors of its site",
            where=norm.path,
            expected=f"{norm.closes.name if norm.closes else ''} = gain·normalised + bias",
        )


def ablation_rows(norm: Norm, entering: Moments, protocol: str) -> list[Row]:
    """The cosine after the norm as it is, without bias, with unit gain, and with the common mean removed before it."""
    assert norm.closes is not None
    sums, sample = entering.sums(), entering.reservoir.sample()
    x = torch.from_numpy(sample.x).double()
    variants = {
        "as_it_is": norm.apply(x),
        "without_bias": norm.apply(x, bias=False),
        "unit_gain": norm.apply(x, gain=False),
        "mean_removed": norm.apply(x - torch.from_numpy(sums.sum_x / sums.n)),
    }
    rows = []
    for name in ABLATIONS:
        moments = Moments(x.shape[1], spectrum=False, reservoir=0)
        moments.update(variants[name], sequences=sample.keys, positions=sample.positions)
        rows += [
            Row(
                site=f"{norm.closes.name}.{name}", layer=norm.closes.layer, metric=e.metric, value=e.value, low=e.low,
                high=e.high, null=e.null, n=e.n, note=e.note, protocol=f"sample of {len(sample)} vectors; {protocol}",
            )
            for e in direction_estimates(moments.sums())
            if e.metric in _AFTER_ABLATION
        ]  # fmt: skip
    return rows


def _around(norm: Norm, entering: str, rows: Sequence[Row]) -> list[Row]:
    """At the site that the norm makes: the cosine before it, and the cosine after it that its bias does not imply."""
    assert norm.closes is not None
    cosine = {row.site: row for row in rows if row.metric == "mean_cosine" and row.positions == "all"}
    before, after = cosine[entering], cosine[norm.closes.name]
    implied = norm.implied_cosine if norm.has_bias else 0.0
    moved = {
        end: None if getattr(after, end) is None else getattr(after, end) - implied for end in ("value", "low", "high")
    }
    return [
        replace(before, site=after.site, metric="mean_cosine_before", note=f"at {entering}"),
        replace(after, metric="cosine_above_implied", note=f"implied by the norm: {implied:.4g}", **moved),
    ]


def verdict_on(rows: Sequence[Row]) -> str:
    """The last closing norm at the last step: what it implies, what is measured around it, what ablations leave."""
    last = max((row.step for row in rows if row.step is not None), default=None)
    value = {(row.site, row.metric): row.value for row in rows if row.step == last and row.positions == "all"}
    closed = [site for site, metric in value if metric == "cosine_above_implied"]
    if not closed:
        return "no norm closes the stack or its blocks"
    site = closed[-1]
    ablated = ", ".join(
        f"{_number(value[f'{site}.{name}', 'mean_cosine'])} {_IN_WORDS[name]}" for name in ABLATIONS[1:]
    )
    return (
        f"{site}: mean cosine {_number(value[site, 'mean_cosine_before'])} before the norm, "
        f"{_number(value[site, 'mean_cosine'])} after it, {_number(value[site, 'implied_cosine'])} implied by gain and "
        f"bias alone; ablated: {ablated}"
    )


def _number(value: float | None) -> str:
    return "missing" if value is None else f"{value:.3g}"
