"""One vocabulary matrix as a cloud, and its partition function.

The rows of the input matrix (`vocabulary.input`) and of the output matrix (`vocabulary.output`; one site where the two
are tied) are a cloud like any other: mean cosine over all pairs, drift, IsoScore and the rest of the spectrum, raw and
with the mean row removed (`….centred`). Besides,

    I(W) = min_c Z(c)/max_c Z(c),   Z(c) = Σ_i exp(c·w_i),   c over the eigenvectors of WᵀW

in the convention of the published codes (`partition_one_sided`: one sign for each eigenvector, as `eigh` returns it;
also in float32, as published) and with both signs (`partition_both`, well defined and never larger). Its null is I of
random directions with the norms of W: I(W) depends on scale, so isotropy does not give 1.

With a text, how norms and the first component go with log frequency (Spearman). All rows of a matrix count, used tokens
or not, as in the rebuttal; the interval of a metric reads them as a sample of possible tokens.

Cost: a few V×d×d products and a d×d eigendecomposition for each matrix; no forward pass.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope.accumulate.moments import Moments
from anisoscope.errors import ModelError
from anisoscope.geometry.partition import PartitionResult, partition, partition_reference
from anisoscope.inference.cloud import measure_cloud
from anisoscope.runs.measurement import cloud_rows
from anisoscope.runs.table import Row

if TYPE_CHECKING:
    from anisoscope.inputs.sources import Source
    from anisoscope.models.open import OpenModel

Array = NDArray[Any]
Counts = NDArray[np.int64]
POINTS = 4000  # rows of a matrix that the 2-D picture shows


@dataclass(frozen=True)
class Matrix:
    """One vocabulary matrix (V, d) under the name of its site; `tied` where input and output are the same."""

    site: str
    weights: Array
    tied: bool


def measure_vocabulary(
    model: OpenModel,
    *,
    label: str = "",
    step: int | None = None,
    place: int = 0,
    counts: Counts | None = None,
    texts: dict[str, int] | None = None,
    **options: Any,
) -> tuple[list[Row], dict[str, Array]]:
    """The rows of all matrices of a model, and the arrays of the figures by `<step>/<site>/<name>`.

    A model that is not of a series has its `place` among the others instead of a step.
    `counts`: how often each token occurs; `texts` numbers the tokens that the picture shows, and grows by those of this
    model; `options` are those of `measure_matrix`.
    """
    rows: list[Row] = []
    arrays: dict[str, Array] = {}
    names = token_names(model) if texts is not None else None
    for matrix in vocabulary_matrices(model):
        measured, pictures = measure_matrix(matrix, counts=counts, **options)
        shown = pictures.pop("shown")
        if texts is not None and names is not None:
            told = [names[row] if row < len(names) else None for row in shown]
            numbers = [-1 if name is None else texts.setdefault(name, len(texts)) for name in told]
            pictures["points.text"] = np.array(numbers, np.int32)
        rows += [replace(row, model=label or model.name, revision=model.revision, step=step) for row in measured]
        arrays |= {f"{place if step is None else step}/{matrix.site}/{name}": a for name, a in pictures.items()}
    return rows, arrays


def vocabulary_matrices(model: OpenModel) -> list[Matrix]:
    """The input matrix, and the output matrix unless it is the same one or the model has no head."""
    tied, leaving = is_tied(model), _ends(model)[1]
    found = [Matrix("vocabulary.input", _array(_entering(model)), tied)]
    if leaving is not None and not tied:
        found.append(Matrix("vocabulary.output", _array(leaving), False))
    return found


def _entering(model: OpenModel) -> torch.Tensor:
    entering = _ends(model)[0]
    if entering is None:
        raise ModelError("this model has no vocabulary", where=model.name, got=f"family {model.family}")
    return entering


def is_tied(model: OpenModel) -> bool:
    """Whether one matrix is both the input and the output."""
    entering, leaving = _ends(model)
    return entering is not None and leaving is not None and leaving.data_ptr() == entering.data_ptr()


def _ends(model: OpenModel) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    return _weight(model.module, "get_input_embeddings"), _weight(model.module, "get_output_embeddings")


def token_names(model: OpenModel) -> list[str | None] | None:
    """Each token of the vocabulary as a reader would write it, by its row; None without a tokenizer."""
    tokenizer = getattr(model.processor, "tokenizer", model.processor)
    if not hasattr(tokenizer, "get_vocab"):
        return None
    ids = {number: token for token, number in tokenizer.get_vocab().items()}
    special = set(tokenizer.all_special_ids)
    readable = {n: token if n in special else tokenizer.decode([n]) for n, token in ids.items()}
    return [readable.get(n) for n in range(max(ids, default=-1) + 1)]


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
    matrix: Matrix, *, counts: Counts | None = None, points: int = POINTS, sample: int = 4096, seed: int = 0
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
        rows += _cloud_rows(cloud, site, protocol, reservoir=sample, seed=seed)
        values, vectors = _eigen(cloud)
        rows += _partition_rows(matrix.weights, vectors, site, centred=centred, note=note, protocol=protocol)
        plane = _oriented(vectors[:, ::-1][:, :2], matrix.weights.mean(0, dtype=np.float64))
        suffix = ".centred" if centred else ""
        arrays[f"points{suffix}"] = (cloud[shown].astype(np.float64) @ plane).astype(np.float32)
        arrays[f"eigenvalues{suffix}"] = values[::-1].copy()
        if counts is not None:
            rows += _frequency_rows(cloud.astype(np.float64), plane[:, 0], counts, site, protocol)
    arrays["shown"] = shown
    if counts is not None:
        arrays["counts"] = _fitted(counts, len(matrix.weights))[shown]
    return rows, arrays


def _cloud_rows(cloud: Array, site: str, protocol: str, **sample: int) -> list[Row]:
    moments = Moments(cloud.shape[1], **sample)  # pyright: ignore[reportArgumentType]  # reservoir and seed
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


def token_counts(model: OpenModel, text: Source[Any], *, limit: int | None = None) -> Counts:
    """How often each token occurs in a text, by id; documents that are token ids already are counted as they are."""
    from anisoscope.models.processors import check_ids

    tokenizer, rows = getattr(model.processor, "tokenizer", model.processor), len(_entering(model))
    counts: Counter[int] = Counter()
    for document in islice(text, limit):
        ids = document.ids
        if ids is None:
            ids = tokenizer(document.text, add_special_tokens=False, verbose=False).input_ids
        check_ids(ids, rows, where=f"document {document.key}")
        counts.update(ids)
    dense = np.zeros(max(counts, default=0) + 1, dtype=np.int64)
    for token, count in counts.items():
        dense[token] = count
    return dense


def _fitted(counts: Counts, size: int) -> Counts:
    """Counts for every row of a matrix; a matrix may hold more rows than the tokenizer has tokens."""
    return np.pad(counts, (0, max(0, size - len(counts))))[:size]


def _frequency_rows(cloud: Array, axis: Array, counts: Counts, site: str, protocol: str) -> list[Row]:
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
                site=site,
                metric=f"spearman_log_frequency_{name}",
                value=value,
                low=low,
                high=high,
                null=0.0,
                n=int(seen.sum()),
                protocol=words,
            )
        )
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
