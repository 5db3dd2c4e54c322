"""`anisoscope paper`: every figure of the two papers from its recipe, at the scale of the hub or of a demo.

`paper.toml` holds the recipes: which runs a figure needs, how it is drawn, what the paper says of it and how that is
checked. Several figures share a run, and a run is what any other command makes: kept in its own folder, resumed after a
kill, used again the next time. At the scale `hub` the published checkpoints and data are run; at the scale `demo` small
stand-ins (`paper_stand_ins`), named `stand-in/…` in every table and marked on every figure.

    results = perform(choose(["6a", "13"]), Scale("demo"), out=Path("paper"))

What was seen is kept in `results.json` of the folder, which the page is made from; figures that were made before stay
in it, so a folder can be filled figure by figure.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from anisoscope.errors import AnisoscopeError, StoreError, UsageError
from anisoscope.models import catalogue
from anisoscope.runs.perform import perform as perform_study
from anisoscope.runs.settings import Machine
from anisoscope.runs.store import Existing, Run
from anisoscope.runs.study import find_study
from anisoscope.runs.writing import atomic
from anisoscope.studies.paper.checks import Seen, check
from anisoscope.studies.paper.stand_ins import prepare, stand_in_name, steps_of_stand_in

_RECIPES = Path(__file__).with_name("paper.toml")
WIKITEXT = "hf:Salesforce/wikitext/wikitext-103-raw-v1:validation"
RESULTS = "results.json"
Announce = Callable[[str], None]


@dataclass(frozen=True)
class Statement:
    """What the paper says of a figure, and the check that tells whether it holds."""

    says: str
    check: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One figure's recipe.

    - `draw`: functions of `report.figures`, as `module.function`.
    - `together`: they take all runs at once, not one after the other.
    - `modelless`: nothing published is needed, so no scale makes it a stand-in.
    """

    name: str
    title: str
    caption: str
    runs: tuple[str, ...]
    draw: tuple[str, ...]
    together: bool = False
    modelless: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    statements: tuple[Statement, ...] = ()


@dataclass(frozen=True)
class Scale:
    """`demo` (stand-ins, what is embedded) or `hub` (published checkpoints), and where the data of each kind lies.

    Without places the demo reads what is embedded and the hub scale WikiText-103; speech and images of the papers are
    behind licences, so that they have to be named.
    """

    name: Literal["demo", "hub"]
    text: tuple[str, ...] = ()
    speech: tuple[str, ...] = ()
    images: tuple[str, ...] = ()

    def data(self, kind: str) -> list[str]:
        places = list(getattr(self, kind))
        if places or self.name == "demo":
            return places
        if kind == "text":
            return [WIKITEXT]
        raise UsageError(
            f"this figure needs {kind}", do=f"name a folder: --{kind} FOLDER (the papers' data is behind a licence)"
        )


@dataclass(frozen=True)
class Result:
    """What became of a figure: its runs, and each statement with what was seen; or why it could not be made."""

    figure: Figure
    runs: tuple[Run, ...]
    seen: tuple[tuple[Statement, Seen], ...]
    stands_in: str | None
    failed: str = ""


@cache
def _recipes() -> dict[str, Any]:
    with _RECIPES.open("rb") as stream:
        return tomllib.load(stream)


@cache
def figures() -> tuple[Figure, ...]:
    """All figures of both papers, in the order of the recipes."""
    return tuple(map(_figure, _recipes()["figures"]))


def _figure(written: dict[str, Any]) -> Figure:
    own = {"says", "check"}
    statements = tuple(
        Statement(each["says"], each["check"], {name: value for name, value in each.items() if name not in own})
        for each in written.get("statements", ())
    )
    draw = written["draw"]
    fields = {**written, "runs": tuple(written["runs"]), "statements": statements}
    return Figure(**{**fields, "draw": (draw,) if isinstance(draw, str) else tuple(draw)})


def choose(names: Sequence[str]) -> list[Figure]:
    """The figures of these names; `6` stands for 6a and 6b, no name for all.

    >>> [figure.name for figure in choose(["6", "m2"])]
    ['6a', '6b', 'M2']
    """
    chosen: list[Figure] = []
    for name in names:
        wanted = name.lower().removeprefix("figure").strip("_- ")
        found = [figure for figure in figures() if figure.name.lower() in (wanted, f"{wanted}a", f"{wanted}b")]
        if not found:
            known = ", ".join(figure.name for figure in figures())
            raise UsageError("no figure of the papers has this name", got=name, expected=known)
        chosen += found
    unique = {figure.name: figure for figure in chosen}
    return list(unique.values()) if names else list(figures())


def perform(
    chosen: Sequence[Figure],
    scale: Scale,
    *,
    out: Path,
    machine: Machine | None = None,
    existing: Existing = "resume",
    announce: Announce = lambda line: None,
) -> list[Result]:
    """Make (or use again) the runs of the figures and check their statements.

    A run that fails costs the figures that need it, and no other.
    """
    machine = machine or Machine()
    earlier = _earlier(out, scale)
    made: dict[str, list[Run]] = {}
    failed: dict[str, str] = {}
    for name in dict.fromkeys(run for figure in chosen for run in figure.runs):
        announce(f"{name}: {_recipes()['runs'][name]['command']}")
        try:
            with _threads(scale, _recipes()["runs"][name]["command"]):
                made[name] = list(_make(name, scale, out, machine, existing=existing, announce=announce))
        except AnisoscopeError as error:
            failed[name] = str(error)
            announce(f"{name}: {failed[name].splitlines()[0]}")
    results = [_result(figure, made, failed, scale) for figure in chosen]
    _keep(results, earlier, scale, out)
    return results


@contextmanager
def _threads(scale: Scale, command: str) -> Iterator[None]:
    """One thread where models are stand-ins: so small, they run slower on more."""
    import torch

    before = torch.get_num_threads()
    if scale.name == "demo" and command != "block":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _result(figure: Figure, made: dict[str, list[Run]], failed: dict[str, str], scale: Scale) -> Result:
    stands_in = None if scale.name == "hub" or figure.modelless else _about_stand_ins(figure)
    missing = [failed[name] for name in figure.runs if name in failed]
    if missing:
        return Result(figure, (), (), stands_in, failed=missing[0])
    runs = tuple(run for name in figure.runs for run in made[name])
    seen = tuple((said, check(said.check, runs, said.options)) for said in figure.statements)
    return Result(figure, runs, seen, stands_in)


def _about_stand_ins(figure: Figure) -> str:
    """What stands in for the published models of a figure, in a few words."""
    recipes = _recipes()
    names = [model for run in figure.runs for model in _models(recipes["runs"][run], "demo")]
    if not names:
        return "a small byte-level BERT trained for this package, not the published MultiBERTs"
    kinds = {next(iter(recipes["stand_ins"][name.rpartition("/")[2]])) for name in names}
    words = {"made": "untrained weights", "embedded": "a small BERT", "trained": "small models trained on the spot"}
    return f"{', '.join(text for kind, text in words.items() if kind in kinds)}, not the published checkpoints"


def _models(recipe: dict[str, Any], scale: str) -> list[str]:
    return [*recipe.get("settings", {}).get("models", ()), *recipe.get(scale, {}).get("each", ())]


def _make(
    name: str, scale: Scale, out: Path, machine: Machine, *, existing: Existing, announce: Announce
) -> Iterator[Run]:
    """The runs of one recipe: one, or one for each of its models; a model that cannot be opened costs its own run."""
    recipe = _recipes()["runs"][name]
    settings = {**recipe.get("settings", {}), **recipe.get(scale.name, {})}
    each = settings.pop("each", ())
    if "data" in recipe:
        settings["data"] = scale.data(recipe["data"])
    options: dict[str, Any] = {"existing": existing}
    if recipe["command"] not in ("block", "null"):
        if scale.name == "demo":
            machine = Machine(models_dir=str(out / "stand-ins"), device=machine.device)
            prepare(_models(recipe, "demo"), _recipes()["stand_ins"], out / "stand-ins", announce=announce)
            if "models" in settings:
                settings["models"] = [stand_in_name(model) for model in settings["models"]]
        options["machine"] = machine
    if not each:
        yield _run(recipe["command"], settings, out / "runs" / name, options)
        return
    failed: list[AnisoscopeError] = []
    for model in each:
        own = {**settings, "models": _along_training(model, scale, out)}
        try:
            yield _run(recipe["command"], own, out / "runs" / f"{name}-{model.rpartition('/')[2]}", options)
        except AnisoscopeError as error:
            announce(f"{name}, {model}: {str(error).splitlines()[0]}")
            failed.append(error)
    if len(failed) == len(each):
        raise failed[0]


def _run(command: str, settings: dict[str, Any], folder: Path, options: dict[str, Any]) -> Run:
    study = find_study(command)
    checked = study.settings.check(settings, command=command, where=_RECIPES.name)
    found = perform_study(study, checked, out=folder, **options)
    assert found.run is not None
    return found.run


def _along_training(model: str, scale: Scale, out: Path) -> list[str]:
    """The checkpoints of a model by name, or the model alone where its training was not published."""
    if scale.name == "demo":
        return [f"{stand_in_name(model)}@step{step}" for step in steps_of_stand_in(model, out / "stand-ins")]
    if catalogue.lookup(model).series is None:
        return [model]
    return [f"{one.model}@{one.revision}" for one in catalogue.series(model, steps="paper")]


def _earlier(out: Path, scale: Scale) -> list[dict[str, Any]]:
    """What the folder says of figures that were made before."""
    path = out / RESULTS
    if not path.exists():
        return []
    there = json.loads(path.read_text(encoding="utf-8"))
    if there["scale"] != scale.name:
        raise StoreError(
            "this folder holds figures of another scale", where=out, got=there["scale"], expected=scale.name,
            do="choose another --out",
        )  # fmt: skip
    return there["figures"]


def _keep(results: Sequence[Result], earlier: Sequence[dict[str, Any]], scale: Scale, out: Path) -> None:
    """Write what was seen beside what is known of other figures, in the order of the recipes."""
    known = {about["name"]: about for about in earlier} | {one.figure.name: describe(one, out) for one in results}
    ordered = [known[figure.name] for figure in figures() if figure.name in known]
    out.mkdir(parents=True, exist_ok=True)
    with atomic(out / RESULTS) as partial:
        written = json.dumps({"scale": scale.name, "figures": ordered}, ensure_ascii=False, indent=1)
        partial.write_text(written, encoding="utf-8")


def describe(result: Result, out: Path) -> dict[str, Any]:
    """A result as plain values; run folders are told from the folder of all."""
    figure = result.figure
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "status": status(result),
        "stands_in": result.stands_in,
        "failed": result.failed or None,
        "draw": list(figure.draw),
        "together": figure.together,
        "options": figure.options,
        "runs": [str(run.folder.relative_to(out)) for run in result.runs],
        "statements": [{"says": said.says, "holds": seen.holds, "seen": seen.words} for said, seen in result.seen],
    }


def status(result: Result) -> str:
    """One word for a figure: reproduced, not reproduced, stand-in only, drawn (nothing is stated of it), or failed."""
    if result.failed:
        return "failed"
    if result.stands_in:
        return "stand-in only"
    told = [seen.holds for _, seen in result.seen if seen.holds is not None]
    if not told:
        return "drawn"
    return "reproduced" if all(told) else "not reproduced"
