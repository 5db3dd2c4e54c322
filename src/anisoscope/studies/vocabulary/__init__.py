"""The vocabulary matrices of a model: I(W), cosine, drift, spectrum.

As measured by *Anisotropy is Not Inherent to Transformers*, and more (`matrices`). Models whose names differ only in
their step are a series. No forward pass: the matrices are read, and a text, if one is given, is only tokenised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anisoscope.runs.array_names import name_of, pack_texts
from anisoscope.runs.job import Job
from anisoscope.runs.settings import Models, Reading, Sample, option
from anisoscope.runs.story import Story, Table, number, percent
from anisoscope.runs.study import OPENS_MODEL, Findings, Study
from anisoscope.runs.table import Row

SITES = ("vocabulary.input", "vocabulary.output")


class VocabularySettings(Models, Reading, Sample):
    """What `anisoscope vocabulary` is asked."""

    data: list[str] = option(
        "A text, for relating norms and directions to token frequency.", [], short="-d", paths=True
    )
    head: bool = option("Read the output matrix too (a checkpoint may have no head).", True)
    points: int = option("How many rows the 2-D picture shows.", 4000, ge=10)


def measure(job: Job) -> Findings:
    """Open the models one after the other and measure their matrices."""
    from anisoscope.models.checkpoints import steps_of
    from anisoscope.runs.progress import track
    from anisoscope.studies.vocabulary.matrices import is_tied, measure_vocabulary, token_counts

    settings, steps = job.settings, steps_of(job.settings.models)
    given = settings.data or job.given.get("data") is not None
    text = job.source("text") if given else None  # before any model: a wrong path fails at once
    rows: list[Row] = []
    arrays: dict[str, Any] = {}
    models: dict[str, Any] = {}
    texts: dict[str, int] = {}
    with track("measuring vocabularies", total=len(steps), unit="models") as bar:
        for place, ((label, model), step) in enumerate(zip(job.models(head=settings.head), steps, strict=True)):
            counts = None if text is None else token_counts(model, text, limit=settings.limit)
            options = {name: getattr(settings, name) for name in ("points", "sample", "seed")}
            options |= {"label": label, "step": step, "place": place}
            found, pictures = measure_vocabulary(model, counts=counts, texts=texts, **options)
            rows += found
            arrays |= pictures
            about = {"name": model.name, "revision": model.revision, "family": model.family}
            models[label] = {**about, "tied": is_tied(model)}
            job.notes += [f"{label}: {note}" if len(steps) > 1 else note for note in model.notes]
            bar.advance()
    if texts:
        arrays[name_of("texts")] = pack_texts(list(texts))
    data = {} if text is None else {"name": text.name, "fingerprint": text.fingerprint()}
    return Findings(rows, verdict(rows), arrays, protocol={"rows": "all rows of each matrix"}, data=data, model=models)


def verdict(rows: Sequence[Row]) -> str:
    """Each matrix (at the last step): I(W) against its reference, and how much of the energy its mean row carries."""
    last = max((row.step for row in rows if row.step is not None), default=None)
    models = list(dict.fromkeys(row.model for row in rows if row.step == last))
    sentences = [_sentence([row for row in rows if row.model == model and row.step == last]) for model in models]
    if len(models) > 1:
        return " ".join(f"{model}: {sentence}" for model, sentence in zip(models, sentences, strict=True))
    sentence = sentences[0] if last is None else f"at step {last:,}, {sentences[0]}"
    return sentence[:1].upper() + sentence[1:]


def _sentence(rows: Sequence[Row]) -> str:
    said = []
    for site in SITES:
        mine = {row.metric: row for row in rows if row.site == site and row.positions == "all"}
        if mine:
            found = mine["partition_one_sided"]
            said.append(
                f"the {site.removeprefix('vocabulary.')} matrix has I(W) = {_words(found.value)} (random directions: "
                f"{_words(found.null)}) and mean cosine {_words(mine['mean_cosine'].value)}; its mean row carries "
                f"{percent(mine['drift_ratio'].value)} of its energy"
            )
    return f"{', and '.join(said)}."


def _words(value: float | None) -> str:
    return "missing" if value is None else f"{value:.3g}"


_COLUMNS = ("partition_one_sided", "partition_both", "mean_cosine", "drift_ratio", "isoscore", "mean_norm")


def story(rows: Sequence[Row]) -> Story:
    """One line for each step (or model) and matrix, raw; the centred matrices on request."""
    cells = {(row.model, row.step, row.site, row.metric): row for row in rows if row.positions == "all"}
    places = list(dict.fromkeys(key[:3] for key in cells))
    several = len({place[0] for place in places}) > 1

    def line(place: tuple[str, int | None, str]) -> list[str]:
        model, step, site = place
        found = [cells.get((*place, metric)) for metric in _COLUMNS]
        values = [number(row.value if row else None) for row in found]
        random = number(found[0].null if found[0] else None)
        named = [model if step is None else f"{step:,}"] if several else []
        return [*named, site.removeprefix("vocabulary."), values[0], random, *values[1:]]

    first = (["step" if any(step is not None for _, step, _ in places) else "model"] if several else []) + ["matrix"]
    columns = (*first, "I(W)", "random", "I(W), ±", "cosine", "drift", "IsoScore", "norm")
    tables = [
        Table(columns, [line(place) for place in places if place[2].endswith(".centred") is centred], text=len(first))
        for centred in (False, True)
    ]
    return Story(tables[:1], more=tables[1:])


STUDY = Study(
    VocabularySettings,
    measure=measure,
    story=story,
    machine=(*OPENS_MODEL, "threads"),
    help="""
Measure the input and output vocabulary matrices: I(W) in both conventions, cosine, drift, spectrum.

Raw and centred, against random directions of the same norms; no data is needed. Over checkpoints of one training (names
that differ only in their step) this is the measurement of "Anisotropy is Not Inherent to Transformers".

Examples:
  anisoscope vocabulary EleutherAI/pythia-70m
  anisoscope vocabulary series/seed-0/checkpoint-* --data book.txt
  anisoscope vocabulary EleutherAI/pythia-70m@step0 EleutherAI/pythia-70m@step143000
""",
)
