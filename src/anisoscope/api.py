"""The public functions of the library: one for each study, with the settings of its command. Read this first.

    import anisoscope

    anisoscope.vectors(x)                                  # an array or tensor (n, d), or files
    anisoscope.measure("bert-base-uncased", texts)         # a model by name, or a module with its tokenizer
    anisoscope.calibrate("embeddings.npy")                 # similarity floor and thresholds
    anisoscope.compare(before, after)                      # two measurements or run folders
    anisoscope.open_run("anisoscope-runs/measure-…")       # whatever was kept

Each takes the settings of its command as keywords, the options of the machine (`device`, `batch_tokens`, …), `out` to
keep the run and `existing` as on the command line. Arrays, modules and lists of texts are accepted wherever a file or a
name is; such a run cannot be repeated from its file, and says so. Each returns a `Result`: `.show()`, `.table()`,
`.value(metric, site=…)`, `.plot()`, `.figures()`, `.report()`, `.save(folder)`.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from anisoscope.errors import UsageError
from anisoscope.results import Result
from anisoscope.runs import store
from anisoscope.runs.changes import IN_MEMORY
from anisoscope.runs.finding import entries
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.perform import perform
from anisoscope.runs.settings import Machine, nearest
from anisoscope.runs.store import Existing, Run
from anisoscope.runs.study import find_study

Names = str | Path | Sequence[str | Path]
Asked = tuple[dict[str, Any], dict[str, Any]]  # what was given as objects, and by name


def measure(model: Any, data: Any = None, *, processor: Any = None, **settings: Any) -> Result:
    """How anisotropic each layer of a model is. `model`: a Hub id, a folder, a GGUF file, a module, or several."""
    return _on_models("measure", model, data, processor, settings)


def attention(model: Any, data: Any = None, *, processor: Any = None, **settings: Any) -> Result:
    """Queries, keys and attention rows of a model, by layer and head."""
    return _on_models("attention", model, data, processor, settings)


def intervene(model: Any, data: Any = None, *, processor: Any = None, **settings: Any) -> Result:
    """Remove part of the drift while a model runs, and see what that changes."""
    return _on_models("intervene", model, data, processor, settings)


def final_norm(models: Any, data: Any = None, *, processor: Any = None, **settings: Any) -> Result:
    """What a model's norms do to its geometry; names that differ only in their step are a series."""
    return _on_models("final-norm", models, data, processor, settings)


def vocabulary(models: Any, data: Any = None, *, processor: Any = None, **settings: Any) -> Result:
    """Input and output vocabulary matrices; names that differ only in their step are a series."""
    return _on_models("vocabulary", models, data, processor, settings)


def sweep(series: str | Path, data: Any = None, **settings: Any) -> Result:
    """Hidden states and attention along a series of checkpoints."""
    given, named = _data(data)
    return _perform("sweep", {"series": str(series), **named, **settings}, given)


def vectors(files: Any, groups: Sequence[Any] | None = None, *, against: Any = None, **settings: Any) -> Result:
    """Vectors in files or arrays (n, d); `groups` names the sequence (document, user, …) of each row of an array.

    `against` is a second cloud; with `aligned=True` its rows belong to those of the first, one by one.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_normal((2000, 16)) + 1.0
    >>> found = vectors(x, neighbours=False)
    >>> str(found.verdict), round(found.value("mean_cosine"), 2)
    ('drifted', 0.51)
    """
    return _on_vectors("vectors", settings, groups, _vectors("files", files), _vectors("against", against))


def calibrate(
    files: Any, data: Any = None, *, queries: Any = None, groups: Sequence[Any] | None = None, **settings: Any
) -> Result:
    """Similarity floor and thresholds of embeddings, or of a model on `data`, and what would help."""
    asked = _vectors("files", files), _data(data), _vectors("queries", queries)
    return _on_vectors("calibrate", settings, groups, *asked)


def remedy(
    files: Any, data: Any = None, *, queries: Any = None, groups: Sequence[Any] | None = None, **settings: Any
) -> Result:
    """Fit a correction of embeddings, or of a model on `data`; `Remedy.load(out)` takes it from the run."""
    asked = _vectors("files", files), _data(data), _vectors("queries", queries)
    return _on_vectors("remedy", settings, groups, *asked)


def advise(files: Any, data: Any = None, *, groups: Sequence[Any] | None = None, **settings: Any) -> Result:
    """How few dimensions and bits embeddings, or those of a model on `data`, can be stored in."""
    return _on_vectors("advise", settings, groups, _vectors("files", files), _data(data))


def null(dim: int | Sequence[int], **settings: Any) -> Result:
    """What isotropy would look like in this many dimensions."""
    return _perform("null", {"dim": [dim] if isinstance(dim, int) else list(dim), **settings}, {})


def block(**settings: Any) -> Result:
    """The untrained block under a drift."""
    return _perform("block", settings, {})


def variants(data: Names = (), **settings: Any) -> Result:
    """Train kinds of attention, or objectives, side by side and measure them."""
    paths = [str(one) for one in ([data] if isinstance(data, str | Path) else data)]
    return _perform("variants", {**({"data": paths} if paths else {}), **settings}, {})


def compare(first: Any, second: Any, **settings: Any) -> Result:
    """Second minus first, site by site; each a run folder, an opened run or a measurement."""
    return _on_two("compare", {"first": first, "second": second}, settings)


def gate(first: Any, second: Any, data: Any = None, *, processor: Any = None, **settings: Any) -> Result:
    """Equivalence tests between two runs, clouds (files or arrays), or models on `data`; `rules` is a TOML file."""
    given, named = _data(data)
    extra = {} if processor is None else {"processor": processor}
    return _on_two("gate", {"first": first, "second": second}, {**named, **settings}, {**given, **extra})


def merge(runs: Sequence[str | Path | Run], out: str | Path, *, existing: Existing = "refuse") -> Result:
    """Add up the runs of shards into the run that one pass over all the data gives."""
    from anisoscope.runs.merging import merge_runs

    return _result(merge_runs(runs, out, existing=existing))


def report(runs: Any, path: str | Path = "report.html", *, title: str | None = None, force: bool = False) -> Path:
    """One HTML page of runs (folders, opened runs, measurements) that opens offline.

    A page that is there is written again; a file of another kind only with `force`.
    """
    from anisoscope.report.page.write import write_page
    from anisoscope.runs.writing import check_target

    check_target(Path(path), kind="page", force=force)
    several = list(runs) if isinstance(runs, list | tuple) else [runs]
    with ExitStack() as stack:
        opened = [store.open_run(stack.enter_context(_folder(what))) for what in several]
        return write_page(opened, Path(path), title=title)


def open_run(folder: str | Path) -> Result:
    """The measurement that a run folder holds."""
    return Result.of_run(store.open_run(folder))


# -- from objects to settings ------------------------------------------------------------------------------------------


def _perform(name: str, settings: dict[str, Any], given: dict[str, Any]) -> Result:
    """Carry out a study with settings, machine options, `out` and `existing` all given as keywords."""
    study = find_study(name)
    machine = {key: settings.pop(key) for key in list(settings) if key in study.machine}
    out, existing = settings.pop("out", None), settings.pop("existing", "resume")
    figures = settings.pop("figures", False)
    known = (*study.settings.model_fields, *study.machine, "out", "existing", "figures")
    for key in settings:
        if key not in known:
            do = f"there is no such setting{nearest(key, known)}"
            raise UsageError(f"{name}: the setting {key!r} is wrong", got=settings[key], do=do)
    checked = study.settings.check(settings, command=name)
    found = _result(
        perform(study, checked, machine=Machine.check(machine, command=name), out=out, existing=existing, given=given)
    )
    if figures:
        found.figures()
    return found


def _result(found: Measurement) -> Result:
    return Result(**{name: getattr(found, name) for name in Measurement.__dataclass_fields__})


def _on_models(name: str, model: Any, data: Any, processor: Any, settings: dict[str, Any]) -> Result:
    several = list(model) if isinstance(model, list | tuple) else [model]
    objects = [None if isinstance(one, str | Path) else one for one in several]
    names = [f"{IN_MEMORY} {type(one).__name__}" if not isinstance(one, str | Path) else str(one) for one in several]
    field = "models" if "models" in find_study(name).settings.model_fields else "model"
    given, named = _data(data)
    if any(one is not None for one in objects):
        given["models"] = objects
    if processor is not None:
        given["processor"] = processor
    return _perform(name, {field: names if field == "models" else names[0], **named, **settings}, given)


def _on_two(name: str, sides: dict[str, Any], settings: dict[str, Any], given: dict[str, Any] | None = None) -> Result:
    """A study of two runs; what is neither a run nor a path stays an object, which `gate` measures first."""
    runs = {side: what for side, what in sides.items() if isinstance(what, str | Path | Run | Measurement)}
    objects = {side: what for side, what in sides.items() if side not in runs}
    if objects and name != "gate":
        got = ", ".join(type(what).__name__ for what in objects.values())
        do = "measure it first: anisoscope.vectors(x), or anisoscope.measure(model, texts)"
        raise UsageError(f"`{name}` takes runs", got=got, expected="run folders or measurements", do=do)
    with ExitStack() as stack:
        named = {side: str(stack.enter_context(_folder(what))) for side, what in runs.items()}
        named |= {side: f"{IN_MEMORY} {type(what).__name__}" for side, what in objects.items()}
        unsaved = {side: what for side, what in runs.items() if isinstance(what, Measurement) and what.run is None}
        return _perform(name, {**named, **settings}, {**unsaved, **objects, **(given or {})})


def _data(data: Any) -> Asked:
    """What was given as objects, and what was given by name. A list of texts is an object, a list of paths is not."""
    if data is None:
        return {}, {}
    if isinstance(data, str | Path):
        return {}, {"data": [str(data)]}
    if isinstance(data, list | tuple) and data and all(isinstance(one, Path) for one in data):
        return {}, {"data": [str(one) for one in data]}
    return {"data": data}, {"data": [f"{IN_MEMORY} {type(data).__name__}"]}


def _on_vectors(name: str, settings: dict[str, Any], groups: Sequence[Any] | None, *parts: Asked) -> Result:
    """A study of vectors, or of those that a model makes; `groups` are the sequences of the rows of an array."""
    given, named = (dict(ChainMap(*some)) for some in zip(*parts, strict=True))
    return _perform(name, {**named, **settings}, given if groups is None else {**given, "groups": groups})


def _vectors(field: str, files: Any) -> Asked:
    if files is None:
        return {}, {}
    several = list(files) if isinstance(files, list | tuple) else [files]
    if all(isinstance(one, str | Path) for one in several):
        return {}, {field: [str(one) for one in several]}
    return {field: files}, {field: [f"{IN_MEMORY} {type(files).__name__}"]}


@contextmanager
def _folder(what: Any) -> Iterator[Path]:
    """The folder of a run, a measurement, or of what is in memory only."""
    if isinstance(what, Run):
        yield what.folder
    elif isinstance(what, Measurement) and what.run is None:
        with TemporaryDirectory() as folder:
            yield what.save(Path(folder) / what.command).folder
    elif isinstance(what, Measurement):
        assert what.run is not None
        yield what.run.folder
    else:
        yield Path(what)


def __getattr__(name: str) -> Callable[..., Result]:
    """A study that has no function of its own here is reached by its name, with its settings as keywords."""
    if name.replace("_", "-") not in entries():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return lambda **settings: _perform(name.replace("_", "-"), settings, {})
