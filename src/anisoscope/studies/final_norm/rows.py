"""What a norm does to a cloud: its parameters, the cosine before and after it, and ablations of it.

The ablations run on the seeded sample of the vectors before the norm (`n` says how many), all pairs of it, beside the
same sample `as_it_is`: the norm with b = 0, with g = 1, and on vectors whose common mean was removed before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.accumulate.moments import Moments
from anisoscope.accumulate.sums import Sample
from anisoscope.errors import ModelError, StoreError
from anisoscope.inference.directions import direction_estimates
from anisoscope.runs.study import words_of
from anisoscope.runs.table import Row, row_of
from anisoscope.runs.work.collected import Collection, Part
from anisoscope.studies.final_norm.norms import Norm

_AFTER_ABLATION = ("mean_cosine", "mean_cosine_inter", "mean_cosine_intra", "drift_ratio")
_AGREEMENT = 1e-2  # relative distance up to which a norm is what it was taken for
_WORDS = ("site", "path", "kind", "has_bias", "closes", "before", "layer")


# -- norms beside sums -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameters:
    """Gain and bias of one norm. Every share of the data has the same ones."""

    gain: Tensor
    bias: Tensor

    def merge(self, other: Parameters) -> None:
        if not (torch.equal(self.gain, other.gain) and torch.equal(self.bias, other.bias)):
            raise StoreError("the shards are of models with different norms", do="measure all shards of one model")

    def state(self) -> dict[str, Tensor]:
        return {"gain": self.gain, "bias": self.bias}

    @classmethod
    def from_state(cls, state: Mapping[str, NDArray]) -> Self:
        return cls(torch.from_numpy(state["gain"]), torch.from_numpy(state["bias"]))


class NormParameters(Collection):
    """The parameters of all norms of a model, by path."""

    kind = Parameters


def keep_norms(part: Part, norms: Sequence[Norm]) -> None:
    """Put the norms of a model beside the sums of its states."""
    kept = NormParameters()
    kept.parts = {norm.path: Parameters(norm.gain, norm.bias) for norm in norms}
    part.sums["norms"] = kept
    part.about["norms"] = [{name: getattr(norm, name) for name in _WORDS} for norm in norms]


def norms_of(part: Part) -> list[Norm]:
    """The inverse of `keep_norms`."""
    parameters = part.sums["norms"].parts
    return [Norm(**words, **parameters[words["path"]].state()) for words in part.about["norms"]]


# -- rows --------------------------------------------------------------------------------------------------------------


def norms_rows(part: Part, measured: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """The rows of all norms beside the measured sites, and for which norms that was not possible."""
    moments, words = part.sums["hidden"].parts, words_of(part.about["protocol"])
    norms = norms_of(part)
    rows = [row for norm in norms for row in norm_rows(norm)]
    apart = []
    for norm in (norm for norm in norms if norm.closes is not None):
        if norm.closes not in moments or norm.before not in moments:
            apart.append(f"{norm.closes}: the vectors before its norm cannot be seen in this model")
            continue
        check_norm(norm, *(moments[site].reservoir.sample() for site in (norm.before, norm.closes)))
        rows += ablation_rows(norm, moments[norm.before], words)
        rows += around_rows(norm, measured)
    return rows, apart


def norm_rows(norm: Norm) -> list[Row]:
    """‖g‖, ‖b‖, their ratio and the implied cosine of one norm."""
    shared = Row(site=norm.site, layer=norm.layer, protocol=f"parameters of {norm.path}, {norm.kind}")
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
    """Refuse a norm whose output is not what the site holds: then something stands in between, and ablations would be
    wrong."""
    computed = norm.apply(torch.from_numpy(entering.x))
    measured = torch.from_numpy(leaving.x).double()
    if computed.shape != measured.shape or (computed - measured).norm() > _AGREEMENT * measured.norm():
        raise ModelError(
            "this norm does not make the vectors of its site",
            where=norm.path,
            expected=f"{norm.closes} = gain·normalised + bias",
        )


def ablation_rows(norm: Norm, entering: Moments, protocol: str) -> list[Row]:
    """The cosine after the norm as it is, without bias, with unit gain, and with the common mean removed before it."""
    sums, sample = entering.sums(), entering.reservoir.sample()
    x = torch.from_numpy(sample.x).double()
    variants = {
        "as_it_is": norm.apply(x),
        "without_bias": norm.apply(x, bias=False),
        "unit_gain": norm.apply(x, gain=False),
        "mean_removed": norm.apply(x - torch.from_numpy(sums.sum_x / sums.n)),
    }
    words = f"sample of {len(sample)} vectors; {protocol}"
    rows = []
    for name, after in variants.items():
        moments = Moments(x.shape[1], spectrum=False, reservoir=0)
        moments.update(after, sequences=sample.keys, positions=sample.positions)
        shared = Row(site=f"{norm.closes}.{name}", layer=norm.layer, protocol=words)
        rows += [row_of(one, shared) for one in direction_estimates(moments.sums()) if one.metric in _AFTER_ABLATION]
    return rows


def around_rows(norm: Norm, rows: Sequence[Row]) -> list[Row]:
    """At the site that the norm makes: the cosine before it, and the cosine after it that its bias does not imply."""
    cosine = {row.site: row for row in rows if row.metric == "mean_cosine" and row.positions == "all"}
    before, after = cosine[str(norm.before)], cosine[str(norm.closes)]
    implied = norm.implied_cosine if norm.has_bias else 0.0
    moved = {
        end: None if getattr(after, end) is None else getattr(after, end) - implied for end in ("value", "low", "high")
    }
    return [
        replace(before, site=after.site, metric="mean_cosine_before", note=f"at {norm.before}"),
        replace(after, metric="cosine_above_implied", note=f"implied by the norm: {implied:.4g}", **moved),
    ]
