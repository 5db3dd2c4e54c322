"""The vocabulary matrices of a model, as measured by *Anisotropy is Not Inherent to Transformers*, and more.

The rows of the input matrix (`vocabulary.input`) and of the output matrix (`vocabulary.output`; one site where the two
are tied) are a cloud like any other: mean cosine over all pairs, drift, IsoScore and the rest of the spectrum, raw and
with the mean row removed (`….centred`). Besides,

    I(W) = min_c Z(c)/max_c Z(c),   Z(c) = Σ_i exp(c·w_i),   c over the eigenvectors of WᵀW

in the convention of the published codes (`partition_one_sided`: one sign for each eigenvector, as `eigh` returns it;
also in float32, as published) and with both signs (`partition_both`, well defined and never larger). Its null is I of
random directions with the norms of W: I(W) depends on scale, so 1 is not what isotropy gives.

With a text, how norms and the first component go with log frequency (Spearman). All rows of a matrix count, used tokens
or not, as in the rebuttal; the interval of a metric reads them as a sample of possible tokens.

    result = vocabulary_study([(0, open_model("…", head=True)), …])

Cost: a few V×d×d products and a d×d eigendecomposition for each matrix; no forward pass.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from anisoscope.accumulate.moments import Moments
from anisoscope.errors import ModelError
from anisoscope.geometry.partition import PartitionResult, partition, partition_reference
from anisoscope.inference.cloud import measure_cloud
from anisoscope.runs.measurement import Measurement, cloud_rows
from anisoscope.runs.plan import Settings, default_folder, reuse_or_begin
from anisoscope.runs.progress import track
from anisoscope.runs.store import Existing
from anisoscope.runs.table import Row, to_table
from anisoscope.studies.checkpoints import open_checkpoints
from anisoscope.studies.measure.study import Machine

if TYPE_CHECKING:
    import pyarrow as pa

    from anisoscope.inputs.sources import Source
    from anisoscope.models.open import OpenModel

Array = NDArray[Any]
Series = Iterable[tuple[int | None, "OpenModel"]]
POINTS = 4000  # rows of a matrix that the 2-D picture shows


class VocabularySettings(Settings):
    """What `anisoscope vocabulary` does.

    `models` are checkpoints in order, `data` a text for token frequencies; `head=False` is for checkpoints that were
    saved without their language-model head, which have an input matrix only.
    """

    command = "vocabulary"

    models: list[str]
    data: list[str] = Field(default_factory=list)
    head: bool = True
    points: int = POINTS
    seed: int = 0


@dataclass(frozen=True)
class Matrix:
    """One vocabulary matrix (V, d) under the name of its site; `tied` where input and output are the same."""

    site: str
    weights: Array
    tied: bool


@dataclass(frozen=True)
class VocabularyResult:
    """Rows of all steps, and the arrays of the figures by `<step>/<site>/<name>`."""

    rows: list[Row]
    arrays: dict[str, Array]

    def table(self) -> pa.Table:
        return to_table(self.rows)


def measure_vocabularies(
    settings: VocabularySettings,
    *,
    machine: Machine | None = None,
    out: Path | None = None,
    existing: Existing = "resume",
) -> Measurement:
    """Open the models one after the other, measure their vocabularies and keep the run."""
    from anisoscope.inputs.sources import open_source

    folder = out or default_folder(settings, name="+".join(Path(name).name for name in settings.models[:3]))
    finished = reuse_or_begin(folder, settings, existing=existing)
    if finished is not None:
        return Measurement.of_run(finished)
    started, machine = time.monotonic(), machine or Machine()
    text = open_source(settings.data, "text") if settings.data else None
    opened = open_checkpoints(
        settings.models, head=settings.head, models_dir=machine.models_dir, trust_remote_code=machine.trust_remote_code
    )
    notes: list[str] = []
    with track("measuring vocabularies", total=len(settings.models), unit="models") as bar:

        def followed() -> Series:
            for step, model in opened:
                notes.extend(f"{model.name}: {note}" for note in model.notes)
                yield step, model
                bar.advance()

        result = vocabulary_study(followed(), text=text, points=settings.points, seed=settings.seed)
    data = {} if text is None else {"name": text.name, "fingerprint": text.fingerprint()}
    run = Measurement(
        tuple(result.rows), verdict_on(result.rows), tuple(dict.fromkeys(notes)), None, settings.command,
        settings.as_dict(), {"rows": "all rows of each matrix"}, data, arrays=result.arrays,
    ).save(folder, seconds=time.monotonic() - started)  # fmt: skip
    return Measurement.of_run(run)


def vocabulary_study(
    series: Series, *, text: Source[Any] | None = None, points: int = POINTS, seed: int = 0
) -> VocabularyResult:
    """Measure the vocabulary matrices of each (step, model); a single model is a series of one with step None."""
    rows: list[Row] = []
    arrays: dict[str, Array] = {}
    for step, model in series:
        matrices = vocabulary_matrices(model)
        counts = None if text is None else token_counts(model, text)
        for matrix in matrices:
            measured, pictures = measure_matrix(matrix, counts=counts, points=points, seed=seed)
            rows += [_placed(row, model, step) for row in measured]
            arrays |= {f"{0 if step is None else step}/{matrix.site}/{name}": a for name, a in pictures.items()}
    return VocabularyResult(rows, arrays)


def vocabulary_matrices(model: OpenModel) -> list[Matrix]:
    """The input matrix, and the output matrix unless it is the same one or the model has no head."""
    entering, leaving = (_weight(model.module, f"get_{end}_embeddings") for end in ("input", "output"))
    if entering is None:
        raise ModelError("this model has no vocabulary", where=model.name, got=f"family {model.family}")
    tied = leaving is not None and leaving.data_ptr() == entering.data_ptr()
    found = [Matrix("vocabulary.input", _array(entering), tied)]
    if leaving is not None and not tied:
        found.append(Matrix("vocabulary.output", _array(leaving), False))
    return found


def _weight(module: Any, getter: str) -> torch.Tensor | None:
    try:
        layer = getattr(module, getter)()
    except (AttributeError, NotImplementedError):
        return None
    weight = getattr(layer, "weight", None)
    return weight.detach() if isinstance(weight, torch.Tensor) and weight.dim() == 2 else None


def _array(weight: torch.Tensor) -> Array:
    return (weight if weight.dtype == torch.float64 else weight.float()).cpu().numpy()


def measure_matrix(
    matrix: Matrix, *, counts: NDArray[np.int64] | None = None, points: int = POINTS, seed: int = 0
) -> tuple[list[Row], dict[str, Array]]:
    """The rows of one matrix, raw and centred, and what the pictures need."""
    rows: list[Row] = []
    arrays: dict[str, Array] = {}
    note = "input and output are tied: one matrix" if matrix.tied else ""
    protocol = f"all {len(matrix.weights)} rows of the matrix, no data"
    shown = np.sort(np.random.default_rng(seed).permutation(len(matrix.weights))[:points])
    for site, centred in ((matrix.site, False), (f"{matrix.site}.centred", True)):
        mean = matrix.weights.mean(0, dtype=np.float64) if centred else np.zeros(matrix.weights.shape[1])
        cloud = (matrix.weights - mean).astype(matrix.weights.dtype)
        rows += _cloud_rows(cloud, site, protocol)
        values, vectors = _eigen(cloud)
        rows += _partition_rows(matrix.weights, vectors, site, centred=centred, note=note, protocol=protocol)
        plane = _oriented(vectors[:, ::-1][:, :2], matrix.weights.mean(0, dtype=np.float64))
        suffix = ".centred" if centred else ""
        arrays[f"points{suffix}"] = (cloud[shown].astype(np.float64) @ plane).astype(np.float32)
        arrays[f"eigenvalues{suffix}"] = values[::-1].copy()
        if counts is not None:
            rows += _frequency_rows(cloud.astype(np.float64), plane[:, 0], counts, site, protocol)
    if counts is not None:
        arrays["counts"] = _fitted(counts, len(matrix.weights))[shown]
    return rows, arrays


def _cloud_rows(cloud: Array, site: str, protocol: str) -> list[Row]:
    moments = Moments(cloud.shape[1])
    moments.update(torch.from_numpy(np.ascontiguousarray(cloud)))
    return cloud_rows(measure_cloud(moments, neighbours=False), site=site, protocol=protocol)


def _eigen(cloud: Array) -> tuple[Array, Array]:
    """Eigenvalues of WᵀW/V, ascending, and its eigenvectors with the signs that LAPACK returns."""
    exact = cloud.astype(np.float64)
    values, vectors = np.linalg.eigh(exact.T @ exact)
    return np.maximum(values, 0) / len(exact), vectors


def _oriented(plane: Array, mean: Array) -> Array:
    """The first axis turned so that the mean row lies on its positive side: pictures of a series then compare."""
    return plane * np.where(mean @ plane < 0, -1.0, 1.0)


def _partition_rows(weights: Array, vectors: Array, site: str, *, centred: bool, note: str, protocol: str) -> list[Row]:
    """I(W) in both conventions, with random directions of the same norms as null, and in float32 as published."""
    found = {
        "partition_one_sided": partition(weights, centred=centred, directions=vectors),
        "partition_one_sided_float32": partition(weights, centred=centred, dtype="float32"),
        "partition_both": partition(weights, convention="both", centred=centred, directions=vectors),
    }
    reference = {
        "one-sided": partition_reference(weights, centred=centred),
        "both": partition_reference(weights, convention="both", centred=centred),
    }
    return [
        Row(
            site=site,
            metric=metric,
            value=result.value,
            null=reference[result.convention].value,
            n=result.rows,
            note="; ".join(filter(None, (_logarithm(result), note))),
            protocol=f"{protocol}; {result.convention}, {result.dtype}",
        )
        for metric, result in found.items()
    ]


def _logarithm(result: PartitionResult) -> str:
    return "overflow" if result.log_ratio is None else f"log I(W) = {result.log_ratio:.6g}"


def token_counts(model: OpenModel, text: Source[Any]) -> NDArray[np.int64]:
    """How often each token occurs in a text, by id."""
    tokenizer = getattr(model.processor, "tokenizer", model.processor)
    counts: Counter[int] = Counter()
    for document in text:
        counts.update(tokenizer(document.text, add_special_tokens=False, verbose=False)["input_ids"])
    dense = np.zeros(max(counts, default=0) + 1, dtype=np.int64)
    for token, count in counts.items():
        dense[token] = count
    return dense


def _fitted(counts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Counts for every row of a matrix; a matrix may hold more rows than the tokenizer has tokens."""
    return np.pad(counts, (0, max(0, size - len(counts))))[:size]


def _frequency_rows(cloud: Array, axis: Array, counts: NDArray[np.int64], site: str, protocol: str) -> list[Row]:
    """Spearman correlation of log frequency with norm and with the first component, over the tokens that occur."""
    counts = _fitted(counts, len(cloud))
    seen = counts > 0
    quantities = {"norm": np.linalg.norm(cloud, axis=1), "first_component": cloud @ axis}
    rows = []
    for name, values in quantities.items():
        value, low, high = spearman(np.log(counts[seen]), values[seen])
        words = f"{protocol}; {int(seen.sum())} tokens that occur {int(counts.sum())} times"
        rows.append(
            Row(
                site=site, metric=f"spearman_log_frequency_{name}", value=value, low=low, high=high, null=0.0,
                n=int(seen.sum()), protocol=words,
            )
        )  # fmt: skip
    return rows


def spearman(a: Array, b: Array) -> tuple[float | None, float | None, float | None]:
    """Rank correlation with its 95 % interval (Fisher's z with Bonett & Wright's variance); missing below 4 pairs.

    >>> value, low, high = spearman(np.arange(50.0), np.arange(50.0) ** 3)
    >>> value, low is not None and low > 0.99
    (1.0, True)
    """
    from scipy.stats import rankdata

    if len(a) < 4 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None, None, None
    value = round(float(np.corrcoef(rankdata(a), rankdata(b))[0, 1]), 15)
    z = np.arctanh(np.clip(value, -1 + 1e-12, 1 - 1e-12))
    half = 1.959964 * np.sqrt((1 + value * value / 2) / (len(a) - 3))
    return value, float(np.tanh(z - half)), float(np.tanh(z + half))


def _placed(row: Row, model: OpenModel, step: int | None) -> Row:
    return replace(row, model=model.name, revision=model.revision, step=step)


def verdict_on(rows: Sequence[Row]) -> str:
    """Each matrix at the last step: I(W) against its reference, and how much of the energy its mean row carries."""
    last = max((row.step for row in rows if row.step is not None), default=None)
    words = []
    for site in ("vocabulary.input", "vocabulary.output"):
        mine = {row.metric: row for row in rows if row.site == site and row.step == last}
        if mine:
            found, drift = mine["partition_one_sided"], mine["drift_ratio"]
            words.append(
                f"{site.partition('.')[2]} vocabulary: I(W) = {_number(found.value)} (random directions: "
                f"{_number(found.null)}), mean cosine {_number(mine['mean_cosine'].value)}, "
                f"{_number(drift.value)} of the energy in the mean row"
            )
    return "; ".join(words)


def _number(value: float | None) -> str:
    return "missing" if value is None else f"{value:.3g}"
