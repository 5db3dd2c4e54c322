"""Rows of the block study: each draw by itself, and the average over draws with its interval.

The draws (weights, vectors, direction) are independent, so the interval of an average is Student's t over draws:
mean ± t(97.5 %, draws − 1)·sd/√draws. One draw has no interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from anisoscope.errors import InputError
from anisoscope.inference.contrasts import interval_over_draws
from anisoscope.runs.store import Run
from anisoscope.runs.table import Row
from anisoscope.studies.block.fixed_point import first_crossing

if TYPE_CHECKING:
    from anisoscope.studies.block.experiment import Experiment, Sweep

_PROBABILITIES = ("max_probability", "median_probability", "min_probability")
_PROBABILITIES += ("sequence_max_probability", "sequence_min_probability")


def measurement_rows(experiment: Experiment, sweeps: Sequence[Sweep]) -> list[Row]:
    """Every site and metric at every N: the average over draws first, then each draw."""
    rows = []
    for k, norm in enumerate(experiment.norms):
        for site, metric in sweeps[0].numbers[k]:
            layer = int(site.removeprefix("block.")) if site.startswith("block.") else None
            shared = replace(_shared(experiment), site=site, layer=layer, metric=metric, at=norm)
            shared = replace(shared, null=_null(sweeps[0], k, metric))
            values = [sweep.numbers[k][site, metric] for sweep in sweeps]
            rows.append(replace(_average(shared, sweeps, values), value=float(np.mean(values))))
            rows += _each(shared, sweeps, values)
    return rows


def _shared(experiment: Experiment) -> Row:
    return Row(model=experiment.label, protocol=experiment.protocol)


def _average(shared: Row, sweeps: Sequence[Sweep], values: Sequence[float]) -> Row:
    low, high = interval_over_draws(values)
    vectors = sum(sweep.vectors for sweep in sweeps)
    return replace(shared, low=low, high=high, n=vectors, note=f"average of {len(sweeps)} draws")


def _each(shared: Row, sweeps: Sequence[Sweep], values: Sequence[float | None]) -> list[Row]:
    pairs = zip(sweeps, values, strict=True)
    return [replace(shared, value=value, n=sweep.vectors, seed=sweep.seed) for sweep, value in pairs]


def _null(sweep: Sweep, k: int, metric: str) -> float | None:
    """Isotropic vectors, uniform attention, a sampling error alone."""
    if metric in _PROBABILITIES:
        return sweep.attention[k].uniform
    return {"mean_cosine": 0.0, "mean_score": 0.0, "entropy_normalised": 1.0, "equation_1_distance": 1.0}.get(metric)


def fixed_point_rows(experiment: Experiment, sweeps: Sequence[Sweep]) -> list[Row]:
    """N* of the average curve with an interval, of each draw, and where the inputs alone reach √d."""
    rows = []
    low, high = experiment.norms[0], experiment.norms[-1]
    absent = f"no crossing in [{low:g}, {high:g}]"
    for metric in sweeps[0].fixed_points:
        shared = replace(_shared(experiment), site="output", metric=metric)
        found = [sweep.fixed_points[metric] for sweep in sweeps]
        crossings = [value for value in found if value is not None]
        value = first_crossing([sweep.curves[metric] for sweep in sweeps], low, high)
        everywhere = value is not None and len(crossings) == len(found)
        average = _average(shared, sweeps, crossings if everywhere else [])
        note = f"average curve of {len(sweeps)} draws; {len(crossings)} of them cross"
        rows.append(replace(average, value=value, note=note if value is not None else f"{absent}; {note}"))
        each = _each(shared, sweeps, found)
        rows += [replace(row, note="" if row.value is not None else absent) for row in each]
    width = replace(_shared(experiment), site="input", metric="width", value=float(sweeps[0].width), note="d")
    return [*rows, _predicted(experiment, sweeps), width]


def _predicted(experiment: Experiment, sweeps: Sequence[Sweep]) -> Row:
    """√(d − E‖x‖²): N* if the block ends in a fresh LayerNorm, whose output always has norm √d."""
    squares = [sweep.width - sweep.curves["fixed_point"].inputs(0.0) ** 2 for sweep in sweeps]
    reached = [math.sqrt(square) for square in squares if square >= 0]
    shared = replace(_shared(experiment), site="input", metric="fixed_point_of_layernorm")
    note = "√(d − E‖x‖²): the inputs are as long as a fresh LayerNorm's output"
    if len(reached) < len(squares):
        return replace(_average(shared, sweeps, []), note=f"{note}; they are longer at N = 0")
    return replace(_average(shared, sweeps, reached), value=float(np.mean(reached)), note=note)


def hidden_norm_rows(rows: Sequence[Row], run: Run) -> list[Row]:
    """The mean norms of a trained model's blocks over N*, for every experiment that has one."""
    norms = [row for row in run.rows(metric="mean_norm", positions="all") if row.layer is not None and row.value]
    if not norms:
        raise InputError("this run holds no norms of blocks", where=run.folder, do="name a run of `anisoscope measure`")
    compared = []
    for fixed in (row for row in rows if row.metric == "fixed_point" and row.seed is None):
        for norm in norms:
            assert norm.value is not None
            trained = f"mean norm {norm.value:.4g} at {norm.site} of {norm.model or run.name}"
            row = Row(model=fixed.model, site=norm.site, layer=norm.layer, metric="norm_over_fixed_point", n=norm.n)
            if not fixed.value:
                note = f"{trained}; no fixed point to compare with" if fixed.value is None else f"{trained}; N* = 0"
                compared.append(replace(row, note=note))
                continue
            ends = {end: getattr(norm, end) / fixed.value for end in ("low", "high") if getattr(norm, end) is not None}
            note = f"{trained}; N* = {fixed.value:.4g}"
            compared.append(replace(row, value=norm.value / fixed.value, note=note, protocol=norm.protocol, **ends))
    return compared
