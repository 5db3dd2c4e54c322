"""From the sums of hidden states to rows: what `measure`, `sweep`, `variants` and `final-norm` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from anisoscope.capture.embedding import SITE as EMBEDDING
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.errors import InputError, UsageError
from anisoscope.inference.cloud import measure_cloud
from anisoscope.inference.verdict import Verdict, verdict_of_many
from anisoscope.models.devices import sums_device
from anisoscope.runs.measurement import cloud_rows
from anisoscope.runs.progress import track
from anisoscope.runs.settings import Hidden, Machine
from anisoscope.runs.study import gathered, words_of
from anisoscope.runs.table import Row
from anisoscope.runs.work.collected import Part
from anisoscope.runs.work.embeddings import EmbeddingSums
from anisoscope.runs.work.observers import HiddenSums

if TYPE_CHECKING:
    from anisoscope.models.open import OpenModel


THINGS = {"text": "tokens", "speech": "frames", "vision": "patches"}  # what a verdict calls the vectors


@dataclass
class SiteRows:
    """The rows of every site of one model, the verdicts on them, and what has to be said about them."""

    rows: list[Row] = field(default_factory=list)
    verdicts: list[Mapping[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def hidden_sums(model: OpenModel, settings: Any, machine: Machine, **changes: Any) -> HiddenSums:
    """The observer of a model's hidden states, as the settings say."""
    names = [name for name in Hidden.model_fields if name != "spectrum"]
    names = names if "maps" in type(settings).model_fields else ["specials"]
    asked = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
    capture = HiddenCapture(model.module, **asked)
    spectrum = with_spectrum("none" if asked.get("maps") == "flatten" else settings.spectrum)
    return HiddenSums(capture, **{"sample": settings.sample, "seed": settings.seed, "spectrum": spectrum, **changes})


def with_spectrum(asked: str) -> Callable[[Sequence[str], str], bool]:
    """Whether the spectrum of a site is asked for, among all sites in order of computation.

    >>> sites = ["embeddings", "block.0", "block.1", "block.2", "block.3", "final_norm"]
    >>> [site for site in sites if with_spectrum("every:2")(sites, site)]
    ['embeddings', 'block.1', 'block.3', 'final_norm']
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
    layers = [pattern for pattern in settings.sites if pattern != EMBEDDING]
    found: dict[str, Any] = {}
    if layers:
        found["hidden"] = hidden_sums(model, settings.model_copy(update={"sites": layers}), machine)
    if any(fnmatchcase(EMBEDDING, pattern) for pattern in settings.sites):
        if model.encoder is not None:
            found["embedding"] = embedding_sums(model, settings, machine)
        elif EMBEDDING in settings.sites:
            raise UsageError(
                "this model does not say how one vector is made of a text",
                where=model.name,
                expected="modules.json, as sentence-transformers writes it",
                do="--pool mean, or another way of pooling",
            )
    return found


def embedding_sums(model: OpenModel, settings: Any, machine: Machine) -> EmbeddingSums:
    """The observer of the vectors of whole texts."""
    device, spectrum = sums_device(machine.device), getattr(settings, "spectrum", "all") != "none"
    return EmbeddingSums(model.encoder, spectrum=spectrum, sample=settings.sample, seed=settings.seed, device=device)


def site_rows(part: Part, label: str, *, spectrum: str = "all", neighbours: bool = True, **context: Any) -> SiteRows:
    """Measure every site of a part, in order of computation; `context` fills further columns of the rows."""
    about = part.about
    there = {site: name for name in ("hidden", "embedding") for site in part.keys(name)}
    layers = dict(about["sites"])
    order = [name for name in layers if name in there]
    states = [name for name in order if name != EMBEDDING]
    shared = {"model": label, "revision": about["model"]["revision"], "protocol": words_of(about["protocol"])}
    shared |= context
    things = THINGS.get(about["model"]["modality"], "vectors")
    found, notes, wants = SiteRows(), [], with_spectrum(spectrum)
    with track("computing metrics", total=len(order), unit="sites") as bar:
        for name in order:
            moments = part.get(there[name], name)
            _check_something(name, moments.sums())
            spectra = wants(states, name) if name != EMBEDDING else spectrum != "none"
            called = "texts" if name == EMBEDDING else things
            cloud = measure_cloud(moments, spectra=spectra, neighbours=neighbours, things=called)
            found.rows += cloud_rows(cloud, site=name, layer=layers[name], **shared)
            found.verdicts.append({"model": label, "site": name, **cloud.verdict.as_dict()})
            notes += [(name, note) for note in cloud.notes]
            bar.advance()
    found.notes = gathered(notes)
    return found


def _check_something(site: str, sums: Any) -> None:
    if sums.n < 2:
        raise InputError(
            "there is nothing to measure at this site",
            where=site,
            got=f"{sums.n} usable vectors, {sums.nonfinite} with NaN or infinite entries",
            do="look for broken weights or inputs",
        )


def judge(verdicts: Sequence[Mapping[str, Any]]) -> Verdict:
    """One verdict for all sites of all models."""
    several = len({one["model"] for one in verdicts}) > 1
    named = {f"{one['model']} {one['site']}" if several else str(one["site"]): one for one in verdicts}
    return verdict_of_many({name: Verdict.from_dict(one) for name, one in named.items()})
