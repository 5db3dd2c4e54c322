"""From the sums of hidden states to rows: what `measure`, `sweep`, `variants` and `final-norm` share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from anisoscope.accumulate.outputs import Outputs
from anisoscope.accumulate.sums import Sums
from anisoscope.capture.embedding import SITE as EMBEDDING
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.capture.output import SITE as LOGITS
from anisoscope.capture.output import batch_positions, output_head
from anisoscope.errors import InputError, UsageError
from anisoscope.inference.cloud import Cloud, measure_cloud
from anisoscope.inference.extremes import enters
from anisoscope.inference.outputs import output_estimates
from anisoscope.inference.verdict import Verdict, verdict_of_many
from anisoscope.models.devices import sums_device
from anisoscope.runs.measurement import cloud_rows
from anisoscope.runs.progress import track
from anisoscope.runs.settings import Hidden, Machine
from anisoscope.runs.study import gathered, words_of
from anisoscope.runs.table import Row, is_embedding
from anisoscope.runs.work.ahead import in_order, side_by_side
from anisoscope.runs.work.collected import Part
from anisoscope.runs.work.observers import HiddenSums
from anisoscope.runs.work.observers.embeddings import EmbeddingSums
from anisoscope.runs.work.observers.outputs import OutputSums
from anisoscope.runs.work.observers.texts import TextSums

if TYPE_CHECKING:
    from anisoscope.models.encoders import Encoder
    from anisoscope.models.open import OpenModel


THINGS = {"text": "tokens", "speech": "frames", "vision": "patches"}  # what a verdict calls the vectors


@dataclass
class SiteRows:
    """The rows of every site of one model, the verdicts on them, and the notes on them."""

    rows: list[Row] = field(default_factory=list)
    verdicts: list[Mapping[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def hidden_sums(model: OpenModel, settings: Any, machine: Machine, **changes: Any) -> HiddenSums:
    """The observer of a model's hidden states, as the settings say."""
    names = [name for name in Hidden.model_fields if name != "spectrum"]
    names = names if "maps" in type(settings).model_fields else ["specials", "parts"]
    asked = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
    capture = HiddenCapture(model.module, **asked)
    spectrum = with_spectrum("none" if asked.get("maps") == "flatten" else settings.spectrum)
    return HiddenSums(capture, **{"sample": settings.sample, "seed": settings.seed, "spectrum": spectrum, **changes})


def with_spectrum(asked: str) -> Callable[[Sequence[str], str], bool]:
    """Whether the spectrum of a site is asked for, among all sites in order of computation.

    >>> sites = ["embeddings", "block.0", "block.1", "block.2", "block.3", "final_norm"]
    >>> [site for site in sites if with_spectrum("every:2")(sites, site)]
    ['block.0', 'block.2', 'final_norm']
    """
    word, _, step = asked.partition(":")

    def wants(sites: Sequence[str], site: str) -> bool:
        if word in ("all", "none"):
            return word == "all"
        after = len(sites) - 1 - sites.index(site)
        return after % int(step) == 0 if word == "every" else after == 0

    return wants


def observers(model: OpenModel, settings: Any, machine: Machine) -> dict[str, Any]:
    """The observers of the sites that are asked for: hidden states, and the vector of a whole text."""
    layers = [pattern for pattern in settings.sites if not is_embedding(pattern)]
    found: dict[str, Any] = {}
    if layers:
        found["hidden"] = hidden_sums(model, settings.model_copy(update={"sites": layers}), machine)
    asked = len(layers) < len(settings.sites)
    if asked or (model.encoder is not None and any(fnmatchcase(EMBEDDING, pattern) for pattern in settings.sites)):
        sample = {"sample": settings.sample, "seed": settings.seed}
        found["embedding"] = embedding_sums(model, machine, spectrum=settings.spectrum != "none", **sample)
    if settings.logits:
        found["output"] = output_sums(model)
    return found | kept_texts(settings)


def kept_texts(settings: Any, **changes: Any) -> dict[str, TextSums]:
    """The observer of the texts of sampled vectors, where they are to be kept."""
    made = {"capacity": settings.sample, "seed": settings.seed, "specials": settings.specials, **changes}
    return {"texts": TextSums(**made)} if settings.keep_text else {}


def output_sums(model: OpenModel) -> OutputSums:
    """The observer of a language model's logits."""
    if output_head(model.module) is None:
        raise UsageError(
            "this model has no language-model head",
            where=model.name,
            expected="a masked or causal language model",
            do="leave out its logits",
        )
    return OutputSums()


def smaller_batches(model: OpenModel, machine: Machine) -> dict[str, Any]:
    """How many positions a batch has where logits are looked at, unless the machine's settings do."""
    return {"batch_tokens": machine.batch_tokens or batch_positions(model.module)}


def embedding_sums(model: OpenModel, machine: Machine, **options: Any) -> EmbeddingSums:
    """The observer of the vectors of whole texts; refuses a model that makes none."""
    return EmbeddingSums(encoder_of(model), device=sums_device(machine.device), **options)


def encoder_of(model: OpenModel) -> Encoder:
    """What makes one vector of a text; an error where the model does not say."""
    if model.encoder is None:
        raise UsageError(
            "this model does not say how to make one vector of a text",
            where=model.name,
            expected="modules.json, as sentence-transformers writes it",
            do="--pool mean, or another way of pooling",
        )
    return model.encoder


def site_rows(part: Part, label: str, *, spectrum: str = "all", neighbours: bool = True, **context: Any) -> SiteRows:
    """Measure every site of a part, in order of computation; `context` fills further columns of the rows."""
    about = part.about
    there = {site: name for name in ("hidden", "embedding") for site in part.keys(name)}
    layers = dict(about["sites"])
    order = [name for name in layers if name in there]
    states = [name for name in order if not is_embedding(name)]
    shared = {"model": label, "revision": about["model"]["revision"], "protocol": words_of(about["protocol"])}
    shared |= context
    things = THINGS.get(about["model"]["modality"], "vectors")
    found, notes, wants = SiteRows(), [], with_spectrum(spectrum)

    def clouds() -> Iterator[Callable[[], Cloud]]:
        read: dict[str, Sums] = {}
        for name in order:
            moments = part.get(there[name], name)
            read[name] = moments.sums()
            if read[name].n < 2:
                raise InputError(
                    "there is nothing to measure at this site",
                    where=name,
                    got=f"{read[name].n} usable vectors, {read[name].nonfinite} with NaN or infinite entries",
                    do="look for broken weights or inputs",
                )
            yield partial(
                measure_cloud,
                moments,
                spectra=spectrum != "none" if is_embedding(name) else wants(states, name),
                neighbours=neighbours,
                things=_things(name, things),
                entered=read.pop(enters(name), None),
            )

    threads = torch.get_num_threads()
    workers = side_by_side(part.get(there[order[-1]], order[-1]).d, threads) if order else 1
    with track("computing metrics", total=len(order), unit="sites") as bar:
        for name, cloud in zip(order, in_order(clouds(), workers, threads), strict=True):
            found.rows += cloud_rows(cloud, site=name, layer=layers[name], **shared)
            found.verdicts.append({"model": label, "site": name, **cloud.verdict.as_dict()})
            notes += [(name, note) for note in cloud.notes]
            bar.advance()
    found.rows += logits_rows(part, Row(**shared))
    found.notes = gathered(notes)
    return found


def logits_rows(part: Part, like: Row) -> list[Row]:
    """The rows of the logits of a part, where it has any."""
    return [row for site in part.keys("output") for row in output_rows(part.get("output", site), like)]


def output_rows(outputs: Outputs, like: Row) -> list[Row]:
    """The rows of a model's output."""
    sums = {name: tensor.numpy() for name, tensor in outputs.sums.items()}
    return [replace(like, site=LOGITS, **asdict(one)) for one in output_estimates(sums, outputs.vocabulary)]


def _things(site: str, things: str) -> str:
    """What a verdict calls the vectors of a site."""
    if not is_embedding(site):
        return things
    return "images" if site.endswith(".image") else "texts"


def judge(verdicts: Sequence[Mapping[str, Any]]) -> Verdict:
    """One verdict for all sites of all models; an error where none has a vector, as in an empty shard."""
    if not verdicts:
        raise InputError("there is nothing to measure")
    several = len({one["model"] for one in verdicts}) > 1
    named = {f"{one['model']} {one['site']}" if several else str(one["site"]): one for one in verdicts}
    return verdict_of_many({name: Verdict.from_dict(one) for name, one in named.items()})
