"""A job: one study at work. It opens what the settings name, remembers what it read, and runs passes.

A pass can be killed and continued.

A study sees nothing of folders, resuming, processes or fingerprints: it asks its job for models, data and passes.

    for label, model in job.models():
        hidden = HiddenSums(HiddenCapture(model.module, sites=job.settings.sites))
        part = job.run(label, model, {"hidden": hidden})       # over all data, or this process's share of it

What was read is recorded with its fingerprint (`inputs`), so that a finished run is used again only while everything is
what it was, and an unfinished one continues only with the same model and data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from anisoscope.errors import StoreError, UsageError
from anisoscope.runs.changes import changed_files
from anisoscope.runs.settings import Machine
from anisoscope.runs.study import Study, gathered
from anisoscope.runs.work.collected import COUNTED, Collection, Part, StoredPart, counting
from anisoscope.runs.work.engines import Local
from anisoscope.runs.work.passes import OutOfMemory, follow, load_whole, run_batches, run_pass, whole_state
from anisoscope.runs.work.saved import Saved, find_saved, identity_of, slug
from anisoscope.runs.work.units import Unit, deal, left, parse_shard, roots, virtual_shard

if TYPE_CHECKING:
    from anisoscope.inputs.sources import Source
    from anisoscope.inputs.vectors.source import VectorSource
    from anisoscope.models.batches.plan import Batch, Batches
    from anisoscope.models.open import OpenModel
    from anisoscope.runs.store import Run

Work = Callable[[Unit, Saved | None, dict[str, Any]], dict[str, Any]]  # a unit into its sums; what is known of them


@dataclass
class Job:
    """One study with its settings, the machine it runs on, and the folder it keeps its state in (if any).

    - `given`: what came as an object instead of a name: modules, a processor, texts, arrays;
    - `unit`, `only`: the one share of the data, the one checkpoint of a series that a worker was told to do;
    - `repeats`: what was read by the run that is being repeated, if any;
    - `opened`: where a worker keeps its models from one unit to the next.
    """

    study: Study
    settings: Any
    machine: Machine = field(default_factory=Machine)
    folder: Path | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    engine: Local = field(default_factory=Local)
    begin: Callable[[], None] = lambda: None
    unit: Unit | None = None
    only: str | None = None
    opened: dict[Any, OpenModel] | None = None
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    repeats: Mapping[str, Any] = field(default_factory=dict)
    _sources: dict[tuple[str, str], Any] = field(default_factory=dict)
    _fingerprints: WeakKeyDictionary[Any, str] = field(default_factory=WeakKeyDictionary)  # of modules
    _tokens: int | None = None  # positions per batch, once memory has run out
    _shrunk: list[str] = field(default_factory=list)

    @property
    def first_share(self) -> bool:
        """Whether this process does what is done once for all shares of the data."""
        own = self.unit or (Unit() if self.machine.shard is None else parse_shard(self.machine.shard))
        return self.engine.chief and own.index == 0

    # -- opening -----------------------------------------------------------------------------------------------------

    def models(self, **options: Any) -> Iterator[tuple[str, OpenModel]]:
        """The models of the settings under unique labels, opened one after the other."""
        from anisoscope.models.labels import labels

        names = list(getattr(self.settings, "models", None) or [self.settings.model])
        chosen = list(getattr(self.settings, "name", ()))
        if chosen and len(chosen) != len(names):
            raise UsageError("one name per model", got=f"{len(chosen)} names", expected=f"{len(names)} models")
        if len(set(chosen)) < len(chosen) or not all(map(str.strip, chosen)):
            raise UsageError(
                "every model needs a name of its own", got=", ".join(map(repr, chosen)), do="change --name"
            )
        objects = self.given.get("models") or [None] * len(names)
        self._find([name for name, module in zip(names, objects, strict=True) if module is None])
        for name, label, module in zip(names, chosen or labels(names), objects, strict=True):
            yield label, self.open_model(name, label=label, module=module, **options)

    def _find(self, names: list[str]) -> None:
        """Refuse a model that is not there before another one has run for hours."""
        from anisoscope.models.checkpoints import split_revision
        from anisoscope.models.locate import locate

        for name, revision in map(split_revision, names):
            asked = revision or getattr(self.settings, "revision", None)
            locate(name, revision=asked, models_dir=self.machine.models_dir)

    def open_model(self, name: str, *, label: str | None = None, module: Any = None, **options: Any) -> OpenModel:
        """Open a model (`name@revision` is one of its revisions) as settings and machine say, and remember it."""
        key = (name, label)
        if self.opened is not None and key in self.opened:
            return self.opened[key]
        from dataclasses import replace

        from anisoscope.models.checkpoints import split_revision
        from anisoscope.models.open import open_model

        wanted = {
            field: getattr(self.settings, field)
            for field in ("revision", "tower", "modality", "tokenizer", "dtype", "pool", "prompt")
            if getattr(self.settings, field, None) is not None
        }
        place = {"models_dir": self.machine.models_dir, "trust_remote_code": self.machine.trust_remote_code}
        given = {"processor": self.given["processor"]} if self.given.get("processor") is not None else {}
        name, revision = (name, None) if module is not None else split_revision(name)
        options = {**wanted, **place, **given, **({} if revision is None else {"revision": revision}), **options}
        device = {"device": self.machine.device, "device_map": self.machine.device_map}
        model = open_model(name if module is None else module, **device, **options)
        if label is not None:
            model = replace(model, name=label)
        self.remember(
            f"model {label or model.name}",
            kind="model",
            name=name,
            revision=model.revision,
            asked=options.get("revision"),
            fingerprint=self._fingerprint(model),
            files=None if model.files is None else model.files.record(),
            own_code=model.own_code,
        )
        if self.opened is not None and self.only is None:
            self.opened[key] = model
        return model

    def _fingerprint(self, model: OpenModel) -> str:
        """The fingerprint of a model, computed once: hashing a module in memory takes seconds."""
        if model.module not in self._fingerprints:
            self._fingerprints[model.module] = model.fingerprint
        return self._fingerprints[model.module]

    def source(self, modality: str, *, field: str = "data") -> Source:
        """The data of the settings for a modality, opened once; what the package carries where none is named."""
        if (field, modality) not in self._sources:
            from anisoscope.inputs.sources import open_places, open_source

            settings = self.settings
            options: dict[str, Any] = {}
            if modality == "text":
                options = {name: getattr(settings, name) for name in ("documents", "column") if hasattr(settings, name)}
            given = self.given.get(field)
            if given is not None:
                source = open_source(given, modality, **options)  # pyright: ignore[reportArgumentType]
            else:
                source = open_places(getattr(settings, field), modality, **options)  # pyright: ignore
            self._take(source, field)
        return self._sources[field, modality]

    def use(self, source: Source, *, field: str = "data") -> None:
        """Let a source that the package carries be the data, where the settings name none."""
        self._take(source, field, in_memory=True)

    def _take(self, source: Source, field: str, **more: bool) -> None:
        self._sources[field, source.modality] = source
        record = {"modality": source.modality, "name": source.name, "fingerprint": source.fingerprint()}
        self.remember(f"{field} {source.modality}", kind="data", **record, **more)

    def vectors(self, field: str = "files", **options: Any) -> VectorSource:
        """The vectors of the settings' files, or the array that was given for them."""
        from anisoscope.inputs.vectors.source import open_vectors

        key = (field, "vectors")
        if key not in self._sources:
            given = self.given.get(field)
            if given is not None and self.given.get("groups") is not None and field == "files":
                options = {"groups": self.given["groups"]}
            share = getattr(self.settings, "rows_per_group_sample", None)
            source = open_vectors(getattr(self.settings, field) if given is None else given, **options)
            if share is not None:
                from anisoscope.inputs.vectors.sampled import SampledSource

                source = SampledSource(source, share, self.settings.seed)
            self._sources[key] = source
            record = {"group": options["group"]} if options.get("group") is not None else {}
            self.remember(field, kind="vectors", name=source.name, fingerprint=source.fingerprint(), **record)
        return self._sources[key]

    def open_run(self, folder: str | Path) -> Run:
        """A finished run that the settings name."""
        from anisoscope.runs.store import MANIFEST, open_run
        from anisoscope.runs.writing import file_sha256

        run = open_run(folder)
        self.remember(f"run {folder}", kind="run", name=str(folder), fingerprint=file_sha256(run.folder / MANIFEST))
        return run

    def remember(self, key: str, **record: Any) -> None:
        """Record something that was read, so that a later run can tell whether it changed."""
        self.inputs[key] = record

    def source_notes(self) -> list[str]:
        """What the sources had to say: files that could not be read, and remarks."""
        unreadable = [f"unreadable: {where}: {why}" for s in self._sources.values() for where, why in s.unreadable]
        remarks = [note for source in self._sources.values() for note in getattr(source, "notes", ())]
        return [*unreadable, *gathered(remarks, of="files")]

    # -- passes ------------------------------------------------------------------------------------------------------

    def batches(self, model: OpenModel, *, unit: Unit | None = None, **changes: Any) -> Batches:
        """The data of the settings as batches for a model; those of a unit of work, where one is given."""
        from anisoscope.models.batches.plan import make_batches

        names = ("length", "limit")
        options = {name: getattr(self.settings, name) for name in names if hasattr(self.settings, name)}
        options |= {"batch_tokens": self._tokens or self.machine.batch_tokens}
        if unit is not None and not unit.whole:
            options["wanted"] = lambda key: unit.takes(virtual_shard(key))
        field = changes.pop("field", "data")
        return make_batches(model, self.source(model.modality, field=field), **{**options, **changes})

    def kept(self, label: str, make: Callable[[], dict[str, Any]], modality: str | None = None) -> Part | None:
        """A part that was finished before, if its model and the data have not changed since."""
        if self.folder is None:
            return None
        folder = self.folder / "partial" / slug(label) / "total"
        if not self.engine.agreed(any(folder.glob("*.json"))):
            return None
        if not self.engine.chief:
            return Part(counting(make)())
        for saved in find_saved(folder, self._identity()):
            record, about = saved.about["input"], saved.about
            source = self.source(about["model"]["modality"])
            changed = changed_files(record, self)
            if changed or about["data"]["fingerprint"] != source.fingerprint():
                what = f"the model {record['name']} ({', '.join(changed[:3])})" if changed else "the data"
                raise StoreError(
                    f"{what} changed since this run was interrupted",
                    where=self.folder,
                    do="put it back as it was, or --existing replace to start anew",
                )
            self.inputs[f"model {label}"] = record
            return StoredPart(saved.verified(), counting(make), about)
        return None

    def _identity(self, **parts: Any) -> dict[str, str]:
        """What saved sums depend on."""
        shard = self.machine.shard or "the whole"
        return {**identity_of(settings=self.settings.as_dict(), **parts), "shard": shard}

    def keep(self, label: str, part: Part, make: Callable[[], dict[str, Any]]) -> Part:
        """Put a finished part on disk and out of memory; without a folder it stays as it is."""
        if self.folder is None or not self.engine.chief:
            return part
        folder = self.folder / "partial" / slug(label)
        identity = self._identity()
        saved = Saved(folder / "total", Unit(), identity, finished=True)
        saved.about = part.about = {**part.about, "input": self.inputs.get(f"model {label}", {})}
        for sums in part.sums.values():
            sums.seal()
        saved.save(whole_state(part.sums))
        for summed in folder.glob("*.*"):
            summed.unlink()
        return StoredPart(saved.folder / saved.state, counting(make), part.about)

    def run(
        self,
        label: str,
        model: OpenModel,
        make: Callable[[], dict[str, Any]],
        *,
        each: Callable[[dict[str, Any], Batch], None] | None = None,
        place: str = "",
        **changes: Any,
    ) -> Part:
        """One pass of a model over the data; the part of this process, or of all processes in the chief.

        `make` gives fresh observers; `changes` are options of `batches`. `each(observers, batch)` stands in for the one
        observed forward pass of a batch. `place` says how far a longer job has come.
        """
        source = self.source(model.modality, field=changes.get("field", "data"))
        identity = {"model": self._fingerprint(model), "data": source.fingerprint()}

        def work(unit: Unit, saved: Saved | None, observers: dict[str, Any]) -> dict[str, Any]:
            batches = self.batches(model, unit=unit, **changes)
            if each is None:
                run_pass(model, batches, observers, unit=unit, saved=saved, what=f"running {label}{place}")
            else:
                do = partial(each, observers)
                run_batches(batches, do, observers, unit=unit, saved=saved, what=f"running {label}{place}")
            return self._about(model, source, batches, observers, plan=f"{unit.index}-of-{unit.of}")

        return self.collect(label, make, work, identity)

    def sum_vectors(self, label: str, source: VectorSource, make: Callable[[], dict[str, Any]], add: Any) -> Part:
        """One pass over the rows of a source; `add(sums, block)` adds a block."""
        from anisoscope.runs.work.blocks import blocks_of

        def work(unit: Unit, saved: Saved | None, sums: dict[str, Any]) -> dict[str, Any]:
            start = unit.start if saved is None else max(saved.done, unit.start)
            total = source.rows if unit.whole else None
            told: dict[str, Any] = {"total": total, "unit": "vectors", "what": "measuring"}
            blocks = blocks_of(source, unit, start)
            follow(blocks, partial(add, sums), sums, size=lambda block: len(block.x), saved=saved, start=start, **told)
            return {"notes": []}

        return self.collect(label, make, work, {"data": source.fingerprint()})

    def collect(
        self, label: str, make: Callable[[], dict[str, Collection]], work: Work, identity: Mapping[str, Any]
    ) -> Part:
        """Do this process's units of a pass, from where they stood, and add up the sums of all processes."""
        self.begin()
        folder = None if self.folder is None else self.folder / "partial" / slug(label)
        known = self._identity(**identity)
        begun = {saved.unit: saved for saved in find_saved(folder, known)} if folder is not None else {}
        dealt = self.engine.agreed(self._dealt(begun))
        total: Part | None = None
        make = counting(make)
        if self.engine.chief and self.unit is None:  # what was done before, and nobody continues
            going_on = {unit for units in dealt for unit in units}
            for saved in begun.values():
                if saved.unit not in going_on:
                    load_whole(sums := make(), saved.load())
                    total = _joined(total, Part(sums, dict(saved.about)))
        for unit in dealt[0 if self.unit is not None else self.engine.rank]:
            saved = begun.get(unit) or (None if folder is None else Saved(folder, unit, known))
            total = _joined(total, self._part(unit, saved, make, work))
        return self.engine.reduce(total if total is not None else Part(make()))

    def _part(self, unit: Unit, saved: Saved | None, make: Callable[[], dict[str, Any]], work: Work) -> Part:
        """The sums of one unit: what was saved and the rest of its work, in smaller batches once memory runs out."""
        while True:
            sums = make()
            if saved is not None:
                load_whole(sums, saved.load())
                if saved.finished:
                    return Part(sums, saved.about)
            try:
                about = work(unit, saved, sums)
                break
            except OutOfMemory as error:
                if error.windows < 2:
                    raise
                tokens = error.tokens
            del sums
            saved = self._smaller(tokens, saved)
        about["notes"] = [*about["notes"], *(self._shrunk if saved is None else saved.notes)]
        if saved is not None:
            saved.finished, saved.about = True, about
            saved.save(whole_state(sums))
        return Part(sums, about)

    def _smaller(self, tokens: int, saved: Saved | None) -> Saved | None:
        """Halve the batches; the state that the unit continues from."""
        words = f"memory ran out with {tokens:,} positions per batch: fewer were run, which may change the last digits"
        self._tokens, self._shrunk = tokens // 2, self._shrunk or [words]
        if saved is None:
            return None
        saved = saved.as_on_disk()
        saved.batch_tokens, saved.notes = self._tokens, self._shrunk
        return saved

    def _dealt(self, begun: Mapping[Unit, Saved]) -> list[list[Unit]]:
        """The units of every process: what is left of what was begun, or a fresh deal."""
        if self.unit is not None:
            return [[self.unit]]
        world = self.engine.world
        finished = {unit: saved.finished for unit, saved in begun.items()}
        todo = left(roots(self.machine.shard, begun, world), finished)
        return deal(todo, {unit: saved.done for unit, saved in begun.items()}, world) if todo else [[]] * world

    def _about(
        self, model: OpenModel, source: Source, batches: Batches, observers: Mapping[str, Any], *, plan: str
    ) -> dict[str, Any]:
        report = vars(batches.report)
        seen = [observer.about() for name, observer in observers.items() if name != COUNTED]
        protocol = {name: words for one in seen for name, words in one["protocol"].items()}
        extra = {"dtype": getattr(self.settings, "dtype", "float32"), "data": source.name}
        return {
            "model": {name: getattr(model, name) for name in ("name", "revision", "family", "modality")},
            "protocol": {**batches.protocol, **protocol, **extra},
            "reports": {plan: dict(report)},
            "data": {"name": source.name, "fingerprint": source.fingerprint()},
            "sites": [site for one in seen for site in one["sites"]],
            "notes": [*model.notes, *(note for one in seen for note in one["notes"])],
        }


def _joined(total: Part | None, part: Part) -> Part:
    if total is None:
        return part
    total.merge(part)
    return total
