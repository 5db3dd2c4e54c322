"""Embeddings in folds: what `calibrate` and `remedy` read, fit on one part of and judge on another.

What is named is files of vectors, an array, or a model; a model embeds the texts of `--data`, or the sentences that the
package carries, grouped by topic. Rows fall into four folds by the hash of their group, and the sums of each fold are
kept apart: a correction is fitted on the groups of some folds, exactly, and judged on rows of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anisoscope.accumulate.sums import sketched
from anisoscope.errors import InputError, UsageError
from anisoscope.geometry import corrections
from anisoscope.geometry.rows import distinct_rows
from anisoscope.inference.estimates import left_out
from anisoscope.inference.floor import HeldOut
from anisoscope.inputs.stores.clients import is_url
from anisoscope.inputs.vectors.source import READERS
from anisoscope.runs.job import Job
from anisoscope.runs.settings import Embedding, Opening, Reading, Settings, option, several
from anisoscope.studies.vectors import VectorFiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from anisoscope.accumulate.moments import Moments
    from anisoscope.accumulate.sums import Sums
    from anisoscope.inputs.vectors.source import VectorSource
    from anisoscope.models.open import OpenModel
    from anisoscope.runs.work.collected import Collected, Part

OBSERVER = "folds"
HELD_OUT = 1024
FEWEST = 64
WIDEST = 65_536  # dimensions of which there are second moments, or a sketch of them
_OF_MODELS = ("data", "documents", "limit", "query_prompt", *Opening.model_fields, *Embedding.model_fields)
_ONLY_VECTORS = (".npy", ".npz", ".safetensors")  # files that hold no texts


class Embeddings(Reading, Opening, Embedding, VectorFiles):
    """Files of vectors, or a model that makes them."""

    files: list[str] = several(
        "Files of vectors (.npy .npz .safetensors .parquet .arrow .feather .csv .jsonl), or one model."
    )
    column: str | None = option("Column that holds the vectors; for a model, the texts of a table.", None)


class TwoSided(Embeddings):
    """Embeddings, with those of queries apart where there are any."""

    queries: list[str] = option(
        "Queries to pair with the rows: embeddings or, with a model, texts, preceded by its prompt for queries.",
        [],
        paths=True,
    )


def names_model(files: Sequence[str]) -> bool:
    """Whether what is named is one model: a folder with a config, a GGUF file, or a name that is not a file."""
    if len(files) == 1 and is_url(files[0]):
        from anisoscope.models.mirrors import has_model

        return Path(files[0]).suffix.lower() not in READERS and has_model(files[0])
    path = Path(files[0])
    if len(files) > 1 or path.suffix.lower() in READERS or any(mark in files[0] for mark in "*?["):
        return False
    if path.is_dir():
        return (path / "config.json").is_file() or (path / "modules.json").is_file()
    return path.suffix == ".gguf" or not path.exists()


def of_model(job: Job) -> bool:
    """Whether the job is on a model, not on vectors."""
    return job.given.get("files") is None and names_model(job.settings.files)


def open_rows(job: Job) -> VectorSource:
    """The files or the array that are named; refuses what can be asked of a model alone."""
    settings = job.settings
    _refuse(settings, _OF_MODELS, "vectors are named, and this is for a model")
    return job.vectors(column=settings.column, group=settings.group, ids=settings.ids)


def _refuse(settings: Settings, names: Sequence[str], what: str) -> None:
    fields = type(settings).model_fields
    asked = [
        f"--{name.replace('_', '-')}"
        for name in names
        if name in fields and getattr(settings, name) != fields[name].get_default(call_default_factory=True)
    ]
    if asked:
        raise UsageError(what, got=", ".join(asked), do="leave it out")


def sum_folds(job: Job, source: VectorSource, *, label: str = "") -> Part:
    """The moments of the vectors of a source, by fold."""
    from anisoscope.runs.work.clouds import Folds, exact_rows

    def add(sums: dict[str, Any], block: Any) -> None:
        x = exact_rows(block)
        if block.keys is None:
            keys, places = block.numbers.astype(np.uint64), np.zeros(len(x), np.int64)
            sums[OBSERVER].add_rows(x, keys, places, whole=True)
        else:
            sums[OBSERVER].add_rows(x, block.keys, None)

    def make() -> dict[str, Any]:  # rows of named groups may come in several blocks: only whole ones are closed
        return {OBSERVER: Folds(reservoir=job.settings.sample, seed=job.settings.seed)}

    part = job.sum_vectors(label or source.name, source, make, add)
    part.about |= {"data": {"name": source.name, "fingerprint": source.fingerprint(), "dimension": source.dim}}
    return part


def open_queries(job: Job, documents: VectorSource) -> VectorSource | None:
    """The queries' vectors, of the dimension of the documents'; None where none are named."""
    if not job.settings.queries and "queries" not in job.given:
        return None
    asked = job.vectors("queries", column=job.settings.column, ids=job.settings.ids)
    if asked.dim != documents.dim:
        raise UsageError("queries and documents have different dimensions", got=asked.dim, expected=documents.dim)
    return asked


def open_encoder(job: Job) -> OpenModel:
    """The model that is named; refuses one that makes no vector of a text, and vectors of queries beside it."""
    from anisoscope.studies.measure.hidden import encoder_of

    _refuse(job.settings, ("group", "ids"), "a model is named, and this is for vectors")
    queries = [Path(name) for name in getattr(job.settings, "queries", ())]
    if "queries" in job.given or any(path.suffix.lower() in _ONLY_VECTORS for path in queries):
        raise UsageError(
            "a model is named, so queries are texts", do="name a text file, or give documents as vectors too"
        )
    model = job.open_model(job.settings.files[0])
    encoder_of(model)
    return model


def embed_folds(job: Job, model: OpenModel) -> Collected:
    """The moments of the texts that a model embeds, by fold; those of queries apart, where some are named."""
    from anisoscope.models.devices import sums_device
    from anisoscope.runs.work.observers.embeddings import FoldSums

    settings = job.settings
    options = {"sample": settings.sample, "seed": settings.seed, "device": sums_device(job.machine.device)}

    def embed(label: str, led: OpenModel, group: Callable[[str], str], **changes: Any) -> Part:
        made = lambda: {OBSERVER: FoldSums(led.encoder, group=group, **options)}  # noqa: E731
        return job.run(label, led, made, first=True, **changes)

    found = {"": embed(model.name, model, grouping(job))}
    if getattr(settings, "queries", None):
        found["queries"] = embed("queries", for_queries(job, model), str, field="queries", limit=None)
    return found


def for_queries(job: Job, model: OpenModel) -> OpenModel:
    """The model led by the prompt of queries: the one that is asked for, else that of all texts, else its own."""
    from anisoscope.models.encoders import with_prompt

    assert model.encoder is not None
    settings, own = job.settings, "query" if model.encoder.prompts.get("query") else None
    asked = next((one for one in (settings.query_prompt, settings.prompt, own) if one is not None), None)
    tokenizer = getattr(model.processor, "tokenizer", model.processor)
    return replace(model, encoder=with_prompt(model.encoder, asked, tokenizer))


def grouping(job: Job) -> Callable[[str], str]:
    """The group of a text by its key: its topic where the package's own sentences are read, else itself."""
    from anisoscope.inputs.sentences import sentences, topic_of

    if job.settings.data or job.given.get("data") is not None:
        return str
    job.use(sentences())
    return topic_of


@dataclass(frozen=True)
class Split:
    """Sums to fit on, rows to judge on, and the sums of everything."""

    fitted: corrections.Corrections
    whole: corrections.Corrections
    held: HeldOut
    n_fit: int
    n: int
    left_out: tuple[str, ...]

    def leaves(self, method: str) -> bool:
        """Whether more than rounding errors is left of the rows."""
        return self.fitted.leaves(method, self.held.rows)


def split_folds(part: Part) -> Split:
    """Hold out one fold of four, or two where there are few rows; refuses what is too little to tell anything."""
    moments = {name: part.get(OBSERVER, name) for name in sorted(part.keys(OBSERVER))}
    sums = {name: one.sums() for name, one in moments.items()}
    n, d = sum(one.n for one in sums.values()), max((one.d for one in moments.values()), default=0)
    if n < FEWEST or any(one.second is None and one.sketch is None for one in sums.values()):
        if n >= FEWEST and d <= WIDEST:
            do = "multiply all vectors by one number: cosines stay what they are"
            raise InputError("norms so large or so small that their squares cannot be summed", do=do)
        got = f"{n} vectors" if n < FEWEST else f"{d} dimensions"
        expected = f"at least {FEWEST} vectors, at most {WIDEST:,} dimensions"
        raise InputError("too few vectors, or too wide", got=got, expected=expected)
    names = list(moments)
    apart = names[:1] if sums[names[0]].n >= HELD_OUT // 2 else names[: len(names) // 2]
    rest = [name for name in names if name not in apart]
    if not apart or not rest:
        raise InputError(
            "there are too few groups to fit on some and judge on others",
            got=f"{sum(one.sequences for one in sums.values())} groups",
            do="leave out --group, or give more groups",
        )
    n_fit = sum(sums[name].n for name in rest)
    held, repeated = _held([moments[name] for name in apart])
    found = Split(
        _fitted([sums[name] for name in rest]),
        _fitted(list(sums.values())),
        held,
        n_fit,
        n,
        (*without_direction(list(sums.values())), *_unfit(list(moments.values())), *repeated),
    )
    check_directions(found.fitted, found.held.rows)
    return found


def check_directions(fitted: corrections.Corrections, rows: NDArray[np.floating]) -> None:
    """Refuse vectors among which there is nothing to compare."""
    d = rows.shape[1]
    if d < 2:
        raise InputError("vectors of one dimension have no directions to compare", got=f"d = {d}", expected="d ≥ 2")
    if not len(rows):
        raise InputError(
            "no vector can be kept in a sample",
            expected="largest entries between 1e-30 and 3e38, as single precision holds them",
            do="multiply all vectors by one number: cosines stay what they are",
        )
    if not fitted.leaves("centre", rows.astype(float)):
        raise InputError("all vectors are equal: there is nothing to compare", got=f"{len(rows)} of them")


def _fitted(sums: Sequence[Sums]) -> corrections.Corrections:
    if sums[0].second is None:
        names = ("group_n", "group_x", "group_norm2", "sketch")
        whole = replace(sums[0], **{name: np.sum([getattr(one, name) for one in sums], axis=0) for name in names})
        found = sketched(whole, centred=True)
        return corrections.fit_axes(whole.sum_x / whole.n, found.spectrum(), found.axes)
    second = np.sum([one.second for one in sums if one.second is not None], axis=0)
    return corrections.fit_sums(np.sum([one.sum_x for one in sums], axis=0), second, sum(one.n for one in sums))


def _held(moments: Sequence[Moments]) -> tuple[HeldOut, list[str]]:
    """Rows to judge on, each once, and what is said of the others: a copy is neither unrelated nor a match."""
    samples = [one.reservoir.sample() for one in moments]
    kept = HELD_OUT // len(samples)
    rows = np.concatenate([sample.x[:kept] for sample in samples]).astype(float)
    keys, places = (np.concatenate([getattr(one, name)[:kept] for one in samples]) for name in ("keys", "positions"))
    once = distinct_rows(rows)
    repeated = len(rows) - len(once)
    said = [f"{left_out(repeated, 'duplicated vectors')} of those held out"]
    return HeldOut(rows[once], keys[once], places=places[once]), said if repeated else []


def without_direction(sums: Sequence[Any]) -> list[str]:
    """What has no direction, in words."""
    zero, broken = sum(one.zero for one in sums), sum(one.nonfinite for one in sums)
    counts = {"zero vectors": zero, "vectors with NaN or infinite entries": broken}
    return [left_out(count, what) for what, count in counts.items() if count]


def _unfit(moments: Sequence[Moments]) -> list[str]:
    count = sum(one.reservoir.unfit for one in moments)
    return [f"{count} vectors that float32 cannot hold are not in the sample"] if count else []


def kinds() -> dict[str, Any]:
    from anisoscope.runs.work.clouds import Folds

    return {OBSERVER: Folds}
