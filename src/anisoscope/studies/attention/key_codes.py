"""Mean keys to take away, and whether subtracting them before a cache is quantised helps.

Softmax does not see a vector that is subtracted from all keys of a row, so a cache may hold codes of k − K̄ instead of
k. With one scale per key (its largest entry), a large mean eats the range of the code; without it the levels are finer.
What that is worth is measured on one window: scores q·k with k read back from codes of b bits, beside the exact ones,

    error = √(Σ (Δs − its row mean)² / Σ (s − its row mean)²)        over the visible keys of all rows and heads,

once for codes of k, once for codes of k − K̄ with K̄ the mean over the whole pass. A code with one range per channel
and a zero point takes the mean away by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.capture.attention.call import AttentionCall
from anisoscope.geometry.codes import round_vectors
from anisoscope.runs.array_names import find, name_of
from anisoscope.studies.attention.removal import heads_of, show_attention

if TYPE_CHECKING:
    from anisoscope.models.batches.plan import Batch
    from anisoscope.models.open import OpenModel
    from anisoscope.runs.measurement import Measurement
    from anisoscope.runs.table import Row

Array = NDArray[np.float64]
BITS = (4, 8)
METRICS = ("key_code_error", "key_code_error_centred")
HELPS = 0.95
"""Subtracting helps where the median layer's error at 4 bits falls below this share of it."""


def key_means(heads: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """The mean key of every head of every layer, (key heads, d), as arrays of a run."""
    return {
        name_of("key_mean", site=site): (layer.keys.total.sum(0) / layer.keys.n.sum()).numpy().astype(np.float32)
        for site, layer in heads.items()
    }


def key_errors(model: OpenModel, batch: Batch, means: Mapping[str, NDArray[Any]]) -> list[list[Any]]:
    """[site, metric, bits, value] of every layer on a batch."""
    found: dict[str, list[Array]] = {}

    def sink(name: str, call: AttentionCall) -> None:
        mean = means.get(name_of("key_mean", site=name))
        if call.scaling is not None and mean is not None and mean.shape[-1] == call.score_keys.shape[-1]:
            found.setdefault(name, []).append(_energies(call, mean.astype(float)))

    show_attention(model, batch, sink)
    rows = []
    for site, parts in found.items():
        exact, *errors = np.sum(parts, axis=0)
        cases = [(metric, bits) for bits in BITS for metric in METRICS]
        if exact > 0:
            rows += [[site, m, b, float(np.sqrt(e / exact))] for (m, b), e in zip(cases, errors, strict=True)]
    return rows


def _energies(call: AttentionCall, mean: Array) -> Array:
    """Σ of squared scores, then of their errors for each number of bits, without and with the mean subtracted."""
    total = np.zeros(1 + len(BITS) * len(METRICS))
    for q, k, seen, head in heads_of(call):
        moved = [round_vectors(k - m, bits) + m - k for bits in BITS for m in (0.0, mean[head])]
        total += [row_energy(np.asarray(q @ one.T, float), seen) for one in (k, *moved)]
    return total


def row_energy(scores: Array, visible: NDArray[np.bool_] | None) -> float:
    """Σ over rows of the squared distance from the mean of the row, over visible keys.

    >>> row_energy(np.array([[1.0, 3.0, 9.0]]), np.array([[True, True, False]]))
    2.0
    """
    seen = np.ones(scores.shape, bool) if visible is None else visible
    mean = (scores * seen).sum(1, keepdims=True) / np.maximum(seen.sum(1, keepdims=True), 1)
    return float((np.square(scores - mean) * seen).sum())


def key_verdict(rows: Iterable[Row]) -> str:
    """Whether subtracting the mean key before quantising helps, by the layers' errors at 4 bits."""
    value = {(row.site, row.metric, row.at): row.value for row in rows if row.metric in METRICS}
    said = []
    for bits in BITS:
        sites = [site for site, metric, at in value if metric == METRICS[0] and at == bits]
        pairs = np.array([[value[site, metric, bits] or 0.0 for metric in METRICS] for site in sites])
        if len(pairs):
            before, after = np.median(pairs, axis=0)
            said.append((before, after, int((pairs[:, 1] < pairs[:, 0]).sum()), len(pairs), bits))
    if not said:
        return ""
    helps = "will help" if said[0][1] < HELPS * said[0][0] else "will not help"
    numbers = "; ".join(
        f"at {bits} bits the error of the scores goes from {before:.2g} to {after:.2g} (median layer), "
        f"lower in {lower} of {layers}"
        for before, after, lower, layers, bits in said
    )
    return f"Subtracting the mean key before quantising {helps}: {numbers}."


def export_key_means(settings: Any, measurement: Measurement) -> None:
    """Write the mean keys of a run to the file that the settings name."""
    from safetensors.numpy import save_file

    from anisoscope.runs.perform import input_paths
    from anisoscope.runs.writing import guarded

    if settings.export_key_means is None:
        return
    arrays = measurement.arrays if measurement.run is None else measurement.run.arrays()
    means = {f"{parts['site']}.key_mean": np.ascontiguousarray(array) for parts, array in find(arrays, "key_mean")}
    when = "before" if settings.before_rotary else "after"
    about = {
        "anisoscope": "key means",
        "model": settings.model,
        "keys": f"{when} rotation",
        "shape": "key heads, head dimension",
    }
    with guarded(settings.export_key_means, kind="safetensors", inputs=input_paths(settings)) as partial:
        save_file(means, partial, about)
